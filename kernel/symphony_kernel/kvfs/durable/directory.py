"""The directory of durable files: a name is always the old file or the new one.

    <root>/<tenant>/<path>.safetensors    both are hex digests: a path may be longer than a file's
                                          name, and hold characters that a file's name may not
    <root>/<tenant>/<path>.<n>.partial    being written, as is `.tmp..` by the safetensors library;
                                          the next start removes them
    <root>/uploads/<n>.partial            uploads that have not been checked; removed likewise
    <root>/key                            the key that files are sealed with
    <root>/broken/                        unreadable files, set aside for the operator

There is no index: each file says which tenant owns it and what its name is. Every change is one
rename or one unlink, after an fsync of the new file and before one of the directory. A kill between
any two of these leaves the old state or the new one.

Methods block. Several threads may call them, as long as no two write the same name at once.
"""

import contextlib
import errno
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.durable import format as kv_format
from symphony_kernel.kvfs.durable.format import Content, FormatError, Identity, Label
from symphony_kernel.platform.disk_space import FreeSpace

_log = logging.getLogger(__name__)
_SUFFIX: Final = ".safetensors"
_PARTIAL: Final = ".partial"
_TEMPORARY: Final = ".tmp"
_BROKEN: Final = "broken"
_UPLOADS: Final = "uploads"
_KEY: Final = "key"
_KEY_BYTES: Final = 32
_PRIVATE: Final = 0o700


class Found(NamedTuple):
    """A file in the directory."""

    label: Label
    size: int  # bytes on disk


