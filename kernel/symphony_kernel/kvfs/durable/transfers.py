"""Transfers: KV files on their way to and from the gateway, piece by piece.

Each is an open file that a number stands for. A download reads a file that stays as it is, whatever
becomes of its name; an upload writes a file that is nobody's until it has been checked (`DurableNames`).
They live as long as the kernel, and end when nobody asks for the next piece.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from symphony_kernel.kvfs.durable.directory import Directory, errno_of
from symphony_kernel.kvfs.durable.disk_io import Run
from symphony_kernel.kvfs.durable.format import Content, FormatError, Identity, Label
from symphony_kernel.kvfs.durable.names import Device, DurableNames, lineage_of
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.platform.disk_space import FreeSpace
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    KV_CHUNK_BYTES_MAX,
    KV_HEADER_BYTES_MAX,
    KV_TRANSFER_IDLE_SECONDS_MAX,
    KV_TRANSFERS_MAX,
    TENANT_KV_TRANSFERS_MAX,
)

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Transfer:
    """One file under way. `path` is where an upload is written, None of a download."""

    tenant: str
    descriptor: int
    path: Path | None
    size: int  # bytes that it has, or has got so far
    used_s: float  # when somebody last asked
    busy: bool = False  # a thread is at it
    closed: bool = False


@dataclass(slots=True)
class Transfers:
    """All transfers; `now` gives seconds."""

    kvfs: KVFS
    saving: DurableNames
    directory: Directory | None
    identity: Callable[[], Identity]
    run: Run
    device: Device
    now: Callable[[], float]
    bytes_max: int  # of any file
    _open: dict[int, Transfer] = field(default_factory=dict)
    _made: int = 0
    _pending: list[str] = field(default_factory=list)  # tenants of what is opened, or taken

    # -- Downloads ------------------------------------------------------------------------------
    async def open_download(self, tenant: str, path: str) -> tuple[int, int]:
        """Begin to send a named file; return the transfer's number and the file's bytes.

        Raises:
            SyscallError: ENOENT; EAGAIN (too many transfers); EIO (it is broken); ENOSPC; ENOSYS.
        """
        with self._place(tenant) as directory:
            descriptor = await self._begin_download(directory, tenant, path)
        size = os.fstat(descriptor).st_size
        return self._add(Transfer(tenant, descriptor, None, size, self.now())), size

    async def _begin_download(self, directory: Directory, tenant: str, path: str) -> int:
        named = self.kvfs.named(tenant, path)
        if named.error is not None:
            raise SyscallError(named.error, path)
        name = named.name
        assert name is not None
        if name.durable:
            work = partial(directory.open_checked, named.tenant, named.path)
            return await _blocking(self.run, work)
        self.saving.lend(named)
        try:
            kv = await self.device.read(named)
            lineage = lineage_of(named)
            content = Content(named.tokens, named.positions, named.plain, lineage, kv)
            label = Label(named.tenant, path, named.length, name.public, named.expires_ms)
            write = partial(directory.write_unnamed, label, self.identity, content)
            return await _blocking(self.run, write)
        finally:
            self.saving.take_back(named)

    async def read(self, tenant: str, number: int, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a download, from `offset`; SyscallError EBADF, EINVAL."""
        transfer = self._get(tenant, number, upload=False)
        if not 0 <= offset <= transfer.size or not 0 < size <= KV_CHUNK_BYTES_MAX:
            raise SyscallError(Errno.EINVAL, f"at most {KV_CHUNK_BYTES_MAX} bytes within the file")
        work = partial(os.pread, transfer.descriptor, size, offset)
        data: bytes = await self._use(transfer, work)
        return data

    # -- Uploads --------------------------------------------------------------------------------
    async def open_upload(self, tenant: str, size: int) -> int:
        """Begin to take a file of `size` bytes; return the transfer's number.

        Raises:
            SyscallError: EFBIG (no file that the model could hold is so large); EDQUOT (the
                tenant's bytes on disk); EAGAIN; ENOSPC; EIO; ENOSYS.
        """
        with self._place(tenant) as directory:
            self._check_size(size)
            self._check_quota(tenant, size)
            path, descriptor = await _blocking(self.run, directory.begin_upload)
        return self._add(Transfer(tenant, descriptor, path, 0, self.now()))

    async def write(self, tenant: str, number: int, data: bytes) -> int:
        """Append a piece to an upload; return its bytes so far.

        Raises:
            SyscallError: EBADF; EFBIG; EDQUOT (with all that the tenant is sending); ENOSPC; EIO.
        """
        transfer = self._get(tenant, number, upload=True)
        if len(data) > KV_CHUNK_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, f"at most {KV_CHUNK_BYTES_MAX} bytes in a piece")
        self._check_size(transfer.size + len(data))
        self._check_quota(tenant, len(data))
        assert self.directory is not None
        space, at = self.directory.space, transfer.size
        await self._use(transfer, partial(_write_all, space, transfer.descriptor, data, at))
        transfer.size += len(data)
        return transfer.size

    def take_upload(self, tenant: str, number: int) -> Path:
        """End an upload that has all its bytes; return its file, which is the caller's now.

        It keeps its place among the tenant's transfers until it is `settled`.
        """
        transfer = self._get(tenant, number, upload=True)
        assert transfer.path is not None
        path, transfer.path = transfer.path, None
        self._close(number)
        self._pending.append(tenant)
        return path

    def settled(self, tenant: str) -> None:
        """A file that was taken has its name, or is refused; of another kernel's life, maybe."""
        if tenant in self._pending:
            self._pending.remove(tenant)

    # -- Ends -----------------------------------------------------------------------------------
    def close(self, tenant: str, number: int) -> None:
        """End a transfer; an upload that was not taken is gone. One that is not there is fine."""
        transfer = self._open.get(number)
        if transfer is not None and transfer.tenant == tenant:
            self._close(number)

    def close_idle(self) -> None:
        """End the transfers that nobody has asked of for too long."""
        late = self.now() - KV_TRANSFER_IDLE_SECONDS_MAX
        for number, transfer in list(self._open.items()):
            if transfer.used_s < late and not transfer.busy:
                self._close(number)

    def close_all(self) -> None:
        """End all: nobody is there any more who would ask."""
        for number in list(self._open):
            self._close(number)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._open)

    # -- Inside ---------------------------------------------------------------------------------
    def _check_size(self, size: int) -> None:
        if size > self.bytes_max:
            raise SyscallError(
                Errno.EFBIG, f"no file of this model has over {self.bytes_max} bytes"
            )

    def _check_quota(self, tenant: str, size: int) -> None:
        """Check that so many bytes more may lie on disk; what is being sent counts."""
        limits = self.kvfs.tenant(tenant)
        mine = (each for each in self._open.values() if each.tenant == tenant and each.path)
        used, most = limits.durable_bytes + sum(each.size for each in mine), limits.limits
        if used + size > most.durable_bytes + KV_HEADER_BYTES_MAX:
            detail = f"{tenant} has {used} of {most.durable_bytes} bytes on disk"
            raise limits.refusal("kv_durable_bytes", detail)
        if self.directory is not None and not self.directory.space.allows(used, size):
            detail = f"{tenant} has {used} bytes on disk, and would leave less to others"
            raise limits.refusal("disk_bytes", detail)

    @contextlib.contextmanager
    def _place(self, tenant: str) -> Iterator[Directory]:
        """Keep a place for a transfer while it is being opened; SyscallError EAGAIN, ENOSYS."""
        if self.directory is None:
            raise SyscallError(Errno.ENOSYS, "this kernel has no directory for KV files")
        self.close_idle()
        tenants = [*self._pending, *(transfer.tenant for transfer in self._open.values())]
        if tenants.count(tenant) >= TENANT_KV_TRANSFERS_MAX or len(tenants) >= KV_TRANSFERS_MAX:
            raise SyscallError(Errno.EAGAIN, "too many KV files are on their way")
        self._pending.append(tenant)
        try:
            yield self.directory
        finally:
            self._pending.remove(tenant)

    def _add(self, transfer: Transfer) -> int:
        self._made += 1
        self._open[self._made] = transfer
        return self._made

    def _get(self, tenant: str, number: int, *, upload: bool) -> Transfer:
        transfer = self._open.get(number)
        if (
            transfer is None
            or transfer.tenant != tenant
            or transfer.busy
            or (transfer.path is not None) is not upload
        ):
            raise SyscallError(Errno.EBADF, "there is no such transfer")
        transfer.used_s = self.now()
        return transfer

    async def _use(self, transfer: Transfer, work: Callable[[], bytes | None]) -> bytes:
        transfer.busy = True
        try:
            return await _blocking(self.run, work) or b""
        finally:
            transfer.busy = False
            if transfer.closed:  # meanwhile: the thread has the descriptor no more
                _end(transfer)

    def _close(self, number: int) -> None:
        transfer = self._open.pop(number)
        transfer.closed = True
        if not transfer.busy:
            _end(transfer)


def _end(transfer: Transfer) -> None:
    os.close(transfer.descriptor)
    if transfer.path is not None:
        transfer.path.unlink(missing_ok=True)


async def _blocking(run: Run, work: Callable[[], _T]) -> _T:
    """Do in a thread what blocks; its errors as programs hear them."""
    try:
        return await run(work)
    except FileNotFoundError as error:
        raise SyscallError(Errno.ENOENT, "it has gone") from error
    except OSError as error:
        raise SyscallError(Errno(errno_of(error)), str(error)) from error
    except FormatError as error:
        raise SyscallError(Errno.EIO, str(error)) from error


def _write_all(space: FreeSpace, descriptor: int, data: bytes, offset: int) -> None:
    space.check(len(data))
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
