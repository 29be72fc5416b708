"""Transfers: KV files on their way to and from the gateway, piece by piece.

Each transfer is an open file with a number. A download reads a file that does not change when
its name does. An upload writes a file that gets a name after it has been checked
(`DurableNames.put_upload`). Transfers end with the kernel, and when the next piece is not requested
in time.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from symphony_kernel.kvfs.durable.disk import Disk
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.name_tree import parse_path
from symphony_kernel.platform.disk_space import FreeSpace
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    KV_CHUNK_BYTES_MAX,
    KV_HEADER_BYTES_MAX,
    KV_TRANSFER_IDLE_SECONDS_MAX,
    KV_TRANSFERS_MAX,
    TENANT_KV_TRANSFERS_MAX,
)


@dataclass(slots=True, eq=False)
class Transfer:
    """A file that is being sent or received."""

    tenant: str
    descriptor: int
    path: Path | None  # of an upload; None of a download
    size: int  # bytes in the file; of an upload so far
    used_s: float  # when a piece was last requested
    busy: bool = False  # a thread reads or writes it
    closed: bool = False


class Transfers:
    """All transfers; `now` gives seconds, `bytes_max` bounds the bytes of a file."""

    def __init__(
        self, durable_names: DurableNames, now: Callable[[], float], bytes_max: int
    ) -> None:
        self._durable_names = durable_names
        self._now = now
        self._bytes_max = bytes_max
        self._open: dict[int, Transfer] = {}
        self._made = 0
        self._pending: list[str] = []  # tenants of transfers that are being opened or named

    # -- Downloads ------------------------------------------------------------------------------
    async def open_download(self, tenant: str, path: str) -> dict[str, int]:
        """Open a named file for sending; return transfer number and bytes of the file.

        ENOENT; EAGAIN (too many transfers); EIO (it is broken); ENOSPC; ENOSYS.
        """
        path = parse_path(path)
        with self._reserve(tenant):
            descriptor = await self._durable_names.open_download(tenant, path)
        size = os.fstat(descriptor).st_size
        number = self._add(Transfer(tenant, descriptor, None, size, self._now()))
        return {"transfer": number, "bytes": size}

    async def read(self, tenant: str, number: int, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a download, from `offset`; EBADF, EINVAL."""
        transfer = self._get(tenant, number, upload=False)
        if not 0 <= offset <= transfer.size or not 0 < size <= KV_CHUNK_BYTES_MAX:
            raise SyscallError(Errno.EINVAL, f"at most {KV_CHUNK_BYTES_MAX} bytes within the file")
        work = partial(os.pread, transfer.descriptor, size, offset)
        data: bytes = await self._use(transfer, work)
        return data

    # -- Uploads --------------------------------------------------------------------------------
    async def open_upload(self, tenant: str, size: int) -> dict[str, int]:
        """Create a file for an upload of `size` bytes; return the transfer's number.

        EFBIG (larger than any file of the model); EDQUOT (the tenant's bytes on disk); EAGAIN;
        ENOSPC; EIO; ENOSYS.
        """
        with self._reserve(tenant) as disk:
            self._check_size(size)
            self._check_quota(tenant, size)
            path, descriptor = await disk.call(disk.directory.create_upload)
        return {"transfer": self._add(Transfer(tenant, descriptor, path, 0, self._now()))}

    async def write(self, tenant: str, number: int, data: bytes) -> int:
        """Append a piece to an upload; return its bytes so far.

        EBADF; EFBIG; EDQUOT (with the tenant's other uploads); ENOSPC; EIO.
        """
        transfer = self._get(tenant, number, upload=True)
        if len(data) > KV_CHUNK_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, f"at most {KV_CHUNK_BYTES_MAX} bytes in a piece")
        self._check_size(transfer.size + len(data))
        self._check_quota(tenant, len(data))
        space, at = self._disk().directory.space, transfer.size
        await self._use(transfer, partial(_write_all, space, transfer.descriptor, data, at))
        transfer.size += len(data)
        return transfer.size

    def take_upload(self, tenant: str, number: int) -> Path:
        """End a complete upload; return its file, which the caller owns now.

        It counts among the tenant's transfers until `end_upload`.
        """
        transfer = self._get(tenant, number, upload=True)
        assert transfer.path is not None
        path, transfer.path = transfer.path, None
        self._close(number)
        self._pending.append(tenant)
        return path

    def end_upload(self, tenant: str) -> None:
        """Uncount an upload that is named or refused, perhaps of an earlier kernel."""
        if tenant in self._pending:
            self._pending.remove(tenant)

    # -- Closing --------------------------------------------------------------------------------
    def close(self, tenant: str, number: int) -> None:
        """End a transfer, if there is one; an upload that was not taken is removed."""
        transfer = self._open.get(number)
        if transfer is not None and transfer.tenant == tenant:
            self._close(number)

    def close_idle(self) -> None:
        late = self._now() - KV_TRANSFER_IDLE_SECONDS_MAX
        for number, transfer in list(self._open.items()):
            if transfer.used_s < late and not transfer.busy:
                self._close(number)

    def close_all(self) -> None:
        for number in list(self._open):
            self._close(number)

    def __len__(self) -> int:
        return len(self._open)

    # -- Internals ------------------------------------------------------------------------------
    def _check_size(self, size: int) -> None:
        most = self._bytes_max
        if size > most:
            raise SyscallError(Errno.EFBIG, f"no file of this model has over {most} bytes")

    def _check_quota(self, tenant: str, size: int) -> None:
        """Check that the tenant may have `size` bytes more on disk, its uploads included."""
        owner = self._durable_names.kvfs.tenant(tenant)
        mine = (each for each in self._open.values() if each.tenant == tenant and each.path)
        held = owner.durable_bytes + sum(each.size for each in mine)
        self._disk().check_quota(owner, held, size, slack=KV_HEADER_BYTES_MAX)

    def _disk(self) -> Disk:
        disk = self._durable_names.disk
        if disk is None:
            raise SyscallError(Errno.ENOSYS, "this kernel has no directory for KV files")
        return disk

    @contextlib.contextmanager
    def _reserve(self, tenant: str) -> Iterator[Disk]:
        """Count a transfer while it is being opened; SyscallError EAGAIN, ENOSYS."""
        disk = self._disk()
        self.close_idle()
        tenants = [*self._pending, *(transfer.tenant for transfer in self._open.values())]
        if tenants.count(tenant) >= TENANT_KV_TRANSFERS_MAX or len(tenants) >= KV_TRANSFERS_MAX:
            raise SyscallError(Errno.EAGAIN, "too many transfers of KV files are open")
        self._pending.append(tenant)
        try:
            yield disk
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
        transfer.used_s = self._now()
        return transfer

    async def _use(self, transfer: Transfer, work: Callable[[], bytes | None]) -> bytes:
        transfer.busy = True
        try:
            return await self._disk().call(work) or b""
        finally:
            transfer.busy = False
            if transfer.closed:  # while the thread used the descriptor
                _release(transfer)

    def _close(self, number: int) -> None:
        transfer = self._open.pop(number)
        transfer.closed = True
        if not transfer.busy:
            _release(transfer)


def _release(transfer: Transfer) -> None:
    os.close(transfer.descriptor)
    if transfer.path is not None:
        transfer.path.unlink(missing_ok=True)


def _write_all(space: FreeSpace, descriptor: int, data: bytes, offset: int) -> None:
    space.check(len(data))
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
