"""Runs of a tenant: their start, results, events, messages and ends."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypedDict, Unpack

from symphony.client.events import Event, follow_events
from symphony.client.transport import Call, Transport, quoted, sending
from symphony.client.views import Child, ChildList, Run, RunResult, Trace
from symphony.client.websocket import AsyncWebSocket

Children = list[Child]  # the class below has a method of the name `list`
RunList = list[Run]
_ENDED = frozenset({"exited", "trapped", "killed", "failed"})


class RunOptions(TypedDict, total=False):
    """What a start may say about its run; docs/reference/http.md has the meanings.

    A start with the same `idempotency_key` as an earlier one returns the run of that. Without one
    the client makes one, so that its own retries start nothing twice.
    """

    entry: str | None
    limits: Mapping[str, int] | None
    model: str
    priority: int
    trace: bool
    idempotency_key: str


class AsyncRuns:
    """Runs by id: `client.runs`. The client's `run`, `start` and `stream` start one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, run: str) -> RunResult:
        """Return a run with its messages so far."""
        return await self._transport.get(RunResult, _path(run))

    async def wait(self, run: str) -> RunResult:
        """Return a run when it has ended."""
        result = await self.get(run)
        if result["status"] not in _ENDED:
            async for _ in self.events(run):
                pass
            result = await self.get(run)
        return result

    def list(self, **wanted: str) -> AsyncIterator[Run]:
        """Yield all runs, newest first; `wanted` picks some: program, status, limit_hit."""
        return self._transport.pages(Run, "/v1/runs", wanted)

    async def live(self) -> RunList:
        """Return the newest live runs, each with what it holds (`held`)."""
        return await self._transport.page(Run, "/v1/runs", {"live": "1", "limit": "200"})

    def changes(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[Event]:
        """Yield what happens to all runs of the key's tenant, behind a change's id.

        First comes a `begin`, then a `run` for each start, change and end, with the run as listed.
        A `begin` that has not `resumed` means that changes are lost: list the runs again.
        """
        return follow_events(self._transport, "/v1/events", after, follow=follow)

    def events(self, run: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[Event]:
        """Yield a run's events after an id: to the last one, or the current ones.

        After a lost connection they continue behind the last one that came.
        """
        return follow_events(self._transport, _path(run, "events"), after, follow=follow)

    async def send(self, run: str, message: str | bytes, *, close: bool = False) -> None:
        """Send a message to a run; `close` ends its input (an empty message is not sent).

        A message whose answer is lost may have come: it is not sent again.
        """
        data = message.encode() if isinstance(message, str) else message
        query = {"close": "1"} if close else {}
        await self._transport.json(sending("POST", _path(run, "messages"), data, query))

    @asynccontextmanager
    async def connect(self, run: str, after: int = 0) -> AsyncIterator[AsyncWebSocket]:
        """Open a WebSocket for messages both ways, with those behind an event's id.

        Leaving it closes the connection and ends nothing.
        """
        socket = AsyncWebSocket(self._transport, _path(run, "ws"), after)
        try:
            yield socket
        finally:
            await socket.close()

    async def cancel(self, run: str) -> Run:
        """End a run; return its view."""
        call = Call("POST", _path(run, "cancel"), repeatable=True)
        return await self._transport.object(Run, call)

    async def input(self, run: str) -> bytes:
        """Return what a run was given."""
        return await self._transport.content(_path(run, "input"))

    async def rerun(self, run: str, **options: Unpack[RunOptions]) -> str:
        """Start a run's program again with its input, entry, limits and so on; return its id.

        `options` are in place of the run's.
        """
        before, data = await self.get(run), await self.input(run)
        same: RunOptions = {
            "entry": before["entry"],
            "limits": before["limits"],  # type: ignore[typeddict-item]  # all are numbers
            "priority": before["priority"],
        }
        if before["model"] is not None:
            same["model"] = before["model"]
        call = start_call(
            self._transport, before["program"], data.decode(), {**same, **options}, detach=True
        )
        return str((await self._transport.json(call))["id"])

    async def children(self, run: str) -> Children:
        """Return the children that a run's programs have spawned, in this order."""
        return (await self._transport.get(ChildList, _path(run, "children")))["data"]

    async def trace(self, run: str) -> Trace:
        """Return the Chrome trace events of a run that was started with `trace=True`."""
        return await self._transport.get(Trace, _path(run, "trace"))

    async def delete(self, run: str) -> None:
        """Delete a run that has ended."""
        await self._transport.delete(_path(run))


def start_call(
    transport: Transport,
    program: str,
    value: Any,
    options: RunOptions,
    *,
    detach: bool = False,
    stream: bool = False,
) -> Call:
    """Return the request that starts a run with an input."""
    body: dict[str, Any] = {"input": value, **options}
    given = body.pop("idempotency_key", None)
    once = given or transport.new_once()
    if stream:
        body["stream"] = True
    query = {"detach": "1"} if detach else {}
    return sending(
        "POST", f"/v1/programs/{quoted(program)}/runs", body, query, once=once, own_key=bool(given)
    )


async def stream_run(transport: Transport, call: Call) -> AsyncIterator[Event]:
    """Make a request of `start_call`, and yield the events of its run to the last one."""
    async with transport.request(call) as response:
        path = _path(response.headers["X-Run-Id"], "events")
        async for event in follow_events(transport, path, begun=response):
            yield event


def _path(run: str, part: str = "") -> str:
    return f"/v1/runs/{quoted(run)}" + (f"/{part}" if part else "")
