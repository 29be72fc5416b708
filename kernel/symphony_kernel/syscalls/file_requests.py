"""Requests of the gateway about KV files that wait for disk or device.

    kv_remove    {tenant, path} -> 0
    kv_download  {tenant, path} -> {transfer, bytes}
    kv_read      {tenant, transfer, offset, bytes} -> bytes
    kv_upload    {tenant, bytes} -> {transfer}
    kv_write     {tenant, transfer, data} -> bytes so far
    kv_put       {tenant, transfer, path, replace, public, expires_ms, rebuild} -> as kv_stat, or
                 {refused, detail} of an upload that is not accepted
    kv_close     {tenant, transfer} -> 0
    kv_tokens    {tenant, path, start, count} -> {len, tokens, positions}, also of a file on disk
    kv_changes   {tenant} -> changes of its names that wait for the disk

Files travel in small pieces, one request each, so that a large file delays no other request.
Transfers end with the kernel: after a restart all unanswered requests are answered with EIO.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

from symphony_kernel.kvfs.durable.disk import BackgroundTasks, RefusedError
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.durable.transfers import Transfers
from symphony_kernel.kvfs.name_tree import parse_path
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import KV_VIEW_TOKENS_MAX
from symphony_kernel.syscalls.names import NameCalls


class FileRequests:
    """Handles these requests through `answer`; `happen` is that of `DurableNames`.

    `turn_over` sends the answers that no frame and no event of `happen` has caused.
    """

    # Fields that the next kernel makes anew.
    OWN: ClassVar = (
        "_named", "_durable_names", "_transfers", "_answer", "_happen", "_turn_over", "_tasks",
        "_at_once", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        named: NameCalls,
        durable_names: DurableNames,
        transfers: Transfers,
        answer: Callable[[m.Answer], None],
        happen: Callable[[str, list[Any]], None],
        turn_over: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.pending: dict[int, None] = {}  # unanswered requests that wait for disk or device
        self._named = named
        self._durable_names = durable_names
        self._transfers = transfers
        self._answer = answer
        self._happen = happen
        self._turn_over = turn_over
        self._tasks = BackgroundTasks(failed)
        # The arguments of each request behind `tenant`, and what handles them.
        options: dict[str, type] = {"replace": bool, "public": bool, "expires_ms": int}
        put: dict[str, type] = {"transfer": int, "path": str, **options, "rebuild": bool}
        self._at_once: dict[str, tuple[Callable[..., None], dict[str, type]]] = {
            "kv_remove": (self._remove, {"path": str}),
            "kv_put": (self._put, put),
            "kv_close": (self._close, {"transfer": int}),
            "kv_changes": (self._count_changes, {}),
        }
        self._waiting: dict[str, tuple[Callable[..., Coroutine[Any, Any, Any]], dict[str, type]]]
        self._waiting = {
            "kv_download": (transfers.open_download, {"path": str}),
            "kv_read": (transfers.read, {"transfer": int, "offset": int, "bytes": int}),
            "kv_upload": (transfers.open_upload, {"bytes": int}),
            "kv_write": (transfers.write, {"transfer": int, "data": bytes}),
            "kv_tokens": (self._read_tokens, {"path": str, "start": int, "count": int}),
        }

    def handle(self, ask: m.Ask) -> bool:
        """Handle a request if it is one of these; return whether it is."""
        at_once, waiting = self._at_once.get(ask.what), self._waiting.get(ask.what)
        try:
            if at_once is not None:
                at_once[0](ask.seq, *_values(ask.args, at_once[1]))
            elif waiting is not None:
                values = _values(ask.args, waiting[1])
                self.pending[ask.seq] = None
                if self._durable_names.live:
                    self._tasks.spawn(self._run(ask.seq, waiting[0](*values)))
            else:
                return False
        except SyscallError as error:
            self._end(ask.seq, error)
        return True

    def resume(self) -> None:
        """Answer the requests that the kernel before this one has left."""
        for seq in list(self.pending):
            self._end(seq, SyscallError(Errno.EIO, "the kernel was restarted meanwhile"))

    def detached(self) -> None:
        """Drop all requests and transfers of a gateway that has disconnected."""
        self.pending.clear()
        self._transfers.close_all()

    async def close(self) -> None:
        """Cancel all requests and end all transfers."""
        await self._tasks.wait_all(cancel=True)
        self._transfers.close_all()

    # -- Requests -------------------------------------------------------------------------------
    def _remove(self, seq: int, tenant: str, path: str) -> None:
        if self._durable_names.remove(tenant, parse_path(path), partial(self._end, seq)):
            self._end(seq, None)

    def _close(self, seq: int, tenant: str, number: int) -> None:
        self._transfers.close(tenant, number)
        self._end(seq, None)

    def _count_changes(self, seq: int, tenant: str) -> None:
        self._reply(seq, self._durable_names.count_changes(tenant))

    def _put(self, seq: int, tenant: str, number: int, path: str, *options: Any) -> None:
        parsed = parse_path(path)
        self.pending[seq] = None
        if self._durable_names.live:
            upload = self._transfers.take_upload(tenant, number)
            arguments = [seq, tenant, parsed, str(upload), *options]
            # In a later turn: the journal does not record events that a frame causes, and this
            # one depends on a file, which replay does not have.
            asyncio.get_running_loop().call_soon(self._happen, "uploaded", arguments)

    def uploaded(self, seq: int, tenant: str, path: str, upload: str, *options: Any) -> None:
        """Name the file of a complete upload; options as of `DurableNames.put_upload`."""
        done = partial(self._end_put, seq, tenant, path)
        try:
            self._durable_names.put_upload(tenant, path, upload, done, *options)
        except SyscallError as error:
            self._durable_names.discard_upload(upload)
            self._transfers.end_upload(tenant)
            self._end(seq, error)

    def _end_put(self, seq: int, tenant: str, path: str, error: SyscallError | None) -> None:
        self._transfers.end_upload(tenant)
        if isinstance(error, RefusedError):
            self._reply(seq, {"refused": error.kind, "detail": error.detail})
        elif error is not None:
            self._end(seq, error)
        else:
            self._reply(seq, self._named.kv_stat(tenant, path))

    async def _read_tokens(self, tenant: str, path: str, start: int, count: int) -> dict[str, Any]:
        """Return entries from `start` on: tokens as u32, positions as i32, little-endian."""
        if start < 0 or not 0 < count <= KV_VIEW_TOKENS_MAX:
            raise SyscallError(Errno.EINVAL, f"start from 0, count from 1 to {KV_VIEW_TOKENS_MAX}")
        parsed, names = parse_path(path), self._durable_names
        length, tokens, positions = await names.read_entries(tenant, parsed, start, count)
        return {
            "len": length,
            "tokens": tokens.astype("<u4").tobytes(),
            "positions": positions.astype("<i4").tobytes(),
        }

    async def _run(self, seq: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await work
        except SyscallError as error:
            self._end(seq, error)
        else:
            self._reply(seq, value)
        self._turn_over()

    # -- Answers --------------------------------------------------------------------------------
    def _end(self, seq: int, error: SyscallError | None) -> None:
        if error is None:
            self._reply(seq, 0)
        else:
            self.pending.pop(seq, None)
            self._answer(m.Answer(seq, -error.errno, error.detail))

    def _reply(self, seq: int, value: Any) -> None:
        self.pending.pop(seq, None)
        self._answer(m.Answer(seq, 0, value))


def _values(args: dict[str, Any], behind_tenant: dict[str, type]) -> list[Any]:
    """Return the arguments in order; EINVAL unless they are exactly the wanted ones."""
    wanted = {"tenant": str, **behind_tenant}
    if set(args) != set(wanted) or any(type(args[key]) is not wanted[key] for key in wanted):
        words = ", ".join(f"{key}: {kind.__name__}" for key, kind in wanted.items())
        raise SyscallError(Errno.EINVAL, f"arguments must be {words}")
    return [args[key] for key in wanted]
