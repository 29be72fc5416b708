"""The store: which journal may be believed."""

import logging
from pathlib import Path

import pytest
from symphony_kernel.journal.store import (
    ATTEMPT_SECONDS,
    FAILURES_MAX,
    KILLS_MAX,
    RECORDS_PROOF,
    Found,
    Store,
)

IDENTITY = bytes(range(32))


def begun(folder: Path, records: int = 3) -> Store:
    """A journal with an image before record 5, and some records."""
    store = Store(folder, IDENTITY)
    assert store.find(0.0, None) is None
    log = store.begin(5, b"image")
    for n in range(records):
        log.append(b"%d" % n)
    log.close()
    return store


def come_back(store: Store, now: float, ended: int | None, records: int = 0) -> Found | None:
    """Come back as a kernel does, and write some records."""
    found = store.find(now, ended)
    if found is not None:
        sequence = found.sequence + len(list(found.records))
        log = store.begin(sequence, b"image %d" % sequence)
        store.recovered(sequence)
        for _ in range(records):
            log.append(b"x")
        log.close()
    return found


def test_store_finds_an_image_and_its_records(tmp_path: Path) -> None:
    begun(tmp_path)
    found = Store(tmp_path, IDENTITY).find(1.0, -9)
    assert found is not None
    assert (found.sequence, found.snapshot) == (5, b"image")
    assert list(found.records) == [b"0", b"1", b"2"]


def test_later_image_replaces_an_earlier_one(tmp_path: Path) -> None:
    store = begun(tmp_path)
    store.write_snapshot(7, b"later")
    found = store.find(1.0, -9)
    assert found is not None
    assert (found.sequence, found.snapshot, list(found.records)) == (7, b"later", [b"2"])
    assert len(list(tmp_path.glob("*.image"))) == 1


def test_half_written_image_is_ignored(tmp_path: Path) -> None:
    store = begun(tmp_path)
    (whole,) = tmp_path.glob("*.image")
    data = whole.read_bytes()
    later = tmp_path / f"{7:016x}.image"
    for size in range(len(data)):
        later.write_bytes(data[:size])
        found = store._newest()
        assert found is not None
        assert found.sequence == 5


@pytest.mark.parametrize("change", ["identity", "image"])
def test_foreign_or_damaged_journal_is_set_aside_and_logged(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path)
    (path,) = tmp_path.glob("*.image")
    if change == "image":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.ERROR):
        other = Store(tmp_path, IDENTITY if change == "image" else b"o" * 32)
        assert other.find(1.0, None) is None
    assert "SET ASIDE" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["aside"]
    assert len(list((tmp_path / "aside").iterdir())) == 2
    assert other.find(1.0, None) is None


def test_journal_that_fails_kernels_is_set_aside(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for n in range(FAILURES_MAX):
        assert come_back(store, 100 + n * 10.0, 1, RECORDS_PROOF - 1) is not None
    assert come_back(store, 100 + FAILURES_MAX * 10.0, 1) is None
    assert (tmp_path / "aside").exists()


def test_kernel_that_got_far_or_lived_long_is_no_failure(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for n in range(10):
        assert come_back(store, 100 + n * 10.0, 1, RECORDS_PROOF) is not None
    for n in range(10):
        assert come_back(store, 1000 + n * (ATTEMPT_SECONDS + 1), 1) is not None


def test_killed_kernels_count_as_failures_late(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for n in range(30):
        assert come_back(store, float(n), -9, 1) is not None
    for n in range(KILLS_MAX):
        assert come_back(store, 30.0 + n, -9) is not None
    assert come_back(store, 50.0, -9) is None


def test_kernel_that_dies_during_recovery_counts(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for n in range(FAILURES_MAX):
        assert store.find(100.0 + n, -11) is not None
    assert store.find(105.0, -11) is None


@pytest.mark.parametrize(
    "words",
    [b"", b"{", b"[]", b"\xff", b'{"began": "x"}', b'{"began": NaN}', b'{"failures": 1e999}',
     b'{"kills": "many"}', b'{"sequence": -1}', b'{"recovered": 5}', b'{"more": 1}'],
)  # fmt: skip
def test_damaged_attempts_file_is_ignored(tmp_path: Path, words: bytes) -> None:
    store = begun(tmp_path)
    (tmp_path / "attempts").write_bytes(words)
    for n in range(3):
        assert come_back(store, 100.0 + n, 1, RECORDS_PROOF) is not None


def test_removed_journal_leaves_nothing(tmp_path: Path) -> None:
    store = begun(tmp_path)
    store.remove()
    assert list(tmp_path.iterdir()) == []
    assert store.find(1.0, None) is None


def test_removal_cut_short_leaves_no_old_records(tmp_path: Path) -> None:
    log = begun(tmp_path).begin(8, b"later")
    log.append(b"of the old one")
    (tmp_path / f"{8:016x}.image").unlink()  # and then the storage refused the rest
    anew = Store(tmp_path, IDENTITY)
    assert anew.find(0.0, 1) is None
    log = anew.begin(1, b"new")
    for n in range(1, 8):
        log.append(b"%d" % n)
    found = anew.find(0.0, 1)
    assert found is not None
    assert list(found.records) == [b"%d" % n for n in range(1, 8)]
