"""The records of a run's answer: of the shipped program, or of any other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from symphony_kernel.protocol.limit_table import BY_NAME, Scope, limit_of

from symphony_runtime.gateway.openai.program_answers import ProgramAnswer
from symphony_runtime.gateway.openai.program_messages import (
    END,
    Failure,
    Record,
    Records,
    Usage,
)
from symphony_runtime.gateway.openai.requests.limits import named
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.stream import EphemeralStream
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import Record as RunRecord
from symphony_runtime.gateway.runs.service import Runs

_LOOK_SECONDS = 5.0  # between checks whether the run's end cannot be stored
_END_SECONDS = 1.0  # a tenant's program may go on behind its answer
Batches = AsyncIterator[list[Record]]
Keep = Callable[[bytes], Awaitable[None]]
CountDrafts = Callable[[int, int], None]
_MEMORY_FULL = "; its memory had "  # in a worker's words for a trap with almost no memory left


async def shipped_records(
    run: Run, inbox: Inbox, keep: Keep | None = None, count: CountDrafts | None = None
) -> Batches:
    """Yield the records of the shipped program; the last is a Usage or a Failure.

    `count` gets the tokens that it drafted, and how many of them were right.
    `keep` gets all messages of an answer that is complete, before its last record is told.
    """
    records, unsaved_events, said = Records(), run.events, list[bytes]()
    assert isinstance(unsaved_events, EphemeralStream)
    while data := await inbox.next():
        unsaved_events.note_taken(len(data))
        if keep is not None:
            said.append(data)
        batch = records.feed(data)
        if batch:
            if keep is not None and isinstance(batch[-1], Usage):
                if batch[:-1]:
                    yield batch[:-1]
                await keep(b"".join(said))
                batch = batch[-1:]
            if count is not None and isinstance(used := batch[-1], Usage) and used.drafted:
                count(used.drafted, used.accepted)
            yield batch
            if isinstance(batch[-1], END):
                return
    yield [_failure(run.end or run.record, shipped=True)]


def kept_records(runs: Runs, run: Run | RunRecord) -> Batches:
    """Return the same of a stored run, from its beginning."""
    return _read_stored(runs, run, Records().feed, lambda record: [_failure(record, shipped=True)])


def program_records(runs: Runs, run: Run | RunRecord, n: int = 1, choices: int = 1) -> Batches:
    """Return the records of a tenant's program, checked: `choices` of them, `n` to a prompt.

    A run whose answer is refused is killed.
    """
    answer = ProgramAnswer(n, choices)

    def feed(messages: bytes) -> list[Record]:
        batch = answer.feed(messages)
        if answer.refused is not None and isinstance(run, Run):
            runs.kill(run, answer.refused.message)
        return batch

    def end(record: RunRecord) -> list[Record]:
        if (record.status, record.exit_code) != ("exited", 0):
            return [_failure(record)]
        used = record.usage or {}
        counts = (used.get(f"{kind}_tokens", 0) for kind in ("prompt", "cached", "completion"))
        return answer.end(Usage(*counts))

    return _read_stored(runs, run, feed, end, _END_SECONDS)


async def _read_stored(
    runs: Runs,
    run: Run | RunRecord,
    feed: Callable[[bytes], list[Record]],
    end: Callable[[RunRecord], list[Record]],
    seconds: float | None = None,
) -> Batches:
    """Yield what `feed` makes of a run's messages, then, unless that was complete, its `end`.

    The last record waits so long for the run's end, which the shipped program has at once.
    """
    reader = runs.open_reader(run, 0)
    try:
        while (events := await reader.next(_LOOK_SECONDS)) is not None:
            if not events and (unstored := _unstored(run)):
                yield unstored
                return
            messages = b"".join(event.data for event in events if event.kind == "message")
            batch = feed(messages) if messages else []
            del events, messages  # a client that does not read keeps only what is unread
            if batch:
                if isinstance(batch[-1], END) and isinstance(run, Run):
                    # Its client may ask for more of it at once, so first it is stored.
                    if batch[:-1]:
                        yield batch[:-1]
                    await asyncio.wait([run.known], timeout=seconds)
                    batch = batch[-1:]
                yield batch
                if isinstance(batch[-1], END):
                    return
    finally:
        reader.close()
    yield end(run.record if isinstance(run, Run) else run)


def _unstored(run: Run | RunRecord) -> list[Record]:
    """Return the failure of a run whose end cannot be stored, [] for any other run."""
    if not isinstance(run, Run) or run.unstored is None:
        return []
    problem = run.unstored
    return [Failure(problem.status, problem.kind.replace("-", "_"), None, problem.detail)]


def _failure(record: RunRecord, *, shipped: bool = False) -> Failure:
    """Return why a run has ended without a complete answer."""
    ended = record.status
    if record.status == "exited":
        ended = f"exited with code {record.exit_code}"
    reason = f": {record.reason}" if record.reason else ""
    words = f"{record.id} {ended}{reason}"
    limit = limit_of(record.status, record.reason or "") if record.status == "killed" else None
    if record.status == "trapped" and shipped and _MEMORY_FULL in (record.reason or ""):
        limit = "memory_bytes"  # its answers need more
    if limit is not None:
        # A repeated request would hit a run's limit again; a tenant's may allow it later.
        status = 429 if BY_NAME[limit].scope is Scope.TENANT else 400
        return Failure(status, "limit_exceeded", None, f"{words} ({named(limit)})")
    return Failure(500, f"run_{record.status}", None, words)
