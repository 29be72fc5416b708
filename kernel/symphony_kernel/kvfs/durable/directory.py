"""The directory of durable names: a file each, and each the old one or the new one at any instant.

    <root>/<tenant>/<path>.safetensors    both as the hex digest of the name: a path may be longer
                                          than a file's name, and hold what none may
    <root>/<tenant>/<path>.<n>.partial    being written, as is `.tmp..`, by the library that writes:
                                          whoever starts next removes them
    <root>/uploads/<n>.partial            from outside, not looked at yet; removed likewise
    <root>/key                            what files are sealed with
    <root>/broken/                        what could not be read, set aside for the operator

There is no list beside the files: each says itself whose it is and what its name is, so the tree is
what lies there. Whatever changes it is one rename or one unlink, behind an fsync of the new file
and before one of the directory; a kill between any two of these leaves one of the two states.

Methods block, and may be called from several threads as long as no two write the same name at once.
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
    """A file that lies in the directory."""

    label: Label
    size: int  # bytes on disk


class Directory:
    """All durable files below `root`, which nobody else may look into."""

    def __init__(self, root: Path, reserve_bytes: int = 0) -> None:
        """Files are written below `root` while more than the reserve is free."""
        self._root = root
        self.space = FreeSpace(root, reserve_bytes)
        self._numbers = count()
        self._key = b""

    def open(self) -> list[Found]:
        """Make the directory or clean up in it; return what lies there. OSError.

        What another process was writing when it was killed is removed, what cannot be read is set
        aside.
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
                raise FormatError("it has another file's name")
        except FormatError as error:
            self._set_aside(path, error)
        else:
            yield Found(label, path.stat().st_size)

    def put(self, label: Label, identity: Identity, content: Content) -> int:
        """Write a file and give it its name, in place of an older one; return its bytes.

        When this returns it is safe on disk; when it raises, the old file is what it was.

        Raises:
            OSError: ENOSPC and what else a disk may say.
        """
        self.space.check(0)
        with self.partial(label.tenant, label.path) as path:
            kv_format.write(path, label, identity, content, self._key)
            return self._keep(path, self._path(label.tenant, label.path))

    def _keep(self, path: Path, final: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        path.replace(final)
        _sync_directory(final.parent)
        return size

    @contextlib.contextmanager
    def partial(self, tenant: str, path: str) -> Iterator[Path]:
        """Give the path of a file to write; it is gone afterwards unless it has been kept."""
        final = self._path(tenant, path)
        if not final.parent.is_dir():
            _make(final.parent)
        partial = final.with_name(f"{final.stem}.{next(self._numbers)}{_PARTIAL}")
        try:
            yield partial
        finally:
            # What stays of it goes at the next start; what has been kept or removed is so.
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def get(self, tenant: str, path: str, identity: Identity) -> Content:
        """Return what a name holds; a file that is broken is set aside.

        Raises:
            FileNotFoundError: there is none; FormatError: it is broken; OSError.
        """
        final = self._path(tenant, path)
        try:
            return kv_format.read(final, identity)
        except FormatError as error:
            self._set_aside(final, error)
            raise

    def read_foreign(self, path: Path, identity: Identity, *, rebuild: bool) -> Content:
        """Return what a file from outside holds; see `format.read_foreign`."""
        return kv_format.read_foreign(path, identity, self._key, rebuild=rebuild)

    def remove(self, tenant: str, path: str) -> None:
        """Take a file away, if it is there; when this returns it will not come back.

        Raises:
            OSError: it is where it was, unless the disk refuses that, too.
        """
        final = self._path(tenant, path)
        with self.partial(tenant, path) as leaving:
            with contextlib.suppress(FileNotFoundError):
                final.replace(leaving)
            try:
                _sync_directory(final.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    leaving.replace(final)
                raise

    # -- On their way ---------------------------------------------------------------------------
    def open_checked(self, tenant: str, path: str) -> int:
        """Return a descriptor of a name's file, which stays as it is whatever comes.

        Raises:
            FileNotFoundError: there is none; FormatError: it is broken, and set aside; OSError.
        """
        final = self._path(tenant, path)
        try:
            kv_format.verify(final)
        except FormatError as error:
            self._set_aside(final, error)
            raise
        return os.open(final, os.O_RDONLY | os.O_CLOEXEC)

    def write_unnamed(
        self, label: Label, identity: Callable[[], Identity], content: Content
    ) -> int:
        """Return a descriptor of a file that is written for it and has no name; OSError."""
        self.space.check(0)
        with self.partial(label.tenant, label.path) as path:
            kv_format.write(path, label, identity(), content, self._key)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def begin_upload(self) -> tuple[Path, int]:
        """Return the path and a descriptor of a new, empty file; OSError."""
        self.space.check(0)
        folder = self._root / _UPLOADS
        _make(folder)
        path = folder / f"{next(self._numbers)}{_PARTIAL}"
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _path(self, tenant: str, path: str) -> Path:
        return self._root / _hex(tenant) / f"{_hex(path)}{_SUFFIX}"

    def _read_key(self) -> bytes:
        """Return the key that files are sealed with, made when there is none; OSError."""
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

    def _set_aside(self, path: Path, error: FormatError) -> None:
        _log.error("%s is set aside in %s: %s", path, self._root / _BROKEN, error)
        _make(self._root / _BROKEN)
        with contextlib.suppress(FileNotFoundError):
            path.replace(self._root / _BROKEN / f"{path.parent.name[:16]}-{path.name}")


def errno_of(error: OSError) -> int:
    """Return what a program hears of a disk's error: ENOSPC, or EIO for all others."""
    return errno.ENOSPC if error.errno in (errno.ENOSPC, errno.EDQUOT) else errno.EIO


def _hex(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _make(directory: Path) -> None:
    """Make a directory for us alone, safe on disk; OSError."""
    if not directory.is_dir():
        directory.mkdir(mode=_PRIVATE, exist_ok=True, parents=True)
        _sync_directory(directory.parent)
    directory.chmod(_PRIVATE)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
