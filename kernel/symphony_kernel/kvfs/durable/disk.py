"""Blocking disk calls in threads, and background tasks of the kernel's loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from symphony_kernel.kvfs.durable.directory import Directory, errno_of
from symphony_kernel.kvfs.durable.format import FormatError, OtherModelError
from symphony_kernel.kvfs.tenants import Tenant
from symphony_kernel.protocol.errno import Errno, SyscallError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RefusedError(SyscallError):
    """An upload that is not accepted: `kind` is bad-file or other-model."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(Errno.EINVAL, detail)
        self.kind = kind


class Disk:
    """A directory of durable files, called in threads through `run`."""

    def __init__(
        self, directory: Directory, run: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self.directory = directory
        self._run = run

    async def call(self, work: Callable[[], _T], broken: Errno | None = None) -> _T:
        """Return the result of a blocking call; ENOSPC, EIO, or a RefusedError.

        With `broken` the call reads a named file. That it is missing is ENOENT then, and that it is
        damaged is `broken`.
        """
        try:
            result: _T = await self._run(work)
            return result
        except OSError as error:
            if broken is not None and isinstance(error, FileNotFoundError):
                raise SyscallError(Errno.ENOENT, "there is no such file on disk") from error
            _log.error("a durable file: %s", error)
            raise SyscallError(Errno(errno_of(error)), str(error)) from error
        except FormatError as error:
            if broken is not None:
                raise SyscallError(broken, str(error)) from error
            raise RefusedError("bad-file", str(error)) from error
        except OtherModelError as error:
            raise RefusedError("other-model", str(error)) from error

    def check_quota(self, tenant: Tenant, held: int, size: int, slack: int = 0) -> None:
        """Check that a tenant with `held` bytes may write `size` more; LimitError."""
        most = tenant.limits.durable_bytes
        if held + size > most + slack:
            detail = f"{tenant.name} has {held} of {most} bytes on disk"
            raise tenant.refusal("kv_durable_bytes", detail)
        if not self.directory.space.allows(held, size):
            detail = f"{tenant.name} has {held} bytes on disk, and would leave less to others"
            raise tenant.refusal("disk_bytes", detail)


class BackgroundTasks:
    """Tasks that are not awaited; `failed` gets their exceptions: kernel bugs."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def wait_all(self, *, cancel: bool) -> None:
        """Wait for all tasks and those that they start, or cancel them."""
        while self._tasks:
            if cancel:
                for task in tuple(self._tasks):
                    task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
