"""The gateway's requests on KV files that may wait: remove, download and upload.

    kv_remove    {tenant, path} -> 0
    kv_download  {tenant, path} -> {transfer, bytes}
    kv_read      {tenant, transfer, offset, bytes} -> bytes
    kv_upload    {tenant, bytes} -> {transfer}
    kv_write     {tenant, transfer, data} -> bytes so far
    kv_put       {tenant, transfer, path, replace, public, expires_ms, rebuild} -> as kv_stat, or
                 {refused, detail} of a file that is not taken
    kv_close     {tenant, transfer} -> 0
    kv_changes   {tenant} -> changes of its names that wait for the disk

Pieces are small and requested one by one, so that a large file delays no other request. Transfers
end with the kernel: after a restart, requests without a reply are answered with EIO.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from symphony_kernel.kvfs.durable.background import BackgroundTasks
from symphony_kernel.kvfs.durable.disk_io import RefusedError
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.durable.transfers import Transfers
from symphony_kernel.kvfs.name_tree import parse_path
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.syscalls.names import NameCalls


class FileRequests:
    """Answers these requests through `answer`; `happen` as `DurableNames` has it.

    `turn_over` sends replies that follow from no frame and no internal event.
    """

    # Fields that belong to the process and are not in a snapshot.
    OWN: ClassVar = (
        "_named", "_durable_names", "_transfers", "_answer", "_happen", "_turn_over", "_tasks",
        "_pieces",
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
        self.pending: dict[int, None] = {}  # requests that wait for disk or device
        self._named = named
        self._durable_names = durable_names
        self._transfers = transfers
        self._answer = answer
        self._happen = happen
        self._turn_over = turn_over
        self._tasks = BackgroundTasks(failed)
        self._pieces: dict[str, tuple[Callable[..., Coroutine[Any, Any, Any]], dict[str, type]]] = {
            "kv_download": (self._download, {"path": str}),
            "kv_read": (transfers.read, {"transfer": int, "offset": int, "bytes": int}),
            "kv_upload": (self._upload, {"bytes": int}),
            "kv_write": (transfers.write, {"transfer": int, "data": bytes}),
        }

    def handle(self, ask: m.Ask) -> bool:
        """Handle a request; return whether it is one of these."""
        if ask.what not in (*self._pieces, "kv_remove", "kv_put", "kv_close", "kv_changes"):
            return False
        try:
            self._handle(ask.seq, ask.what, dict(ask.args))
        except SyscallError as error:
            self._ended(ask.seq, error)
        return True

    def resume(self) -> None:
        """Answer requests to an earlier kernel with EIO."""
        for seq in list(self.pending):
            self._ended(seq, SyscallError(Errno.EIO, "the kernel was restarted meanwhile"))

    def detached(self) -> None:
        """End all transfers: the gateway, which would ask for the next piece, has gone."""
        self.pending.clear()
        self._transfers.close_all()

    async def close(self) -> None:
        await self._tasks.end(cancel=True)
        self._transfers.close_all()

    # -- Requests -------------------------------------------------------------------------------
    def _handle(self, seq: int, what: str, args: dict[str, Any]) -> None:
        if what == "kv_remove":
            tenant, path = _values(args, {"tenant": str, "path": str})
            if self._durable_names.remove(tenant, parse_path(path), partial(self._ended, seq)):
                self._ended(seq, None)
        elif what == "kv_close":
            tenant, number = _values(args, {"tenant": str, "transfer": int})
            self._transfers.close(tenant, number)
            self._ended(seq, None)
        elif what == "kv_changes":
            (tenant,) = _values(args, {"tenant": str})
            self._reply(seq, self._durable_names.waiting(tenant))
        elif what == "kv_put":
            self._handle_put(seq, args)
        else:
            work, wanted = self._pieces[what]
            values = _values(args, {"tenant": str, **wanted})
            self.pending[seq] = None
            if self._durable_names.live:
                self._tasks.spawn(self._run_piece(seq, work(*values)))

    def _handle_put(self, seq: int, args: dict[str, Any]) -> None:
        wanted: dict[str, type] = {"tenant": str, "transfer": int, "path": str}
        options: dict[str, type] = {"replace": bool, "public": bool, "expires_ms": int}
        tenant, number, path, *given = _values(args, {**wanted, **options, "rebuild": bool})
        parsed = parse_path(path)
        self.pending[seq] = None
        if self._durable_names.live:
            upload = self._transfers.take_upload(tenant, number)
            arguments = [seq, tenant, parsed, str(upload), *given]
            # Not in this frame: the event is recorded apart, since it depends on a file.
            asyncio.get_running_loop().call_soon(self._happen, "uploaded", arguments)

    def uploaded(
        self,
        seq: int,
        tenant: str,
        path: str,
        upload: str,
        replace: bool,
        public: bool,
        expires_ms: int,
        recompute: bool,
    ) -> None:
        try:
            self._durable_names.put(
                tenant,
                path,
                Path(upload),
                partial(self._put, seq, tenant, path),
                replace=replace,
                public=public,
                expires_ms=expires_ms,
                rebuild=recompute,
            )
        except SyscallError as error:
            self._durable_names.discard(Path(upload))
            self._transfers.settled(tenant)
            self._ended(seq, error)

    def _put(self, seq: int, tenant: str, path: str, error: SyscallError | None) -> None:
        self._transfers.settled(tenant)
        if isinstance(error, RefusedError):
            self._reply(seq, {"refused": error.kind, "detail": error.detail})
        elif error is not None:
            self._ended(seq, error)
        else:
            self._reply(seq, self._named.kv_stat(tenant, path))

    # -- Pieces ---------------------------------------------------------------------------------
    async def _download(self, tenant: str, path: str) -> dict[str, int]:
        number, size = await self._transfers.open_download(tenant, parse_path(path))
        return {"transfer": number, "bytes": size}

    async def _upload(self, tenant: str, size: int) -> dict[str, int]:
        return {"transfer": await self._transfers.open_upload(tenant, size)}

    async def _run_piece(self, seq: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await work
        except SyscallError as error:
            self._ended(seq, error)
        else:
            self._reply(seq, value)
        self._turn_over()

    # -- Answers --------------------------------------------------------------------------------
    def _ended(self, seq: int, error: SyscallError | None) -> None:
        if error is None:
            self._reply(seq, 0)
        else:
            self.pending.pop(seq, None)
            self._answer(m.Answer(seq, -error.errno, error.detail))

    def _reply(self, seq: int, value: Any) -> None:
        self.pending.pop(seq, None)
        self._answer(m.Answer(seq, 0, value))


def _values(args: dict[str, Any], wanted: dict[str, type]) -> list[Any]:
    """Return the arguments in the order of `wanted`; EINVAL unless exactly these."""
    if set(args) != set(wanted) or any(type(args[key]) is not wanted[key] for key in wanted):
        words = ", ".join(f"{key}: {kind.__name__}" for key, kind in wanted.items())
        raise SyscallError(Errno.EINVAL, f"arguments must be {words}")
    return [args[key] for key in wanted]
