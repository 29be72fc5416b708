"""Names: what is public, who pays for it, when a name ends, and how many there may be."""

import pytest
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.kvfs.names import NameExpiries
from symphony_kernel.protocol.errno import Errno, SyscallError

from tests.support.kernel.page_device import extend, make_account, make_kvfs


def published(kvfs: KVFS, path: str = "a/b", entries: int = 40) -> KVFile:
    """Return a file of tenant "t" that is saved publicly."""
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range(entries))
    kvfs.save(file, path, replace=True, public=True)
    return file


def refused(call: object, *args: object) -> Errno:
    with pytest.raises(SyscallError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.errno


def test_public_file_is_opened_by_others_and_a_private_one_is_not() -> None:
    kvfs = make_kvfs(16)
    file = published(kvfs)
    kvfs.save(file, "secret", replace=False)
    other = make_account(kvfs, "other")
    view = kvfs.open("other", "public/t/a/b", other)
    assert view.tokens.tolist() == list(range(40))
    assert view.tenant == "other"
    assert view.path == "public/t/a/b"
    for path in ("public/t/secret", "public/t/nothing", "public/nobody/a", "public/t", "public"):
        assert refused(kvfs.open, "other", path, other) is Errno.ENOENT
    assert refused(kvfs.open, "other", "a/b", other) is Errno.ENOENT
    assert set(kvfs.tenants) == {"t", "other"}
    kvfs.release(view)
    kvfs.release(file)
    kvfs.check_integrity({})


def test_path_below_public_cannot_be_written() -> None:
    kvfs = make_kvfs(16)
    file = published(kvfs)
    for path in ("public/t/a/b", "public/other/x", "public"):
        assert refused(kvfs.save, file, path, True) is Errno.EACCES
        assert refused(kvfs.remove, "t", path) is Errno.EACCES


def test_listing_of_public_names_needs_a_tenants_name() -> None:
    kvfs = make_kvfs(16)
    file = published(kvfs)
    published(kvfs, "a/c")
    kvfs.save(file, "a/d", replace=False)
    listed = kvfs.listing("other", "public/t/a/")
    assert [(f.path, f.public) for f in listed] == [
        ("public/t/a/b", True),
        ("public/t/a/c", True),
    ]
    assert [f.path for f in kvfs.listing("other", "public/t/", "public/t/a/b")] == ["public/t/a/c"]
    assert kvfs.listing("other", "public/") == []
    assert kvfs.listing("other", "public/nobody/") == []
    assert [f.path for f in kvfs.listing("t", "a/")] == ["a/b", "a/c", "a/d"]


def test_listing_has_at_most_its_limit() -> None:
    kvfs = make_kvfs(16)
    file = published(kvfs)
    for number in range(10):
        kvfs.save(file, f"n/{number}", replace=False)
    first = [f.path for f in kvfs.listing("t", "n/", limit=4)]
    assert first == ["n/0", "n/1", "n/2", "n/3"]
    assert [f.path for f in kvfs.listing("t", "n/", "n/8", limit=4)] == ["n/9"]


def test_replacement_of_a_public_file_is_private_by_default() -> None:
    kvfs = make_kvfs(16)
    file = published(kvfs)
    other = make_account(kvfs, "other")
    kvfs.save(file, "a/b", replace=True)
    assert refused(kvfs.open, "other", "public/t/a/b", other) is Errno.ENOENT


def test_reader_pays_for_a_public_file_that_was_removed() -> None:
    """Or a tenant could use up another's quota by holding on to what it has published once."""
    kvfs = make_kvfs(32)
    file = published(kvfs, entries=48)
    kvfs.release(file)
    theirs = make_account(kvfs, "other")
    view = kvfs.open("other", "public/t/a/b", theirs)
    ours, other = kvfs.tenant("t").account, kvfs.tenant("other").account
    assert (ours.pages, other.pages) == (3, 0)
    kvfs.remove("t", "a/b")
    assert (ours.pages, other.pages) == (0, 3)
    kvfs.check_integrity({view: 1})
    kvfs.release(view)
    assert other.pages == 0


def test_publisher_pays_for_what_it_still_holds() -> None:
    kvfs = make_kvfs(32)
    file = published(kvfs, entries=48)
    view = kvfs.open("other", "public/t/a/b", make_account(kvfs, "other"))
    kvfs.remove("t", "a/b")
    assert kvfs.tenant("other").account.pages == 0
    kvfs.release(view)
    kvfs.release(file)
    assert kvfs.tenant("t").account.pages == 0


def test_fork_of_a_removed_public_file_is_its_tenants_to_pay() -> None:
    kvfs = make_kvfs(64)
    file = published(kvfs, entries=48)
    theirs = make_account(kvfs, "other")
    view = kvfs.open("other", "public/t/a/b", theirs)
    fork = kvfs.fork(view, theirs)
    kvfs.release(view)
    mine = make_account(kvfs)
    others = [kvfs.create("t", mine) for _ in range(20)]
    for other in others:
        extend(other, 1, 2)
    before = kvfs.tenant("t").account.pages
    file.truncate(16)
    kvfs.remove("t", "a/b")
    assert kvfs.tenant("other").account.pages == 2, "the first page is the publisher's still"
    assert kvfs.tenant("t").account.pages == before - 2
    kvfs.check_integrity({fork: 1, file: 1, **dict.fromkeys(others, 1)})


def test_replaced_public_file_without_readers_scans_no_files() -> None:
    kvfs = make_kvfs(64)
    file = published(kvfs, entries=48)

    def look(*_: object) -> None:
        raise AssertionError("all files were looked at")

    kvfs._hand_over = look  # type: ignore[assignment, method-assign]
    kvfs.save(file, "a/b", replace=True, public=True)
    kvfs.remove("t", "a/b")


def test_name_past_the_quota_is_refused() -> None:
    kvfs = make_kvfs(16, names=2)
    file = published(kvfs)
    kvfs.save(file, "x", replace=False)
    assert refused(kvfs.save, file, "y", False) is Errno.EDQUOT
    kvfs.save(file, "x", replace=True)
    kvfs.remove("t", "x")
    kvfs.save(file, "y", replace=False)


def test_name_takes_the_expiry_of_the_saved_file() -> None:
    kvfs = make_kvfs(16)
    file = kvfs.create("t", make_account(kvfs))
    extend(file, 1, 2)
    file.expires_ms = 5_000
    kvfs.save(file, "a", replace=False)
    assert kvfs.named("t", "a").expires_ms == 5_000
    assert kvfs.expiries.next_ms == 5_000
    assert kvfs.expiries.due(4_999) == []
    assert kvfs.expiries.due(5_000) == [(5_000, "t", "a")]
    view = kvfs.open("t", "a", make_account(kvfs))
    assert view.expires_ms == 5_000


def test_expiries_are_due_in_order() -> None:
    expiries = NameExpiries()
    for moment in (30, 0, 10, 20):
        expiries.set(moment, "t", f"at {moment}")
    assert expiries.next_ms == 10
    assert [path for _, _, path in expiries.due(25)] == ["at 10", "at 20"]
    assert expiries.next_ms == 30


def test_expiry_of_a_name_is_its_last_one() -> None:
    expiries = NameExpiries()
    for moment in (10, 20, 5, 30, 30):
        expiries.set(moment, "t", "a")
    expiries.set(15, "t", "b")
    expiries.set(0, "t", "b")
    assert expiries.due(29) == []
    assert expiries.due(40) == [(30, "t", "a")]
    assert expiries.due(40) == []


def test_expiries_of_a_name_saved_often_do_not_grow() -> None:
    kvfs = make_kvfs(16)
    file = kvfs.create("t", make_account(kvfs))
    for turn in range(2_000):
        file.expires_ms = 1_000_000 + turn
        kvfs.save(file, "a", replace=True)
        kvfs.save(file, "b", replace=True)
        kvfs.remove("t", "b")
    assert len(kvfs.expiries) < 100
    assert kvfs.expiries.due(2_000_000) == [(1_001_999, "t", "a")]


def test_listing_of_a_file_on_disk_has_its_length() -> None:
    kvfs = make_kvfs(16)
    file = kvfs.create("t", kvfs.tenant("t").account)
    kvfs.put_name("a", file, Name(durable=True, size=100, entries=33, loaded=False))
    (listed,) = kvfs.listing("t")
    assert (listed.len, listed.pages, listed.tier, listed.durable) == (33, 3, "disk", True)
    assert kvfs.tenant("t").durable_bytes == 100
    kvfs.remove("t", "a")
    assert kvfs.tenant("t").durable_bytes == 0
