"""Calls under way. Calls that are made in one pass of the event loop go out in one frame.

    start(name, arguments) -> Ticket      packed at once, sent at the end of the pass
    frames of answers -> feed             each answer completes its ticket

A ticket that is cancelled, as awaiting it in a task that is cancelled does, drops its work at the
server.
"""

import asyncio
import collections
import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgpack

from symphony.attached.connection import MESSAGE_BYTES_MAX, Connection
from symphony.attached.errors import (
    EFBIG,
    ConnectionLost,
    RunEnded,
    SymphonyError,
    call_error,
)
from symphony.attached.facts import Info, read_info

T = TypeVar("T")
PROTOCOL = 1
_HEAD_BYTES = 5
_HELLO_BITS = 62
_PART = 1  # status of an answer that more follow
_pack = msgpack.Packer(use_bin_type=True).pack


class Ticket(asyncio.Future[T], Generic[T]):
    """A call under way; awaiting it gives its result, or raises the errno's exception.

    The call was made when the ticket was, not when it is first awaited. Cancelling it drops the
    work at the server.
    """

    def __init__(
        self, calls: "Calls", number: int, name: str, decode: Callable[[Any], T] | None
    ) -> None:
        super().__init__(loop=calls.loop)
        self._calls, self._number, self._call, self._decode = calls, number, name, decode
        self._parts: list[bytes] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            self._calls.forget(self._number)
        return super().cancel(msg)

    def feed(self, status: int, value: Any) -> bool:
        """Take an answer; return whether it is the last."""
        if status == _PART:
            self._parts = [*(self._parts or ()), value]
            return False
        if self.done():
            return True
        if status < 0:
            self.set_exception(call_error(self._call, -status, value))
            return True
        if self._parts is not None:
            value = b"".join([*self._parts, value])
        try:
            self.set_result(value if self._decode is None else self._decode(value))
        except Exception as error:
            self.set_exception(error)
        return True

    def fail(self, error: SymphonyError) -> None:
        if not self.done():
            self.set_exception(error)
            self.exception()  # a ticket that nothing awaits needs no warning


