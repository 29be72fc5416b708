"""The tree of durable files: old or new at any instant, and nothing broken is served."""

import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.kvfs.durable import format as kv_format
from symphony_kernel.kvfs.durable.directory import Directory, errno_of
from symphony_kernel.kvfs.durable.format import Content, FormatError, Identity, Label, write

IDENTITY = Identity("tiny", "abc", "float32", "", vocab_size=100, max_context=64)


def content(*tokens: int) -> Content:
    n = len(tokens)
    return Content(np.array(tokens, np.uint32), np.arange(n, dtype=np.int32), n)


def label(path: str, entries: int, tenant: str = "t") -> Label:
    return Label(tenant, path, entries)


def opened(root: Path) -> Directory:
    directory = Directory(root, lambda: IDENTITY)
    directory.open()
    return directory


def names(root: Path) -> list[tuple[str, str, int]]:
    found = Directory(root, lambda: IDENTITY).open()
    return sorted((f.label.tenant, f.label.path, f.label.entries) for f in found)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """A directory with the file "a"."""
    directory = opened(tmp_path / "kv")
    directory.put(label("a", 2), content(1, 2))
    return directory


def test_files_put_are_found_by_the_next_process(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    directory = opened(root)
    size = directory.put(label("a/b", 2), content(1, 2))
    directory.put(label("a/b", 3), content(3, 4, 5))
    directory.put(label("a/b", 1, "other"), content(9))
    directory.put(label("x" * 1024, 1), content(7))
    directory.put(label("gone", 1), content(7))
    directory.remove("t", "gone")
    directory.remove("t", "gone")
    assert size > 8
    found = [("other", "a/b", 1), ("t", "a/b", 3), ("t", "x" * 1024, 1)]
    assert names(root) == found
    assert directory.get("t", "a/b").tokens.tolist() == [3, 4, 5]
    assert directory.get("other", "a/b").tokens.tolist() == [9]
    with pytest.raises(FileNotFoundError):
        directory.get("t", "gone")


def test_disk_reserve_refuses_writes_and_allows_removal(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    opened(root).put(label("a", 1), content(1))
    directory = Directory(root, lambda: IDENTITY, reserve_bytes=1 << 60)  # more than any disk has
    directory.open()
    with pytest.raises(OSError, match="the disk has less than"):
        directory.put(label("b", 1), content(1))
    with pytest.raises(OSError, match="the disk has less than"):
        directory.write_unnamed(label("b", 1), content(1))
    assert names(root) == [("t", "a", 1)]
    directory.remove("t", "a")
    assert names(root) == []


def test_directory_is_private(tmp_path: Path) -> None:
    directory = opened(tmp_path / "kv")
    directory.put(label("a", 1), content(1))
    for path in (tmp_path / "kv").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700


class Cut(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("instant", range(12))
def test_put_cut_at_any_instant_leaves_the_old_or_the_new_file(
    directory: Directory, tmp_path: Path, instant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends before or after each system call that a put makes."""
    calls = 0

    def cutting(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == instant:
                raise Cut
            result = work(*args, **given)
            calls += 1
            if calls == instant:
                raise Cut
            return result

        return wrapped

    monkeypatch.setattr(kv_format, "write", cutting(write))
    monkeypatch.setattr(os, "fsync", cutting(os.fsync))
    monkeypatch.setattr(Path, "replace", cutting(Path.replace))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # nothing is tidied up
    acknowledged = False
    try:
        directory.put(label("a", 3), content(3, 4, 5))
        acknowledged = True
    except Cut:
        pass
    monkeypatch.undo()
    after = opened(tmp_path / "kv").get("t", "a").tokens.tolist()
    assert after in ([1, 2], [3, 4, 5])
    assert after == [3, 4, 5] or not acknowledged
    assert names(tmp_path / "kv") == [("t", "a", len(after))]
    assert not list((tmp_path / "kv").rglob("*.partial"))


def test_failed_put_leaves_the_old_file(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full") as caught:
        directory.put(label("a", 3), content(3, 4, 5))
    assert errno_of(caught.value) == errno.ENOSPC
    assert errno_of(PermissionError(errno.EACCES, "no")) == errno.EIO
    monkeypatch.undo()
    assert directory.get("t", "a").tokens.tolist() == [1, 2]
    assert not list((tmp_path / "kv").rglob("*.partial"))


def test_write_to_a_missing_folder_raises_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "nowhere" / "f", label("a", 1), IDENTITY, content(1))


def test_broken_files_are_moved_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "kv"
    directory = opened(root)
    for path in ("header", "tensors", "good", "moved"):
        directory.put(label(path, 2), content(1, 2))
    files = {found.label.path: directory._path("t", found.label.path) for found in directory.open()}
    files["header"].write_bytes(b"\0" * 100)
    data = files["tensors"].read_bytes()
    files["tensors"].write_bytes(data[:-1] + b"\x55")
    (files["good"].parent / ".tmpAbc").write_bytes(b"as the library names what it writes")
    files["moved"].rename(files["moved"].with_name("0" * 64 + ".safetensors"))
    with caplog.at_level(logging.ERROR):
        assert names(root) == [("t", "good", 2), ("t", "tensors", 2)]
        with pytest.raises(FormatError):
            directory.get("t", "tensors")
    assert len(caplog.records) == 3
    assert names(root) == [("t", "good", 2)]
    assert len(list((root / "broken").iterdir())) == 3
    assert not list(root.rglob(".tmp*"))


def test_open_file_is_unchanged_by_a_put_or_removal(directory: Directory) -> None:
    descriptor = directory.open_checked("t", "a")
    before = os.pread(descriptor, 1 << 20, 0)
    directory.put(label("a", 3), content(3, 4, 5))
    directory.remove("t", "a")
    assert os.pread(descriptor, 1 << 20, 0) == before
    os.close(descriptor)


def test_broken_file_is_not_sent(directory: Directory, tmp_path: Path) -> None:
    path = directory._path("t", "a")
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    with pytest.raises(FormatError):
        directory.open_checked("t", "a")
    assert names(tmp_path / "kv") == []


def test_unnamed_file_is_gone_with_the_process(tmp_path: Path) -> None:
    directory = opened(tmp_path / "kv")
    descriptor = directory.write_unnamed(label("a", 2), content(1, 2))
    (tmp_path / "copy").write_bytes(os.pread(descriptor, 1 << 20, 0))
    os.close(descriptor)
    found = kv_format.read_upload(tmp_path / "copy", IDENTITY, directory._key)
    assert found.tokens.tolist() == [1, 2]
    path, upload = directory.create_upload()
    os.write(upload, b"half a file")
    os.close(upload)
    assert names(tmp_path / "kv") == []
    assert not path.exists()
