"""Runs as they happen: server-sent events, and a WebSocket for both directions."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from functools import partial

from aiohttp import WSMsgType, web
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX

from symphony_runtime.gateway.api.results import message_json
from symphony_runtime.gateway.connections.slow_readers import WRITING
from symphony_runtime.gateway.errors import Problem, has_gone
from symphony_runtime.gateway.http.context import (
    flag,
    number,
    run_beside,
    services,
    tenant_of,
    to_json,
)
from symphony_runtime.gateway.http.responses import EVENT_STREAM
from symphony_runtime.gateway.runs.events.reader import Event
from symphony_runtime.gateway.runs.events.stream import Reader
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import Record
from symphony_runtime.gateway.runs.service import Runs

_HEARTBEAT_SECONDS = 15.0  # so that proxies and the server notice a lost client
_INBOX_SECONDS = 0.05  # between attempts at a full inbox
_EVENTS_MAX = 1 << 40
_FINAL, _CONTINUATION = 0x80, 0
_SHORT, _LONG = struct.Struct("!BB"), struct.Struct("!BBH")
_LONGEST = struct.Struct("!BBQ")


async def get_events(request: web.Request) -> web.StreamResponse:
    """Follow a run from its beginning, or from the event after Last-Event-ID."""
    run = await services(request).runs.find(tenant_of(request), request.match_info["run"])
    follow = flag(request, "follow", default=True)
    return await stream_events(request, run, _resume_point(request), follow=follow)


async def stream_events(
    request: web.Request,
    run: Run | Record,
    after: int,
    *,
    follow: bool = True,
    headers: dict[str, str] | None = None,
) -> web.StreamResponse:
    """Answer with the events after an id: to the last one, or those that exist now."""
    run_id = run.record.id if isinstance(run, Run) else run.id
    response = web.StreamResponse(
        headers={
            **EVENT_STREAM,
            "Location": f"/v1/runs/{run_id}",
            "X-Run-Id": run_id,
            **(headers or {}),
        }
    )
    with contextlib.closing(services(request).runs.open_reader(run, after)) as reader:
        await response.prepare(request)
        patience = _HEARTBEAT_SECONDS if follow else 0
        while (batch := await reader.next(patience)) is not None and (batch or follow):
            data = b"".join(map(encode_event, batch))
            del batch  # only the unread bytes stay in memory
            await response.write(data or b": still there\n\n")
            del data
            await request.writer.drain()
        await response.write_eof()
    return response


def encode_event(event: Event) -> bytes:
    """Return an event as text/event-stream; the joined parts of one are the whole event."""
    return _wrapped(event, b"id: %d\nevent: %s\ndata: ", b"\n\n")


def _wrapped(event: Event, head: bytes, tail: bytes) -> bytes:
    """Return an event's data as JSON between `head`, which takes id and kind, and `tail`."""
    opening = head % (event.id, event.kind.encode()) if event.begins else b""
    closing = tail if event.ends else b""
    if event.kind != "message":
        return opening + to_json(event.data) + closing
    left = b'{"message":' if event.begins else b""
    return opening + left + message_json(event) + (b"}" + closing if event.ends else b"")


async def websocket(request: web.Request) -> web.StreamResponse:
    """Send and receive messages: text frames if they are UTF-8, else binary ones.

    It begins with the run's first message, or after the event `after`. The server closes when the
    run has ended, with its status as the reason; a client that closes ends nothing. With `events`
    the server sends all events as JSON with their ids, so that a client can resume.
    """
    encode = _as_event if flag(request, "events", default=False) else _as_message
    runs = services(request).runs
    run = await runs.find(tenant_of(request), request.match_info["run"])
    socket = web.WebSocketResponse(
        # No `heartbeat`: its ping would wait behind bytes that a slow client has not read.
        max_msg_size=MESSAGE_BYTES_MAX + 1,
        compress=False,  # it takes hundreds of kilobytes a socket
    )
    if not socket.can_prepare(request):
        raise Problem(426, "upgrade-required", "this route takes WebSocket handshakes only",
                      headers={"Upgrade": "websocket"})  # fmt: skip
    with contextlib.closing(runs.open_reader(run, _resume_point(request))) as reader:
        await socket.prepare(request)
        send = partial(_send_events, socket, request, reader, encode)
        sending = asyncio.create_task(run_beside(request, send))
        try:
            async for frame in socket:
                if frame.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    data = frame.data.encode() if frame.type is WSMsgType.TEXT else frame.data
                    await deliver_message(runs, run, data, request)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
    return socket


async def deliver_message(runs: Runs, run: Run | Record, data: bytes, request: web.Request) -> None:
    """Deliver a message; while the program's inbox is full the socket is not read."""
    while not has_gone(request):
        try:
            runs.deliver(run, data)
        except Problem as problem:
            if problem.status == 429:
                await asyncio.sleep(_INBOX_SECONDS)
                continue
            # The run has just ended; the socket closes next.
        return


# --- WebSocket frames ----------------------------------------------------------------------------
def encode_frame(opcode: int, data: bytes, *, begins: bool = True, ends: bool = True) -> bytes:
    """Return the data frame of a message, or of a part that begins or ends it (RFC 6455).

    A large message is sent in several: aiohttp would send it as one frame, all of it at once. It
    still sends pongs and the close. Such control frames may come between the frames of a message.
    """
    first = (_FINAL if ends else 0) | (opcode if begins else _CONTINUATION)
    if len(data) < 126:
        return _SHORT.pack(first, len(data)) + data
    if len(data) < 1 << 16:
        return _LONG.pack(first, 126, len(data)) + data
    return _LONGEST.pack(first, 127, len(data)) + data


async def write_frames(request: web.BaseRequest, frames: bytes) -> None:
    """Write frames; return when there is room for more. ConnectionError: the client has gone."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client has gone")
    request[WRITING].frames += len(frames)
    transport.write(frames)
    del frames
    await request.writer.drain()


Encode = Callable[[Event], tuple[int, bytes] | None]


async def _send_events(
    socket: web.WebSocketResponse, request: web.Request, reader: Reader, encode: Encode
) -> None:
    outcome = "ended"
    with contextlib.suppress(ConnectionError):  # the client has gone
        while (batch := await reader.next(_HEARTBEAT_SECONDS)) is not None:
            encoded = [] if batch else [encode_frame(WSMsgType.PING, b"")]
            for event in batch:
                if (message := encode(event)) is not None:
                    encoded.append(encode_frame(*message, begins=event.begins, ends=event.ends))
                if event.kind == "status":
                    outcome = event.data["status"]
            del batch  # only the unread bytes stay in memory
            await write_frames(request, b"".join(encoded))
        await socket.close(message=outcome.encode())


def _as_message(event: Event) -> tuple[int, bytes] | None:
    """Return a message as its bytes or text, None for any other event."""
    if event.kind != "message":
        return None
    return WSMsgType.TEXT if event.is_text else WSMsgType.BINARY, event.data


def _as_event(event: Event) -> tuple[int, bytes]:
    """Return an event in one JSON object."""
    return WSMsgType.TEXT, _wrapped(event, b'{"id":%d,"event":"%s","data":', b"}")


def _resume_point(request: web.Request) -> int:
    text = request.headers.get("Last-Event-ID") or request.query.get("after") or "0"
    return number(text, "Last-Event-ID", 0, _EVENTS_MAX)
