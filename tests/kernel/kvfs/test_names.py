"""Names: public files and who pays for them, expiries, and quotas."""

from collections.abc import Iterator

import pytest
from symphony_kernel.kvfs.expiry_queue import ExpiryQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.page_device import FilesRig, make_account, make_kvfs
from tests.support.refusals import refused


class NamesRig(FilesRig):
    """Files of tenant "t" that another tenant reads."""

    def published(self, path: str = "a/b", entries: int = 40) -> KVFile:
        """Return a file of tenant "t" that is saved publicly."""
        file = self.file(entries)
        self.kvfs.save(file, path, replace=True, public=True)
        return file

    def view(self, path: str = "public/t/a/b") -> KVFile:
        return self.add(self.kvfs.open("other", path, self.account("other")))

    def pages(self) -> tuple[int, int]:
        """Return how many pages both tenants pay for."""
        return self.kvfs.tenant("t").account.pages, self.kvfs.tenant("other").account.pages


@pytest.fixture
def rig() -> Iterator[NamesRig]:
    rig = NamesRig(64)
    yield rig
    rig.close_all()


def test_public_file_is_opened_by_others_and_a_private_one_is_not(rig: NamesRig) -> None:
    rig.kvfs.save(rig.published(), "secret", replace=False)
    view = rig.view()
    assert view.tokens.tolist() == list(range(100, 140))
    assert (view.tenant, view.path) == ("other", "public/t/a/b")
    for path in ("public/t/secret", "public/t/nothing", "public/unknown/a", "public/t", "public"):
        assert refused(rig.view, path) is Errno.ENOENT
    assert refused(rig.view, "a/b") is Errno.ENOENT
    assert set(rig.kvfs.tenants) == {"t", "other"}


def test_path_below_public_cannot_be_written(rig: NamesRig) -> None:
    file = rig.published()
    for path in ("public/t/a/b", "public/other/x", "public"):
        assert refused(rig.kvfs.save, file, path, True) is Errno.EACCES
        assert refused(rig.kvfs.remove, "t", path) is Errno.EACCES


def test_listing_of_public_names_needs_a_tenants_name(rig: NamesRig) -> None:
    listing, file = rig.kvfs.listing, rig.published()
    rig.published("a/c")
    rig.kvfs.save(file, "a/d", replace=False)
    public = [(f.path, f.public) for f in listing("other", "public/t/a/")]
    assert public == [("public/t/a/b", True), ("public/t/a/c", True)]
    assert [f.path for f in listing("other", "public/t/", "public/t/a/b")] == ["public/t/a/c"]
    assert listing("other", "public/") == []
    assert listing("other", "public/unknown/") == []
    assert [f.path for f in listing("t", "a/")] == ["a/b", "a/c", "a/d"]


def test_replacement_of_a_public_file_is_private_by_default(rig: NamesRig) -> None:
    rig.kvfs.save(rig.published(), "a/b", replace=True)
    assert refused(rig.view) is Errno.ENOENT


def test_reader_pays_for_a_public_file_that_was_removed(rig: NamesRig) -> None:
    """Otherwise a tenant could use another's quota by holding what it once published."""
    rig.close(rig.published(entries=48))
    view = rig.view()
    assert rig.pages() == (3, 0)
    rig.kvfs.remove("t", "a/b")
    assert rig.pages() == (0, 3)
    rig.check()
    rig.close(view)
    assert rig.pages() == (0, 0)


def test_publisher_pays_for_what_it_still_holds(rig: NamesRig) -> None:
    file = rig.published(entries=48)
    view = rig.view()
    rig.kvfs.remove("t", "a/b")
    assert rig.pages() == (3, 0)
    rig.close(view, file)
    assert rig.pages() == (0, 0)


def test_fork_of_a_removed_public_file_is_its_tenants_to_pay(rig: NamesRig) -> None:
    file = rig.published(entries=48)
    view = rig.view()
    rig.fork(view)
    rig.close(view)
    for _ in range(20):
        rig.file(2)
    before, _ = rig.pages()
    file.truncate(16)
    rig.kvfs.remove("t", "a/b")
    assert rig.pages() == (before - 2, 2), "the first page is still the publisher's"


def test_replaced_public_file_without_readers_scans_no_files(rig: NamesRig) -> None:
    file = rig.published(entries=48)

    def look(*_: object) -> None:
        raise AssertionError("all files were looked at")

    rig.kvfs._hand_over = look  # type: ignore[assignment, method-assign]
    rig.kvfs.save(file, "a/b", replace=True, public=True)
    rig.kvfs.remove("t", "a/b")


def test_name_past_the_quota_is_refused() -> None:
    kvfs = make_kvfs(16, names=2)
    file = kvfs.create("t", make_account(kvfs))
    kvfs.save(file, "w", replace=False)
    kvfs.save(file, "x", replace=False)
    assert refused(kvfs.save, file, "y", False) is Errno.EDQUOT
    kvfs.save(file, "x", replace=True)
    kvfs.remove("t", "x")
    kvfs.save(file, "y", replace=False)


def test_name_takes_the_expiry_of_the_saved_file(rig: NamesRig) -> None:
    kvfs, file = rig.kvfs, rig.file(2)
    file.expires_ms = 5_000
    kvfs.save(file, "a", replace=False)
    assert kvfs.named("t", "a").expires_ms == 5_000
    assert kvfs.expiries.next_end == 5_000
    assert kvfs.expiries.due(4_999) == []
    assert kvfs.expiries.due(5_000) == [(5_000, ("t", "a"))]
    assert rig.add(kvfs.open("t", "a", rig.account())).expires_ms == 5_000


def test_expiries_are_due_in_order() -> None:
    expiries: ExpiryQueue[str] = ExpiryQueue()
    for moment in (30, 0, 10, 20):
        expiries.set(f"at {moment}", moment)
    assert expiries.next_end == 10
    assert [path for _, path in expiries.due(25)] == ["at 10", "at 20"]
    assert expiries.next_end == 30


def test_expiry_of_a_name_is_its_last_one() -> None:
    expiries: ExpiryQueue[str] = ExpiryQueue()
    for moment in (10, 20, 5, 30, 30):
        expiries.set("a", moment)
    expiries.set("b", 15)
    expiries.set("b", 0)
    assert expiries.due(29) == []
    assert expiries.due(40) == [(30, "a")]
    assert expiries.due(40) == []


def test_expiries_of_a_name_saved_often_do_not_grow(rig: NamesRig) -> None:
    kvfs, file = rig.kvfs, rig.create()
    for turn in range(2_000):
        file.expires_ms = 1_000_000 + turn
        kvfs.save(file, "a", replace=True)
        kvfs.save(file, "b", replace=True)
        kvfs.remove("t", "b")
    assert len(kvfs.expiries) < 100
    assert kvfs.expiries.due(2_000_000) == [(1_001_999, ("t", "a"))]


def test_listing_of_a_file_on_disk_has_its_length() -> None:
    kvfs = make_kvfs(16)
    file = kvfs.create("t", kvfs.tenant("t").account)
    kvfs.put_name("a", file, Name(durable=True, size=100, entries=33, loaded=False))
    (listed,) = kvfs.listing("t")
    assert (listed.len, listed.pages, listed.tier, listed.durable) == (33, 3, "disk", True)
    assert kvfs.tenant("t").durable_bytes == 100
    kvfs.remove("t", "a")
    assert kvfs.tenant("t").durable_bytes == 0
