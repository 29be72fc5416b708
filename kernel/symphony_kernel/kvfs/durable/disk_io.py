"""Work on disk: what blocks, done in threads, with its errors as programs hear them."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from symphony_kernel.kvfs.durable.directory import Directory, errno_of
from symphony_kernel.kvfs.durable.format import (
    Content,
    FormatError,
    Identity,
    Label,
    OtherModelError,
)
from symphony_kernel.protocol.errno import Errno, SyscallError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RefusedError(SyscallError):
    """An upload that is not taken: `kind` is bad-file or other-model."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(Errno.EINVAL, words)
        self.kind = kind


class Run(Protocol):
    """Does work that blocks where it holds up nobody."""

    def __call__(self, work: Callable[[], _T]) -> Awaitable[_T]:
        """Return what `work` does, or raise it."""


class DiskIO:
    """Durable files in `directory`, of the model of `identity`, which may block, too."""

    def __init__(self, directory: Directory, identity: Callable[[], Identity], run: Run) -> None:
        self._directory = directory
        self.space = directory.space
        self._identity = identity
        self._run = run

    async def put(self, label: Label, content: Content) -> int:
        """Write a file and return its bytes; SyscallError, and the old one is there."""
        return await self._blocking(partial(self._put, label, content))

    def _put(self, label: Label, content: Content) -> int:
        return self._directory.put(label, self._identity(), content)

    async def put_foreign(self, label: Label, upload: Path, *, rebuild: bool) -> tuple[int, int]:
        """Write what an upload holds; return bytes and entries. SyscallError, RefusedError."""
        return await self._blocking(partial(self._put_foreign, label, upload, rebuild))

    def _put_foreign(self, label: Label, upload: Path, rebuild: bool) -> tuple[int, int]:
        identity = self._identity()
        content = self._directory.read_foreign(upload, identity, rebuild=rebuild)
        entries = len(content.tokens)
        whole = Label(label.tenant, label.path, entries, label.public, label.expires_ms)
        return self._directory.put(whole, identity, content), entries

    async def get(self, tenant: str, path: str) -> Content:
        """Return what a name holds; SyscallError, EBADF of a broken file, ENOENT without one."""
        return await self._blocking(partial(self._get, tenant, path), Errno.EBADF)

    def _get(self, tenant: str, path: str) -> Content:
        try:
            return self._directory.get(tenant, path, self._identity())
        except FileNotFoundError as error:
            raise SyscallError(Errno.ENOENT, path) from error

    async def remove(self, tenant: str, path: str) -> None:
        """Take a file away; SyscallError."""
        await self._blocking(partial(self._directory.remove, tenant, path))

    async def size(self, path: Path) -> int:
        """Return the bytes of a file; SyscallError."""
        return (await self._blocking(path.stat)).st_size

    async def discard(self, upload: Path) -> None:
        """Remove the file of an upload that has been taken or refused."""
        try:
            await self._run(partial(upload.unlink, missing_ok=True))
        except OSError as error:
            _log.error("an upload's file stays until the next start: %s", error)

    async def _blocking(self, work: Callable[[], _T], broken: Errno | None = None) -> _T:
        try:
            return await self._run(work)
        except OSError as error:
            _log.error("a durable file: %s", error)
            raise SyscallError(Errno(errno_of(error)), str(error)) from error
        except FormatError as error:
            if broken is not None:
                raise SyscallError(broken, str(error)) from error
            raise RefusedError("bad-file", str(error)) from error
        except OtherModelError as error:
            raise RefusedError("other-model", str(error)) from error
