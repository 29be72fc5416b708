"""One live batch of this gateway: checked, run line by line, and ended.

    validate -> for each line: slot -> request -> result stored with the progress -> end

Lines are read one at a time. Their requests run at low priority, and wait while the tenant's limits
refuse them. A line whose request runs when the gateway dies is run again by the next owner: it has
no result yet.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from symphony_kernel.protocol.limits import BATCH_REQUEST_FAILURES_MAX, BATCH_RESUMES_MAX

from symphony_runtime.gateway.batches.inner_requests import InnerAnswer, InnerConnection
from symphony_runtime.gateway.batches.lines import (
    BatchRequest,
    Line,
    LineError,
    Validator,
    parse_line,
    read_lines,
)
from symphony_runtime.gateway.batches.records import (
    Batch,
    NotOwnerError,
    find_batch,
    store_results,
    store_status,
)
from symphony_runtime.gateway.batches.results import EXPIRED, Frontier, Result, answered, not_run
from symphony_runtime.gateway.batches.slots import Slots
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5, 30.0  # before a refused request is repeated: first and longest
_YIELD_SECONDS = 0.25  # between looks whether the tenant's other requests leave room
_EXPIRED_LINES = 100  # whose results are stored together
_LIMIT_HIT = b'"limit_exceeded"'  # code of an answer
_REFUSED = (403, 429, 503, 507)  # suspended, a limit, unavailable, a full disk: they pass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a batch needs of its gateway."""

    store: Store
    files: Files
    slots: Slots
    # (tenant, path, body, connection) -> the route's answer
    ask: Callable[[str, str, bytes, InnerConnection], Awaitable[InnerAnswer]]
    # Whether a tenant's requests leave room for one more of its batches; None: its files are full.
    has_room: Callable[[str], Awaitable[bool | None]]
    # Work in a thread that the tenant pays for.
    charged: Callable[[str, Callable[[], None]], Awaitable[None]]