class Pieces:
    """A call whose result comes in pieces, until an empty one."""

    def __init__(self, calls: "Calls", number: int, name: str) -> None:
        self._calls, self._number, self._call = calls, number, name
        self._ready: collections.deque[bytes] = collections.deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: SymphonyError | None = None
        self.ended = False

    async def next(self) -> bytes:
        """Return all pieces that have come, joined, at least one; nothing after the last."""
        while not self._ready and not self.ended:
            self._waiter = self._calls.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._ready:
            pieces = b"".join(self._ready)
            self._ready.clear()
            return pieces
        if self._error is not None:
            raise self._error
        return b""

    def cancel(self) -> None:
        """Drop what is left of the work."""
        if not self.ended:
            self.ended = True
            self._calls.forget(self._number)

    def drop(self) -> None:
        """Drop what is left, from whichever thread collects garbage."""
        if self.ended:
            return
        try:
            here = asyncio.get_running_loop() is self._calls.loop
        except RuntimeError:
            here = False
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the run has ended
            self.cancel() if here else self._calls.loop.call_soon_threadsafe(self.cancel)

    def feed(self, status: int, value: Any) -> bool:
        if status < 0:
            self.fail(call_error(self._call, -status, value))
            return True
        if value:
            self._ready.append(value)
        self.ended = self.ended or status != _PART
        self._wake()
        return self.ended

    def fail(self, error: SymphonyError) -> None:
        self._error, self.ended = error, True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Calls:
    """The calls of one connection. Use it in the event loop that made it."""

    def __init__(self, connection: Connection) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = connection
        self.frames = 0  # sent, for measurements
        self.closing: list[int] = []  # files that are not used any more, of any thread
        self._number = 0
        self._pending: dict[int, Ticket[Any] | Pieces] = {}
        self._out: list[bytes] = []
        self._size = _HEAD_BYTES
        self._scheduled = False
        self._waiting: collections.deque[bytes] = collections.deque()  # frames
        self._sending: asyncio.Task[None] | None = None
        self._receiving = asyncio.create_task(self._receive())
        self._ended: SymphonyError | None = None

    # -- Making calls --------------------------------------------------------------------------
    def start(
        self, name: str, arguments: dict[str, Any], decode: Callable[[Any], T] | None = None
    ) -> Ticket[T]:
        """Make a call; `decode` makes its result of the answer."""
        self._number = number = self._number + 1
        ticket = Ticket(self, number, name, decode)
        self._post(number, name, arguments, ticket)
        return ticket

    def start_pieces(self, name: str, arguments: dict[str, Any]) -> Pieces:
        """Make a call whose result comes in pieces."""
        self._number = number = self._number + 1
        pieces = Pieces(self, number, name)
        self._post(number, name, arguments, pieces)
        return pieces

    def post(self, name: str, arguments: dict[str, Any]) -> None:
        """Make a call without an answer: a failure of it shows in later calls."""
        if self._ended is None:
            self._add(_pack((0, name, arguments)))

    def forget(self, number: int) -> None:
        """Drop the work of a call."""
        if self._pending.pop(number, None) is not None:
            self.post("cancel", {"call": number})

    def _post(
        self, number: int, name: str, arguments: dict[str, Any], waiter: Ticket[Any] | Pieces
    ) -> None:
        if self._ended is not None:
            raise self._ended
        packed = cast("bytes", _pack((number, name, arguments)))
        if len(packed) + _HEAD_BYTES > MESSAGE_BYTES_MAX:
            raise EFBIG(name, f"the call has more than {MESSAGE_BYTES_MAX} bytes")
        self._pending[number] = waiter
        self._add(packed)

    def _add(self, packed: bytes) -> None:
        if self._size + len(packed) > MESSAGE_BYTES_MAX:
            self._close_frame()
        self._out.append(packed)
        self._size += len(packed)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    # -- Frames --------------------------------------------------------------------------------
    def _close_frame(self) -> None:
        head = b"\xdd" + len(self._out).to_bytes(4, "big")
        self._waiting.append(head + b"".join(self._out))
        self._out.clear()
        self._size = _HEAD_BYTES

    def _flush(self) -> None:
        while self.closing:
            self._add(_pack((0, "kv_close", {"kv": self.closing.pop()})))
        self._scheduled = False
        self._close_frame()
        if self._sending is None:
            self._sending = self.loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting:
                self.frames += 1
                await self.connection.send(self._waiting.popleft())
        except (ConnectionError, RuntimeError):
            self._waiting.clear()  # the receiver says why
        finally:
            self._sending = None

    async def _receive(self) -> None:
        try:
            while (frame := await self.connection.receive()) is not None:
                for number, status, value in msgpack.unpackb(frame):
                    waiter = self._pending.get(number)
                    if waiter is not None and waiter.feed(status, value):
                        self._pending.pop(number, None)
        finally:
            self._end()

    def _end(self) -> None:
        connection = self.connection
        if connection.outcome:
            status, reason = connection.outcome.get("status", ""), connection.outcome.get("reason")
            self._ended = RunEnded(connection.run, str(status), str(reason or ""))
        else:
            words = connection.words or "the connection to the server was lost"
            self._ended = ConnectionLost(f"{words} (run {connection.run})")
        pending, self._pending = self._pending, {}
        for waiter in pending.values():
            waiter.fail(self._ended)

    # -- The beginning and the end -------------------------------------------------------------
    async def greet(self) -> tuple[dict[str, Any], Info]:
        """Say hello; return what the server has of the run, and its model.

        What an earlier client had under way is dropped.
        """
        # An earlier client's answers may come first: none of them has these numbers.
        self._number = secrets.randbits(_HELLO_BITS)
        hello = self.start("hello", {"version": PROTOCOL}, msgpack.unpackb)
        info = self.start("model_info", {}, read_info)
        left = cast("dict[str, Any]", await hello)
        self._number = 0
        return left, await info

    @property
    def ended(self) -> SymphonyError | None:
        """Why no call can be made any more."""
        return self._ended

    async def close(self, *, exits: bool) -> None:
        """Close the connection; with `exits` the program ends first, by itself."""
        if exits and self._ended is None:
            self.post("exit", {})
            await asyncio.wait([self._receiving], timeout=_EXIT_SECONDS)
        else:
            await asyncio.sleep(0)  # what was made in this pass goes out
            if self._sending is not None:
                await asyncio.wait([self._sending])
        await self.connection.close()
        self._receiving.cancel()
        await asyncio.wait([self._receiving])


_EXIT_SECONDS = 5.0
