"""The handler of attached programs: a WebSocket whose frames are calls and their results."""

import asyncio
import contextlib
import json
import sys
from functools import partial
from socket import AF_INET, AF_INET6, IPPROTO_TCP

from aiohttp import WSMsgType, web
from symphony_kernel.protocol.limits import ATTACH_QUERY_BYTES_MAX, MESSAGE_BYTES_MAX

from symphony_runtime.gateway.api.requests import parse_run
from symphony_runtime.gateway.api.run_streams import deliver_message, encode_frame, write_frames
from symphony_runtime.gateway.attached.runs import ATTACHED, AttachedRun
from symphony_runtime.gateway.connections.slow_readers import WRITING
from symphony_runtime.gateway.errors import Problem, bad_request
from symphony_runtime.gateway.http.context import flag, run_beside, services, tenant_of, to_json
from symphony_runtime.gateway.runs.record import RunRequest

if sys.platform == "linux":
    from socket import TCP_USER_TIMEOUT

_HEARTBEAT_SECONDS = 15.0
_TAKEN_UP = 4001  # the close code of a connection whose run another one has taken up


async def attach(request: web.Request) -> web.StreamResponse:
    """Start a run that makes a client's calls, or take one up.

    Binary frames are the program's, both ways. The server's own are text: the first names the run,
    the last says how it has ended.
    """
    server, tenant, parks = request.app[ATTACHED], tenant_of(request), flag(request, "park")
    taken, wanted = None, _wanted(request)
    if "run" in request.query:
        taken = await server.find(tenant, request.query["run"])
    socket = web.WebSocketResponse(max_msg_size=MESSAGE_BYTES_MAX + 1, compress=False)
    if not socket.can_prepare(request):
        raise Problem(426, "upgrade-required", "this route takes WebSocket handshakes only",
                      headers={"Upgrade": "websocket"})  # fmt: skip
    attached = taken or await server.start(tenant, wanted)
    sending: asyncio.Task[None] | None = None
    beating = asyncio.create_task(run_beside(request, partial(_beat, request)))
    try:
        await socket.prepare(request)
        _bound_silence(request)
        request[WRITING].held = lambda: attached.frames.waiting
        send = partial(_send_frames, socket, request, attached)
        sending = await attached.take_up(
            partial(run_beside, request, send), partial(_dismiss, request)
        )
        attached.parks = parks
        async for frame in socket:
            if frame.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                data = frame.data.encode() if frame.type is WSMsgType.TEXT else frame.data
                await deliver_message(services(request).runs, attached.run, data, request)
    finally:
        beating.cancel()
        if sending is not None:
            sending.cancel()
            await asyncio.wait([sending])
        server.leave(attached, sending)
    return socket


async def _send_frames(
    socket: web.WebSocketResponse, request: web.Request, attached: AttachedRun
) -> None:
    run = attached.run
    with contextlib.suppress(ConnectionError):  # the client has gone
        greeting = to_json({"run": run.record.id})
        await write_frames(request, encode_frame(WSMsgType.TEXT, greeting))
        while messages := await attached.frames.next_messages():
            size = sum(map(len, messages))
            try:
                encoded = [encode_frame(WSMsgType.BINARY, message) for message in messages]
                del messages  # only the unread bytes stay in memory
                await write_frames(request, b"".join(encoded))
            finally:
                attached.note_sent(size)
        end = run.end or run.record
        await write_frames(request, encode_frame(WSMsgType.TEXT, to_json(end.outcome())))
        await socket.close(message=end.status.encode())


def _bound_silence(request: web.Request) -> None:
    """Let the system close a connection once two pings are not acknowledged.

    The client's system acknowledges them, also while its program computes or is halted in a
    debugger, and answers no ping. So this waits for no pong, as aiohttp's `heartbeat` does.
    """
    if request.transport is None:  # the client has gone already
        return
    connection = request.transport.get_extra_info("socket")
    if sys.platform == "linux" and connection.family in (AF_INET, AF_INET6):
        milliseconds = int(2_000 * _HEARTBEAT_SECONDS)
        connection.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds)


async def _beat(request: web.Request) -> None:
    """Ping a client, so that the server notices a lost one (`_bound_silence`)."""
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            await write_frames(request, encode_frame(WSMsgType.PING, b""))


def _dismiss(request: web.Request) -> None:
    """Close a connection whose run another one has taken up."""
    if request.transport is not None and not request.transport.is_closing():
        reason = _TAKEN_UP.to_bytes(2, "big") + b"another client has taken the run up"
        request.transport.write(encode_frame(WSMsgType.CLOSE, reason))
        request.transport.close()


def _wanted(request: web.Request) -> RunRequest:
    """Return the run that the query asks for; Problem 400."""
    body: dict[str, object] = {"trace": flag(request, "trace")}
    for name in ("limits", "priority"):
        text = request.query.get(name)
        if text is None:
            continue
        if len(text) > ATTACH_QUERY_BYTES_MAX:
            raise bad_request("bad-request", f"`{name}` is longer than {ATTACH_QUERY_BYTES_MAX}")
        try:
            body[name] = json.loads(text)
        except (ValueError, RecursionError):
            raise bad_request("bad-request", f"`{name}` must be JSON") from None
    if "model" in request.query:
        body["model"] = request.query["model"]
    limits = services(request).runs.limits.of(tenant_of(request))
    wanted = parse_run(body, limits)
    return RunRequest(
        limits=wanted.limits,
        priority=wanted.priority,
        trace=wanted.trace,
        attached=True,
        model=wanted.model,
    )
