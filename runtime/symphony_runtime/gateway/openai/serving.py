"""One request, answered whole or as a stream.

The run belongs to the client and ends when the client goes away. An error before the first byte is
an error response; later it is an event in the stream.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from aiohttp import web

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.responses import EVENT_STREAM
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallArguments,
    CallBegin,
    Failure,
    Part,
    Piece,
    PromptLogprobs,
    Reasoning,
    Record,
    Stopped,
    Tokens,
    Usage,
)
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.service import Runs

GONE = "its client went away"
_ID_BYTES = 40  # of a token id
_LOGPROB_BYTES = 200  # of a token with its log-probability, about
_RECORD_BYTES = 120  # of a record, without its text
Hold = Callable[[int], None]
_TOLD = (Piece, Reasoning, CallBegin, CallArguments)
_WRITE_BYTES = 16 << 10  # of a stream, before it waits for the client
_CHECK_SECONDS = 0.1  # between checks of the clients' connections


class Events(Protocol):
    """The format of a stream."""

    def begin(self, begun: Begun | None) -> bytes:
        """Return what a stream begins with."""

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream."""

    def part(self, part: Part) -> bytes:
        """Return a part of a stream that is no content."""

    def end(self, usage: Usage) -> bytes:
        """Return the end of a stream."""

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""

    def kept_bytes(self, piece: Piece | Part) -> int:
        """Return about the bytes that a stream keeps of a piece."""


class Answer(Events, Protocol):
    """The format of an answer, whole or streamed."""

    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        """Return a whole answer; `pieces` has one for each choice."""


