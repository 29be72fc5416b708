"""The victim: streams of plain completions, and what they get in a window of time."""

import asyncio
import json
import math
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import aiohttp

from benchmarks.neighbour.attacks import (
    COMPLETION_TOKENS,
    LONG_PROMPT_BYTES,
    PROMPT,
    VICTIM_STREAMS,
    Target,
)
from benchmarks.serving.sse import events

CHUNKS_MIN, LONGER_MAX = 20, 5
LONG_PROBES = 3  # long prompts measured after each window
LONG_SECONDS_MAX = 60.0
_LONG_TEXT = "The quick brown fox jumps over the lazy dog and goes home to sleep. "


class VictimError(Exception):
    """The victim was refused, which a measurement does not expect."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the victim got: tokens a second; all times are in seconds.

    Attributes:
        rate: Tokens a second of all streams together.
        gaps: Times between two chunks of a stream.
        firsts: Times from a request to its first chunk.
        long: Median time to the first token of a prompt of 5.2 kB.
    """

    rate: float
    gaps: list[float]
    firsts: list[float]
    long: float = math.nan

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps; all of the window when there is none."""
        return percentile(self.gaps, 0.99)

    @property
    def first(self) -> float:
        """The mean time to the first chunk."""
        return sum(self.firsts) / len(self.firsts)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that so large a share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@dataclass(slots=True)
class _Stream:
    """One request: when it was sent, and what came when."""

    asked: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: bool = False

    def texts(self) -> Iterator[tuple[float, str]]:
        """Yield each chunk's time and text."""
        for at, data in events(self.pieces):
            chunk = {} if data == "[DONE]" else json.loads(data)
            if "error" in chunk:
                raise VictimError(f"a stream ended with {chunk['error']}")
            for choice in chunk.get("choices") or ():
                if choice.get("text"):
                    yield at, choice["text"]


class Victim:
    """A tenant that streams `VICTIM_STREAMS` completions at a time.

    A window ends while completions are under way, so their usage is not told. What is counted is
    their text: the answer is greedy and the same each time, so its length says how many tokens
    there were.
    """

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session, self._target = session, target
        self._ends: list[int] = []  # where each token's text ends in the answer
        self._probes = 0

    async def prepare(self) -> None:
        """Learn the answer's tokens, and let the server compute all prompts once."""
        body = self._body(stream=False, logprobs=0)
        async with self._session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise VictimError(f"answered {response.status}: {await response.text()}")
            choice = (await response.json())["choices"][0]
        lengths = [len(token) for token in choice["logprobs"]["tokens"]]
        self._ends = list(accumulate(lengths))
        if len(lengths) != COMPLETION_TOKENS or self._ends[-1] != len(choice["text"]):
            raise VictimError(f"{len(lengths)} tokens are not the answer {choice['text']!r}")
        await self.long_first()

    async def measure(self, seconds: float) -> Figures:
        """Stream completions for so long, then measure long prompts.

        Where fewer than `CHUNKS_MIN` chunks have come, the window is up to `LONGER_MAX` times as
        long.
        """
        streams: list[_Stream] = []
        began = time.perf_counter()

        async def work() -> None:
            while True:
                stream = _Stream(time.perf_counter())
                streams.append(stream)
                await self._complete(stream)

        tasks = [asyncio.create_task(work()) for _ in range(VICTIM_STREAMS)]
        for _ in range(LONGER_MAX):
            done, _ = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if done or sum(len(stream.pieces) for stream in streams) >= CHUNKS_MIN:
                break
        until = time.perf_counter()
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        figures = self._figures(streams, until, until - began)
        longs = [await self.long_first() for _ in range(LONG_PROBES)]
        return Figures(figures.rate, figures.gaps, figures.firsts, percentile(longs, 0.5))

    def _figures(self, streams: list[_Stream], until: float, seconds: float) -> Figures:
        tokens = 0
        gaps: list[float] = []
        firsts: list[float] = []
        open_ended: list[float] = []  # what had not come when the window ended: at least so long
        for stream in streams:
            texts = [(at, text) for at, text in stream.texts() if at <= until]
            times = [at for at, _ in texts]
            tokens += bisect_right(self._ends, sum(len(text) for _, text in texts))
            gaps.extend(b - a for a, b in pairwise(times))
            if times:
                firsts.append(times[0] - stream.asked)
            if not stream.ended:
                open_ended.append(until - (times[-1] if times else stream.asked))
        longest = max(gaps, default=0.0)
        gaps.extend(each for each in open_ended if each > longest)
        if not firsts:
            firsts = [seconds]
        return Figures(tokens / seconds, gaps or [seconds], firsts)

    async def _complete(self, stream: _Stream) -> None:
        body = self._body(stream=True)
        async with self._session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise VictimError(f"answered {response.status}: {await response.text()}")
            async for piece in response.content.iter_any():
                stream.pieces.append((time.perf_counter(), piece))
        stream.ended = True

    async def long_first(self) -> float:
        """Return the seconds to the first token of a long prompt, at most `LONG_SECONDS_MAX`.

        All such prompts share all but their last words, whose K and V the prefix cache keeps: what
        takes time is the tokenizer, not the model.
        """
        self._probes += 1
        size = min(LONG_PROMPT_BYTES, 2 * self._target.context)  # 2 bytes a token, or more
        text = _LONG_TEXT * (size // len(_LONG_TEXT)) + f"That was day {self._probes}"
        body = self._body(stream=False, prompt=text, max_tokens=1)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LONG_SECONDS_MAX):
                async with self._session.post("/v1/completions", json=body) as response:
                    answer = await response.text()
                    if response.status != 200:
                        raise VictimError(f"answered {response.status}: {answer}")
        except TimeoutError:
            return LONG_SECONDS_MAX
        return time.perf_counter() - began

    def _body(self, *, stream: bool, **more: object) -> dict[str, object]:
        return {
            "model": self._target.model, "prompt": PROMPT, "max_tokens": COMPLETION_TOKENS,
            "ignore_eos": True, "temperature": 0, "stream": stream, **more,
        }  # fmt: skip