class Directory:
    """All durable files below `root`, which is readable for the server's user only.

    Files are written while more than `reserve_bytes` of the disk are free. `identity` may block.
    """

    def __init__(
        self, root: Path, identity: Callable[[], Identity], reserve_bytes: int = 0
    ) -> None:
        self._root = root
        self._identity = identity
        self.space = FreeSpace(root, reserve_bytes)
        self._numbers = count()
        self._key = b""

    def open(self) -> list[Found]:
        """Make the directory or clean it up, and return its files; OSError.

        Partial files of a killed process are removed; unreadable files are set aside.
        """
        _make(self._root)
        self._key = self._read_key()
        found: list[Found] = []
        for tenant in sorted(self._root.iterdir()):
            if tenant.name == _BROKEN or not tenant.is_dir():
                continue
            for path in sorted(tenant.iterdir()):
                if path.suffix == _PARTIAL or path.name.startswith(_TEMPORARY):
                    path.unlink()
                elif path.suffix == _SUFFIX:
                    found.extend(self._examine(path))
        return found

    def _examine(self, path: Path) -> Iterator[Found]:
        try:
            label = kv_format.read_label(path)
            if self._path(label.tenant, label.path) != path:
                raise FormatError("its name belongs to another file")
        except FormatError as error:
            self._set_aside(path, error)
        else:
            yield Found(label, path.stat().st_size)

    def put(self, label: Label, content: Content) -> int:
        """Write a file under its name, in place of an older one; return its bytes.

        On return it is safe on disk. On an OSError the old file is unchanged.
        """
        self.space.check(0)
        with self.partial(label.tenant, label.path) as path:
            kv_format.write(path, label, self._identity(), content, self._key)
            return self._keep(path, self._path(label.tenant, label.path))

    def put_upload(self, label: Label, upload: Path, *, recompute: bool) -> tuple[int, int]:
        """Write an upload's content under a name; return its bytes and entries.

        Raises as `format.read_upload` and `put`.
        """
        content = kv_format.read_upload(upload, self._identity(), self._key, recompute=recompute)
        entries = len(content.tokens)
        label = Label(label.tenant, label.path, entries, label.public, label.expires_ms)
        return self.put(label, content), entries

    def _keep(self, path: Path, final: Path) -> int:
        size = _sync(path)
        path.replace(final)
        _sync(final.parent)
        return size

    @contextlib.contextmanager
    def partial(self, tenant: str, path: str) -> Iterator[Path]:
        """Yield a path to write to; the file is removed afterwards unless renamed."""
        final = self._path(tenant, path)
        if not final.parent.is_dir():
            _make(final.parent)
        partial = final.with_name(f"{final.stem}.{next(self._numbers)}{_PARTIAL}")
        try:
            yield partial
        finally:
            # The next start removes what remains; the rename or removal itself is complete.
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def get(self, tenant: str, path: str) -> Content:
        """Return a named file's content; FormatError: it is broken, and set aside; OSError."""
        final = self._path(tenant, path)
        with self._checked(final):
            return kv_format.read(final, self._identity())

    def read_entries(self, tenant: str, path: str, start: int, count: int) -> tuple[UInt32, Int32]:
        """Return up to `count` tokens and positions of a named file; raises as `get`."""
        final = self._path(tenant, path)
        with self._checked(final):
            return kv_format.read_entries(final, start, count)

    def remove(self, tenant: str, path: str) -> None:
        """Remove a file, if there is one; on return the removal is safe on disk.

        On an OSError the file is where it was, unless the disk refuses to move it back.
        """
        final = self._path(tenant, path)
        with self.partial(tenant, path) as removed:
            with contextlib.suppress(FileNotFoundError):
                final.replace(removed)
            try:
                _sync(final.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    removed.replace(final)
                raise

    # -- Transfers ------------------------------------------------------------------------------
    def open_checked(self, tenant: str, path: str) -> int:
        """Return a descriptor of a named file, which later changes of the name do not affect.

        Raises as `get`.
        """
        final = self._path(tenant, path)
        with self._checked(final):
            kv_format.verify(final)
        return os.open(final, os.O_RDONLY | os.O_CLOEXEC)

    def write_unnamed(self, label: Label, content: Content) -> int:
        """Write a file without a name; return its descriptor. OSError."""
        self.space.check(0)
        with self.partial(label.tenant, label.path) as path:
            kv_format.write(path, label, self._identity(), content, self._key)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create_upload(self) -> tuple[Path, int]:
        """Return the path and a descriptor of a new, empty file; OSError."""
        self.space.check(0)
        folder = self._root / _UPLOADS
        _make(folder)
        path = folder / f"{next(self._numbers)}{_PARTIAL}"
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _path(self, tenant: str, path: str) -> Path:
        return self._root / _hex(tenant) / f"{_hex(path)}{_SUFFIX}"

    def _read_key(self) -> bytes:
        """Return the key that files are sealed with; make it if there is none. OSError."""
        path = self._root / _KEY
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = b""
        if len(key) != _KEY_BYTES:
            key = secrets.token_bytes(_KEY_BYTES)
            partial = path.with_suffix(_PARTIAL)
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
            self._keep(partial, path)
        return key

    @contextlib.contextmanager
    def _checked(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            self._set_aside(path, error)
            raise

    def _set_aside(self, path: Path, error: FormatError) -> None:
        _log.error("%s is set aside in %s: %s", path, self._root / _BROKEN, error)
        _make(self._root / _BROKEN)
        with contextlib.suppress(FileNotFoundError):
            path.replace(self._root / _BROKEN / f"{path.parent.name[:16]}-{path.name}")


def errno_of(error: OSError) -> int:
    """Return a program's errno for a disk's error: ENOSPC, or EIO for all others."""
    return errno.ENOSPC if error.errno in (errno.ENOSPC, errno.EDQUOT) else errno.EIO


def _hex(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _make(directory: Path) -> None:
    """Make a private directory, safe on disk; OSError."""
    if not directory.is_dir():
        directory.mkdir(mode=_PRIVATE, exist_ok=True, parents=True)
        _sync(directory.parent)
    directory.chmod(_PRIVATE)


def _sync(path: Path) -> int:
    """Make a file, or the names in a directory, safe on disk; return its bytes; OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