class Clients:
    """The clients of live requests. When a client leaves, its run ends."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._present: dict[Run, web.Request] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, run: Run, request: web.Request) -> None:
        """Watch the client of a run."""
        self._present[run] = request
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)

    def unwatch(self, run: Run, *, served: bool) -> None:
        """Stop watching; a run whose client was not served ends."""
        self._present.pop(run, None)
        if not served:
            self._drop(run)

    def _check(self) -> None:
        self._timer = None
        for run, request in list(self._present.items()):
            if request.transport is None or request.transport.is_closing():
                del self._present[run]
                self._drop(run)
        if self._present:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)

    def _drop(self, run: Run) -> None:
        run.unwanted = True
        self._runs.kill(run, GONE)


def failure_error(failure: Failure) -> OpenAIError:
    return OpenAIError(failure.status, failure.message, param=failure.param, code=failure.code)


async def answer_whole(
    batches: AsyncIterator[list[Record]], answer: Answer, choices: int, hold: Hold
) -> tuple[bytes, Usage]:
    """Return the whole answer, and its tokens. `hold` counts the bytes that are kept until then.

    Raises:
        OpenAIError: the program reports a failure.
        Problem: 429, from `hold`.
    """
    parts: list[list[Piece]] = [[] for _ in range(choices)]
    usage, ids, said = Usage(), dict[int, list[int]](), [list[Part]() for _ in range(choices)]
    prompts = list[PromptLogprobs]()
    async for batch in batches:
        for record in batch:
            if isinstance(record, Piece):
                hold(_size(record))
                parts[record.choice].append(record)
            elif isinstance(record, Part):
                hold(_part_size(record))
                said[record.choice].append(record)
            elif isinstance(record, Usage):
                usage = record
            elif isinstance(record, Tokens):
                hold(_ID_BYTES * len(record.ids))
                ids[record.choice] = record.ids
            elif isinstance(record, PromptLogprobs):
                hold(_LOGPROB_BYTES * sum(1 + len(each.top) for each in record.entries))
                prompts.append(record)
            else:
                assert isinstance(record, Failure), "only tasks have data"
                raise failure_error(record)
    # A program that sends plain text gives one choice, to any number of prompts.
    assert parts[0]
    pieces = [_joined(pieces) for pieces in parts if pieces]
    for choice, tokens in ids.items():
        pieces[choice].ids = tokens
    for piece in pieces:
        _add_parts(piece, said[piece.choice])
    for prompt in prompts:
        for choice in prompt.choices:
            pieces[choice].prompt = prompt.entries
    return answer.whole(pieces, usage), usage


async def answer_stream(
    request: web.Request,
    batches: AsyncIterator[list[Record]],
    answer: Events,
    headers: dict[str, str],
    hold: Hold,
) -> web.StreamResponse:
    """Answer piece by piece; a step's output is written at once, as fast as the client reads.

    Raises:
        OpenAIError: the program reports a failure before anything was answered.
        ConnectionError: the client has gone, or was told that too many bytes are held.
    """
    response: web.StreamResponse | None = None
    async for batch in batches:
        begin = b""
        if response is None:
            if batch and isinstance(batch[0], Failure):
                raise failure_error(batch[0])
            response = web.StreamResponse(headers={**EVENT_STREAM, **headers})
            await response.prepare(request)
            first = batch[0] if batch else None
            begin = answer.begin(first if isinstance(first, Begun) else None)
        try:
            for part in (record for record in batch if isinstance(record, _TOLD)):
                if size := answer.kept_bytes(part):
                    hold(size)
        except Problem as problem:
            error = OpenAIError(problem.status, problem.detail, code=problem.kind)
            await response.write(answer.failed(error))
            raise _closed(request) from problem
        for data in _gathered(begin, (_event(record, answer) for record in batch)):
            await response.write(data)
            del data  # only the unread bytes stay in memory
            await request.writer.drain()
    assert response is not None, "a run ends with its usage or a failure"
    await response.write_eof()
    return response


def _gathered(begin: bytes, events: Iterator[bytes]) -> Iterator[bytes]:
    """Yield events joined, and large ones cut, to about _WRITE_BYTES."""
    pending = begin
    for event in events:
        pending += event
        while len(pending) >= _WRITE_BYTES:
            now, pending = pending[:_WRITE_BYTES], pending[_WRITE_BYTES:]
            yield now
    if pending:
        yield pending


def _closed(request: web.Request) -> ConnectionError:
    """Close a connection after the bytes that were written to it."""
    if request.transport is not None:
        request.transport.close()
    return ConnectionResetError("the answer was cut off")


def _event(record: Record, answer: Events) -> bytes:
    if isinstance(record, Piece):
        return answer.chunk(record)
    if isinstance(record, Usage):
        return answer.end(record)
    if isinstance(record, Part):
        return answer.part(record)
    if isinstance(record, Begun):
        return b""  # told with the beginning
    assert isinstance(record, Failure), "only whole answers have tokens"
    return answer.failed(failure_error(record))


def _size(piece: Piece) -> int:
    """Return about how many bytes of memory a piece takes."""
    entries = sum(1 + len(token.top) for token in piece.logprobs or ())
    return _RECORD_BYTES + sys.getsizeof(piece.text) + _LOGPROB_BYTES * entries


def _part_size(part: Part) -> int:
    return _RECORD_BYTES + sys.getsizeof(part.name if isinstance(part, CallBegin) else part.text)


def _add_parts(piece: Piece, parts: list[Part]) -> None:
    """Add its parts to a whole choice; its calls come in order, each with its arguments."""
    piece.reasoning = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    for part in parts:
        if isinstance(part, Stopped):
            piece.stopped = part.text
    names = [part.name for part in parts if isinstance(part, CallBegin)]
    if not names:
        return
    arguments: list[list[str]] = [[] for _ in names]
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.index].append(part.text)
    piece.calls = list(zip(names, map("".join, arguments), strict=True))


def _joined(pieces: list[Piece]) -> Piece:
    """Return a choice's pieces as one."""
    last = pieces[-1]
    logprobs = None
    if any(piece.logprobs is not None for piece in pieces):  # text before a call has none
        logprobs = [entry for piece in pieces for entry in piece.logprobs or []]
    return Piece(last.choice, "".join([piece.text for piece in pieces]), last.finish, logprobs)
