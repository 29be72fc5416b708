"""What arrives at a cluster: runs with their documents, sessions and tools.

A trace is made from a seed alone, so all policies get the same runs at the same times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

DOCUMENT_TOKENS = 4_096
_BLOCK = 4_096  # random numbers drawn at once


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that a run reads and writes, then the seconds that its tool takes."""

    prompt: int
    answer: int
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A run: it reads `document` (-1: none) or its session's KV, and takes turns."""

    at_s: float
    document: int
    document_tokens: int
    turns: tuple[Turn, ...]
    session: int = -1
    runs_left: int = 0  # of the session, after this one
    think_s: float = 0.0  # from this run's end to the session's next
    tenant: str = "t"


@dataclass(frozen=True, slots=True)
class Trace:
    """A load; rates and documents are of a node, so that a cluster of any size is as busy."""

    name: str
    rate: float  # runs a second and node
    documents: int = 16  # of a node
    skew: float = 0.8  # of Zipf's law, the ranks of Pareto's; 0: all alike
    prompt: int = 100
    answer: int = 32
    burst: float = 1.0  # how many times the rate, for a fifth of the time
    hot: float = 0.0  # of a burst's runs, those that ask about one document
    agents: bool = False  # sessions of runs with tools instead of documents
    fail_s: float = 0.0  # one node in 50 fails in so many seconds; 0: none

    def works(self, nodes: int, runs: int, seed: int) -> Iterator[Work]:
        """Yield runs in the order of their arrival; of sessions the first run each."""
        return _sessions(self, nodes, runs, seed) if self.agents else _asks(self, nodes, runs, seed)


TRACES = {
    each.name: each
    for each in (
        Trace("retrieval", 20.0),
        Trace("bursts", 10.0, burst=3.0, hot=0.3),
        Trace("agents", 10.0, agents=True),
        Trace("failures", 20.0, fail_s=2.0),
    )
}
_BURST_PERIOD_S = 2.0
_BURST_SHARE = 0.2
_SYSTEM_TOKENS = 1_024  # of an agent's first prompt
_SESSION_RUNS = 5
_TURNS_MEAN = 3.0


def _asks(trace: Trace, nodes: int, runs: int, seed: int) -> Iterator[Work]:
    """Yield questions about documents, by Poisson arrivals whose rate may have bursts."""
    source = np.random.default_rng(seed)
    count = trace.documents * nodes
    odds = np.arange(1, count + 1, dtype=float) ** -trace.skew
    cumulated = np.cumsum(odds / odds.sum())
    identity = source.permutation(count)  # a popular document is not on a certain node
    rate, now = trace.rate * nodes, 0.0
    quiet = (1 - trace.burst * _BURST_SHARE) / (1 - _BURST_SHARE) if trace.burst > 1 else 1.0
    turns = (Turn(trace.prompt, trace.answer),)
    for at in range(0, runs, _BLOCK):
        size = min(_BLOCK, runs - at)
        gaps = source.exponential(1.0 / rate, size).tolist()
        ranks = np.searchsorted(cumulated, source.random(size)).clip(max=count - 1)
        asked, lots = identity[ranks].tolist(), source.random(size).tolist()
        for gap, document, lot in zip(gaps, asked, lots, strict=True):
            period, phase = divmod(now / _BURST_PERIOD_S, 1.0)
            bursting = trace.burst > 1 and phase < _BURST_SHARE
            now += gap / (trace.burst if bursting else quiet)
            if bursting and lot < trace.hot:
                document = int(period) * 7_919 % count
            yield Work(now, document, DOCUMENT_TOKENS, turns)


def _sessions(trace: Trace, nodes: int, runs: int, seed: int) -> Iterator[Work]:
    """Yield the first runs of sessions: agents that call tools and are asked again."""
    source = np.random.default_rng(seed)
    sessions = max(runs // _SESSION_RUNS, 1)
    rate, now = trace.rate * nodes / _SESSION_RUNS, 0.0
    for session in range(sessions):
        now += source.exponential(1.0 / rate)
        work = Work(now, -1, 0, (), session, _SESSION_RUNS)
        yield next_of_session(work, now, seed, _SYSTEM_TOKENS)


def next_of_session(before: Work, ended_s: float, seed: int, system_tokens: int = 0) -> Work:
    """Return a session's next run; its KV is what the earlier ones have read and written."""
    source = np.random.default_rng((seed, before.session, before.runs_left))
    count = 1 + int(source.poisson(_TURNS_MEAN - 1))
    turns = tuple(
        Turn(int(prompt), int(answer), float(tool_s))
        for prompt, answer, tool_s in zip(
            source.integers(50, 400, count),
            source.integers(16, 64, count),
            source.exponential(0.5, count),
            strict=True,
        )
    )
    turns = (*turns[:-1], replace(turns[-1], tool_s=0.0))
    if system_tokens:
        turns = (replace(turns[0], prompt=turns[0].prompt + system_tokens), *turns[1:])
    held = before.document_tokens + sum(turn.prompt + turn.answer for turn in before.turns)
    think_s = float(source.exponential(1.0))
    at_s = ended_s + before.think_s
    return Work(at_s, -1, held, turns, before.session, before.runs_left - 1, think_s)
