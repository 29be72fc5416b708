"""Calls of tools: each is a run, which the call follows to its end.

The run is the client's. It ends when the client cancels the call or closes the connection.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web
from mcp_types import RequestId
from symphony_kernel.protocol.limits import TOOL_RESULT_BYTES_MAX

from symphony_runtime.compiler.schema_check import CheckLimitError
from symphony_runtime.gateway.errors import Problem, has_gone
from symphony_runtime.gateway.http.context import body_owner, parse_json, services
from symphony_runtime.gateway.http.program_values import find_problem
from symphony_runtime.gateway.mcp.tools import Outcome, describe, failure, returned, run_input
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.runs.events.reader import Event, read_all
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import RunRequest
from symphony_runtime.gateway.runs.service import Runs

_PATIENCE_SECONDS = 1.0  # between looks whether the client is still there
_GONE = "its client went away"
_CANCELLED = "it was cancelled"
_ENDS = {"exited": "ended", "trapped": "trapped", "killed": "was killed", "failed": "failed"}
Tell = Callable[[list[Event]], Awaitable[None]]  # what a run has sent; [] while it sends nothing
Mark = tuple[str, str, RequestId]  # of a call: tenant, session, request


class Call:
    """A call under way. It can be cancelled from its first moment, also before its run is there."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._run: Run | None = None
        self._cancelled = False

    def follow(self, run: Run) -> None:
        """Take the call's run, and end it if the call has been cancelled."""
        self._run = run
        if self._cancelled:
            self.cancel()

    def cancel(self) -> None:
        self._cancelled = True
        if self._run is not None:
            self._runs.kill(self._run, _CANCELLED)


class Calls:
    """The calls under way that clients can cancel by their sessions and request ids."""

    def __init__(self) -> None:
        self._calls: dict[Mark, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @contextlib.contextmanager
    def holding(self, mark: Mark | None, runs: Runs) -> Iterator[Call]:
        """Know a call for the length of the block."""
        call = Call(runs)
        if mark is not None:
            self._calls[mark] = call
        try:
            yield call
        finally:
            if mark is not None and self._calls.get(mark) is call:
                del self._calls[mark]

    def cancel(self, mark: Mark) -> None:
        """End the run of a call, if there is such a call."""
        if (call := self._calls.get(mark)) is not None:
            call.cancel()


async def check_arguments(
    request: web.Request, name: str, program: Program, arguments: dict[str, Any]
) -> str | None:
    """Return what is wrong with a call's arguments, in words."""
    try:
        found = await find_problem(request, describe(name, program).input_schema, arguments)
    except CheckLimitError as error:
        return f"the arguments cannot be checked: {error}"
    return None if found is None else f"`arguments{found.path}` {found.words}"


async def call_program(
    request: web.Request,
    program: Program,
    arguments: dict[str, Any],
    call: Call,
    tell: Tell,
) -> Outcome:
    """Run a program on a call's arguments, to its end.

    Raises ConnectionError: the client has gone.
    """
    runs = services(request).runs
    try:
        data = run_input(program, arguments)
    except (ValueError, RecursionError) as error:
        return failure(f"the arguments cannot be an input: {error}")
    limits = runs.limits.of(program.tenant).choose({})
    try:
        run = await runs.start(program, RunRequest(data, limits=limits))
    except Problem as problem:
        wait = problem.headers.get("Retry-After")
        return failure(problem.detail + (f"; try again in {wait} s" if wait else ""))
    services(request).bodies.release(request)  # the worker has its input, and the run may last
    try:
        call.follow(run)
        await _follow(request, run, tell)
        if run.unstored is not None and not run.over.done():
            return failure(run.unstored.detail, run.record.id)
        return await _outcome(request, run)
    finally:
        runs.kill(run, _GONE)  # unless it has ended


async def _follow(request: web.Request, run: Run, tell: Tell) -> None:
    with contextlib.closing(services(request).runs.open_reader(run, 0)) as reader:
        while (batch := await reader.next(_PATIENCE_SECONDS)) is not None:
            if has_gone(request):
                raise ConnectionResetError(_GONE)
            if not batch and run.unstored is not None:
                return
            await tell(batch)


async def _outcome(request: web.Request, run: Run) -> Outcome:
    """Return what an ended run has returned, or why it has failed."""
    record = run.record
    if record.status != "exited" or record.exit_code != 0:
        code = f" with exit code {record.exit_code}" if record.status == "exited" else ""
        reason = f": {record.reason}" if record.reason else ""
        return failure(f"the program {_ENDS[record.status]}{code}{reason}", record.id)
    schema = run.program.declared().get("output_schema")
    try:
        text = await _returned(run, services(request).runs, last=schema is not None)
        # Until it is sent: twice as text, and as JSON.
        services(request).bodies.hold(request, body_owner(request), 4 * len(text))
        if schema is None:
            return Outcome(text, run_id=record.id)
        value = await parse_json(request, text.encode())
        found = await find_problem(request, schema, value)
    except (Problem, CheckLimitError, ValueError) as error:
        return failure(f"the program has ended, and its result cannot be sent: {error}", record.id)
    if found is not None:
        words = f"`result{found.path}` {found.words}"
        return failure(f"the program's result does not fit its output_schema: {words}", record.id)
    return returned(run.program, text, record.id)


async def _returned(run: Run, runs: Runs, *, last: bool) -> str:
    """Return a run's last message, or all its messages that are UTF-8, joined.

    Raises ValueError: there is none, or it is not UTF-8, or they are too long.
    """
    parts, size, found = list[bytes](), 0, not last
    _, events = runs.record_and_cursor(run)
    async with contextlib.aclosing(read_all(events())) as read:
        async for event in read:
            if event.kind != "message" or not (last or event.is_text):
                continue
            if last and event.begins:
                parts, size, found = [], 0, True
            size += len(event.data)
            if size > TOOL_RESULT_BYTES_MAX:
                raise ValueError(f"it has more than {TOOL_RESULT_BYTES_MAX} bytes")
            parts.append(event.data)
    if not found:
        raise ValueError("it has an output_schema, and has sent no message")
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        raise ValueError("its last message is not UTF-8") from None
