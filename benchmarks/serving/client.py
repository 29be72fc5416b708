"""Drives one server with one workload and notes when what came."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from benchmarks.serving.sse import Completion, StreamError, read_completion
from benchmarks.serving.workloads import Workload

REQUEST_SECONDS_MAX = 300.0


class MeasureError(Exception):
    """A server did not do what was asked, so that its figures would say nothing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how it wants to be asked.

    Attributes:
        name: As the report calls it.
        url: Without a path.
        model: The name of its model.
        key: For `Authorization: Bearer`, if it wants one.
        token_ids: Whether it takes prompts as token ids; else they are text of as many.
        extra: Fields to add to each request.
        strict: Whether it refuses fields that it does not know.
    """

    name: str
    url: str
    model: str
    key: str | None = None
    token_ids: bool = True
    extra: dict[str, Any] | None = None
    strict: bool = False

    def body(self, prompt: list[int] | str, new: int) -> dict[str, Any]:
        """Return a request for exactly `new` tokens, greedy and streamed."""
        asked = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self.strict:
            asked |= {"ignore_eos": True, "min_tokens": new}
        return asked | (self.extra or {})

    def headers(self) -> dict[str, str]:
        """Return the headers of each request."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request's times, in seconds after the workload's start.

    `due` is when it should have been sent, which in an open loop is when it counts from: a client
    that is late must not make the server look better. `texts` are the times of its chunks.
    """

    due: float
    sent: float
    first: float
    ended: float
    texts: list[float]
    prompt_tokens: int
    completion_tokens: int

    @property
    def latency(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.due

    @property
    def to_first(self) -> float:
        """Seconds to the first token."""
        return self.first - self.due

    @property
    def between(self) -> list[float]:
        """Seconds between its chunks."""
        return [b - a for a, b in zip(self.texts, self.texts[1:], strict=False)]

    def as_json(self) -> dict[str, Any]:
        """Return the record, with times in whole microseconds' precision."""
        return {
            key: [round(t, 6) for t in value] if key == "texts" else round(value, 6)
            for key, value in asdict(self).items()
        }


@dataclass(slots=True)
class _Raw:
    """What came of a request, unread."""

    due: float
    sent: float
    ended: float
    pieces: list[tuple[float, bytes]]
    status: int


async def drive(
    endpoint: Endpoint,
    workload: Workload,
    prompts: Sequence[list[int] | str],
    due: Sequence[float] | None = None,
    cached: bool = False,
) -> list[Request]:
    """Ask all that the workload asks and return when what came, in the order of the prompts.

    Args:
        endpoint: The server.
        workload: Says how many at a time and how long.
        prompts: One for each request.
        due: In an open loop, when each is sent, in seconds after the start; ascending.
        cached: Whether the server may take parts of prompts from a cache.

    Raises:
        MeasureError: An answer is an error or not of the length asked for.
    """
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
    # A connection for each request: llama.cpp closes it after a streamed answer without saying so.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        endpoint.url, headers=endpoint.headers(), timeout=timeout, connector=connector
    ) as session:
        start = time.perf_counter()
        asks = [_Ask(session, endpoint.body(prompt, workload.new), start) for prompt in prompts]
        try:
            if due is None:
                raws = await _closed(asks, workload.streams)
            else:
                raws = await _open(asks, due)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise MeasureError(f"{endpoint.name}, {workload.name}: {error!r}") from error
    return [_checked(raw, endpoint, workload, cached) for raw in raws]


class _Ask:
    """One request, to be sent."""

    def __init__(self, session: aiohttp.ClientSession, body: dict[str, Any], start: float) -> None:
        self._session = session
        self._body = body
        self._start = start

    async def send(self, due: float | None = None) -> _Raw:
        """Send it now and read all that comes."""
        clock, start = time.perf_counter, self._start
        sent = clock() - start
        pieces: list[tuple[float, bytes]] = []
        async with self._session.post("/v1/completions", json=self._body) as response:
            async for piece in response.content.iter_any():
                pieces.append((clock() - start, piece))  # noqa: PERF401  (each at its time)
        return _Raw(sent if due is None else due, sent, clock() - start, pieces, response.status)


async def _closed(asks: list[_Ask], streams: int) -> list[_Raw]:
    raws: dict[int, _Raw] = {}
    left = iter(enumerate(asks))

    async def stream() -> None:
        for index, ask in left:
            raws[index] = await ask.send()

    await asyncio.gather(*(stream() for _ in range(streams)))
    return [raws[index] for index in range(len(asks))]


async def _open(asks: list[_Ask], due: Sequence[float]) -> list[_Raw]:
    start = time.perf_counter()
    sending = []
    for ask, when in zip(asks, due, strict=True):
        await asyncio.sleep(max(0.0, when - (time.perf_counter() - start)))
        sending.append(asyncio.create_task(ask.send(when)))
    return list(await asyncio.gather(*sending))


def _checked(raw: _Raw, endpoint: Endpoint, workload: Workload, cached: bool) -> Request:
    """Return what an answer gave, if it is what was asked for."""

    def refuse(words: str) -> MeasureError:
        return MeasureError(f"{endpoint.name}, {workload.name}: {words}")

    if raw.status != 200:
        words = b"".join(piece for _, piece in raw.pieces)[:500].decode(errors="replace")
        raise refuse(f"HTTP {raw.status}: {words}")
    try:
        got = read_completion(raw.pieces)
    except StreamError as error:
        raise refuse(str(error)) from error
    _check_counts(got, workload, cached, refuse)
    assert got.first is not None
    assert got.prompt_tokens is not None
    return Request(
        raw.due, raw.sent, got.first, raw.ended, got.texts, got.prompt_tokens, workload.new
    )


def _check_counts(
    got: Completion, workload: Workload, cached: bool, refuse: Callable[[str], MeasureError]
) -> None:
    if got.completion_tokens is None or got.prompt_tokens is None:
        raise refuse("it reports no usage, so nobody knows how many tokens it made")
    if got.completion_tokens != workload.new:
        raise refuse(f"{got.completion_tokens} tokens came where {workload.new} were asked for")
    if got.prompt_tokens != workload.prompt:
        raise refuse(f"it counts {got.prompt_tokens} prompt tokens where {workload.prompt} were")
    if got.first is None:
        raise refuse("no token came")
    if got.cached_tokens and not cached:
        raise refuse(f"{got.cached_tokens} prompt tokens came from a cache")
