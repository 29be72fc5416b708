"""The log: what a killed process has written is there, and half a record is none."""

import errno
import os
from pathlib import Path

import pytest
from symphony_kernel.journal.log import SPARE_TIMES_MAX, Log, read

SMALL = 4096


def whole(folder: Path, sequence: int = 1) -> list[bytes]:
    return list(read(folder, sequence))


def test_records_of_a_killed_process_are_read_in_order(tmp_path: Path) -> None:
    records = [bytes([n]) * (n * 37 % 501) for n in range(200)]
    pid = os.fork()
    if not pid:  # a process that ends without closing anything
        log = Log(tmp_path, 1, SMALL)
        for record in records:
            log.append(record)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert whole(tmp_path) == records
    assert whole(tmp_path, 150) == records[149:]
    assert whole(tmp_path, 201) == []


def test_record_torn_at_any_byte_is_ignored(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    log.append(b"first")
    before = next(tmp_path.iterdir()).read_bytes()
    log.append(b"the last record")
    (path,) = tmp_path.iterdir()
    after = path.read_bytes()
    changed = [i for i in range(SMALL) if before[i] != after[i]]
    for end in range(changed[0], changed[-1]):  # its bytes have come up to here, in any order
        path.write_bytes(after[: end + 1] + before[end + 1 :])
        assert whole(tmp_path) == [b"first"]
        path.write_bytes(before[: end + 1] + after[end + 1 :])
        assert whole(tmp_path) == [b"first"]
    path.write_bytes(after)
    assert whole(tmp_path) == [b"first", b"the last record"]


def test_wrong_byte_ends_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    log.append(b"first")
    log.append(b"second")
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    end = data.index(b"second") + len(b"second")
    for at in range(16 + 5, end):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert whole(tmp_path) == [b"first"]


def test_record_larger_than_a_segment_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, SMALL)
    records = [b"small", os.urandom(3 * SMALL), b"", b"x" * (SMALL - 16), b"end"]
    for record in records:
        log.append(record)
    assert log.sequence == 12
    assert whole(tmp_path, 7) == records


def test_reused_segments_do_not_show_old_records(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    for turn in range(20):
        for n in range(30):
            log.append(b"%d " % turn * (1 + n * 7))
        kept = log.rotate()
        log.drop_before(kept)
        log.append(b"kept")
        assert log.size < SMALL
        assert whole(tmp_path, kept) == [b"kept"]
    assert len(list(tmp_path.iterdir())) <= 3
    assert log.sequence == 1 + 20 * 31


def test_segments_of_large_records_are_reused(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    files = set[int]()
    for turn in range(20):
        large = os.urandom(2 * SMALL), os.urandom(SMALL // 2)
        log.append(*large)
        log.append(b"%d" % turn)
        assert whole(tmp_path, 1 + 2 * turn) == [b"".join(large), b"%d" % turn]
        log.drop_before(log.rotate())
        files |= {path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(files) <= 4, "no segment is made for each record"


def test_very_large_segments_are_not_kept(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    for _ in range(3):
        log.append(b"x" * (SPARE_TIMES_MAX * SMALL))
        log.drop_before(log.rotate())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * SMALL


def test_only_whole_segments_are_dropped(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, SMALL)
    for _ in range(10):
        log.append(b"x" * 1000)  # four a segment
    log.drop_before(6)
    assert whole(tmp_path, 6) == [b"x" * 1000] * 5
    assert log.size == 6 * 1016


def test_append_on_a_full_disk_fails_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, 1, SMALL)
    log.append(b"x" * 3000)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no room"):
        log.append(b"y" * 3000)
    assert len(list(tmp_path.iterdir())) == 1
    log.append(b"z")  # what fits still does
    assert whole(tmp_path) == [b"x" * 3000, b"z"]