class BatchRun:
    """A live batch. `run` it; `cancel`, or `stop` to leave it to a later owner."""

    def __init__(self, batch: Batch, around: Surroundings) -> None:
        self.batch = batch
        self._around = around
        self._halted = asyncio.Event()  # no more requests
        self._stopped = False  # and nothing is written
        self._cancelled = False
        self._frontier = Frontier(batch.progress)
        self._advanced = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[InnerConnection] = set()
        self._results: list[Result] = []  # that are not stored yet
        self._storing = asyncio.Lock()

    def stop(self) -> None:
        """End without a result for the lines that run."""
        self._stopped = True
        self._halt()

    def cancel(self) -> None:
        """End the batch, whose status in the database is cancelling."""
        self._cancelled = True
        self._halt()

    async def run(self) -> None:
        try:
            if self.batch.resumes > BATCH_RESUMES_MAX:
                await self._fail_resumed()
            if self.batch.status == "validating":
                await self._validate()
            if self.batch.status == "in_progress":
                await self._serve_lines()
            if self.batch.live and not self._stopped:
                await self._finish()
        except NotOwnerError:
            _log.info("%s is gone, or another gateway's", self.batch.id)
        finally:
            self._halt()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def _halt(self) -> None:
        self._halted.set()
        for connection in self._connections:
            connection.close()

    # -- Before and after the lines ------------------------------------------------------------
    async def _validate(self) -> None:
        tenant, validator = self.batch.tenant, Validator(self.batch.endpoint)
        async with aclosing(self._content(0)) as pieces:
            async for piece in pieces:
                await self._around.charged(tenant, partial(validator.feed, piece))
                if validator.ended or self._halted.is_set():
                    break
        if self._halted.is_set():
            return
        await self._around.charged(tenant, validator.finish)
        if validator.errors:
            errors = tuple(validator.errors)
            await self._set_status("failed", "failed_at", errors=errors)
        else:
            await self._set_status("in_progress", "in_progress_at", total=validator.total)

    async def _fail_resumed(self) -> None:
        message = f"the gateway died {BATCH_RESUMES_MAX} times while it ran a request of this line"
        line = self.batch.progress.line
        error = {"code": "server_error", "message": message, "param": None, "line": line}
        await self._set_status("failed", "failed_at", errors=(error,))

    async def _finish(self) -> None:
        if self._cancelled:
            await self._reload()
        elif self._halted.is_set() and self.batch.status == "in_progress":
            await self._store_expired()
            await self._set_status("expired", "expired_at")
        elif self.batch.status == "in_progress":
            await self._set_status("finalizing", "finalizing_at")
        if self.batch.status == "finalizing":
            await self._set_status("completed", "completed_at")
        elif self.batch.status == "cancelling":
            await self._set_status("cancelled", "cancelled_at")

    async def _store_expired(self) -> None:
        """Store the results of lines that were not run."""
        expired: list[Result] = []
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                self._frontier.begin(line)
                if self._frontier.has_result(line.number):
                    continue
                with contextlib.suppress(LineError):
                    request = parse_line(line, self.batch.endpoint)
                    expired.append(not_run(self.batch.id, line, request.custom_id, EXPIRED))
                if len(expired) >= _EXPIRED_LINES:
                    await self._store(expired)
                    expired = []
        if expired:
            await self._store(expired)

    # -- Lines ---------------------------------------------------------------------------------
    async def _serve_lines(self) -> None:
        """Run the lines until all have results, the batch expires, or it is halted."""
        dispatch = asyncio.create_task(self._dispatch())
        halted = asyncio.create_task(self._halted.wait())
        seconds = (self.batch.expires_ms - self._around.files.now_ms()) / 1000
        done, _ = await asyncio.wait(
            {dispatch, halted}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
        )
        for task in (dispatch, halted):
            task.cancel()
        if dispatch not in done:
            self._halt()
            await asyncio.wait([dispatch, *self._tasks])
            self._frontier = Frontier(self.batch.progress)  # lines may have begun without result
        else:
            dispatch.result()

    async def _dispatch(self) -> None:
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                while self._frontier.is_full(line.number):
                    self._advanced.clear()
                    await self._advanced.wait()
                self._frontier.begin(line)
                if not self._frontier.has_result(line.number):
                    await self._take_slot()
                    task = asyncio.create_task(self._serve(line))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_slot(self) -> None:
        """Wait for a slot, and until the tenant's other requests leave room for this one."""
        around, tenant = self._around, self.batch.tenant
        while True:
            room = await around.has_room(tenant)
            if room is None or (not room and around.slots.used(tenant)):
                await asyncio.sleep(_YIELD_SECONDS)
                continue
            await around.slots.take(tenant)
            return

    async def _serve(self, line: Line) -> None:
        """Run a line's request and store its result; without one the next owner runs it."""
        try:
            result = await self._result(line)
            if result is not None:
                self._results.append(result)
                await self._store_pending()
        except NotOwnerError:
            self.stop()
        except Exception:
            _log.exception("a line of %s has no result", self.batch.id)
            self.stop()
        finally:
            self._around.slots.give_back(self.batch.tenant)

    async def _result(self, line: Line) -> Result | None:
        try:
            request = await asyncio.to_thread(parse_line, line, self.batch.endpoint)
        except LineError as error:  # it was checked: only a newer server can refuse it
            return not_run(self.batch.id, line, "", (error.code, str(error)))
        found = await self._answer(request)
        if found is None:
            return None
        return answered(self.batch.id, line, request.custom_id, found)

    async def _answer(self, request: BatchRequest) -> InnerAnswer | None:
        """Return the answer of a request, repeated while it is refused; None: halted."""
        (pause, pause_max), failures = _RETRY_SECONDS, 0
        while not self._halted.is_set():
            connection = InnerConnection()
            self._connections.add(connection)
            try:
                batch = self.batch
                found = await self._around.ask(
                    batch.tenant, batch.endpoint, request.body, connection
                )
            finally:
                self._connections.discard(connection)
            # A closed connection: halted; or cut off, as a client that holds too many bytes.
            if not connection.is_closing():
                if found.status < 500 and found.status not in _REFUSED:
                    return found
                failures += _may_repeat_itself(found)
                if failures >= BATCH_REQUEST_FAILURES_MAX:
                    return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(found.retry_after or pause, pause_max)):
                    await self._halted.wait()
            pause = min(2 * pause, pause_max)
        return None

    # -- Storing -------------------------------------------------------------------------------
    async def _store_pending(self) -> None:
        """Store all results that are there, those of other lines too."""
        async with self._storing:
            results, self._results = self._results, []
            if results:
                await self._store(results)
                self._advanced.set()

    async def _store(self, results: list[Result]) -> None:
        """Store results together with the progress. NotOwnerError."""
        output = b"".join(result.data for result in results if not result.failed)
        errors = b"".join(result.data for result in results if result.failed)
        wanted = {
            "progress": self._frontier.add(results),
            "output_bytes": self.batch.output_bytes + len(output),
            "error_bytes": self.batch.error_bytes + len(errors),
        }

        def store(batch: Batch, connection: Connection) -> None:
            store_results(connection, batch, output, errors)

        await self._change(wanted, store)

    async def _set_status(self, status: str, stamp: str, **changes: Any) -> None:
        """Change the status, unless the batch is cancelled meanwhile. NotOwnerError."""
        now_ms = self._around.files.now_ms()
        was = self.batch.status
        times = {**self.batch.times, stamp: now_ms // 1000}

        def store(batch: Batch, connection: Connection) -> None:
            store_status(connection, batch, now_ms)

        await self._change({"status": status, "times": times, **changes}, store, was)

    async def _change(
        self,
        wanted: dict[str, Any],
        store: Callable[[Batch, Connection], None],
        only_from: str | None = None,
    ) -> None:
        """Change the batch here and in the database; NotOwnerError.

        A request may have set the status to cancelling meanwhile. With `only_from` nothing is
        changed then.
        """
        while True:
            batch = replace(self.batch, **wanted, version=self.batch.version + 1)
            try:
                await self._around.store.write_until_stored(partial(store, batch), batch.tenant)
            except NotOwnerError:
                version = self.batch.version
                found = await self._reload()
                if found.version == version:
                    raise  # nothing has changed: the files are gone
                if found.progress == wanted.get("progress"):
                    self.batch = found
                    return
                if only_from not in (None, found.status):
                    return
                continue
            self.batch = batch
            return

    async def _reload(self) -> Batch:
        """Take over what a request has changed; NotOwnerError."""
        batch = self.batch
        find = partial(find_batch, tenant=batch.tenant, batch_id=batch.id)
        found = await self._around.store.read(find)
        if found is None or found.boot != batch.boot or not found.live:
            raise NotOwnerError(batch.id)
        self.batch = replace(batch, version=found.version, status=found.status, times=found.times)
        return found

    # -- The input file ------------------------------------------------------------------------
    def _content(self, start: int) -> AsyncGenerator[bytes, None]:
        return self._around.files.content(self.batch.input_file, start)

    def _lines(self) -> AsyncGenerator[Line, None]:
        """Yield the lines from the first one without a result on."""
        progress = self.batch.progress
        return read_lines(self._content(progress.start), progress.line, progress.start)


def _may_repeat_itself(found: InnerAnswer) -> bool:
    """Return whether another try may fail for the same reason: the run's, not the server's."""
    return found.status not in _REFUSED or found.by_run or _LIMIT_HIT in found.body
