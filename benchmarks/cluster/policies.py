"""Policies that place runs: the named systems' by their published rules, and Symphony's own.

    random        any node
    least loaded  the node with the fewest runs
    prefix-aware  Ray Serve LLM's PrefixCacheAffinityRouter: the node that got most of this prefix,
                  while the longest and the shortest queue differ by at most 10; else two at random
    kv blocks     Dynamo's KV router: prefill blocks to compute and waiting + blocks of active runs
    symphony      `symphony_runtime.cluster`

All learn at once what they themselves placed, and where an answer began and ended. Dynamo's and
Symphony's learn of stored and evicted KV by events. Ray's keeps a history of what it routed, and
that is never evicted by default.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_runtime.cluster.directory import HOLDINGS_MAX, Directory
from symphony_runtime.cluster.loads import Loads, Speeds
from symphony_runtime.cluster.placement import Need, Placement, Placer, Run

from benchmarks.cluster.nodes import Job, Machine

RAY_IMBALANCED = 10
RAY_MATCH_RATE = 0.1
_NOWHERE = np.iinfo(np.int32).max  # runs of a number that is no live node
_ROWS_TYPICAL = 16  # that share a step's fixed time


class Policy(Protocol):
    """What the simulation tells a policy, and asks it. Nodes are numbers."""

    def join(self, node: int) -> None: ...
    def leave(self, node: int) -> None: ...
    def place(self, job: Job) -> int: ...
    def began(self, job: Job, node: int) -> None:
        """Note that the first token has come."""

    def ended(self, job: Job, node: int) -> None: ...
    def stored(self, node: int, key: bytes, tokens: int) -> None: ...
    def evicted(self, node: int, key: bytes) -> None: ...


class Random:
    """Any live node."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._live: list[int] = []

    def join(self, node: int) -> None:
        self._live.append(node)

    def leave(self, node: int) -> None:
        self._live.remove(node)

    def place(self, job: Job) -> int:  # noqa: ARG002
        return self._random.choice(self._live)

    def began(self, job: Job, node: int) -> None:
        pass

    def ended(self, job: Job, node: int) -> None:
        pass

    def stored(self, node: int, key: bytes, tokens: int) -> None:
        pass

    def evicted(self, node: int, key: bytes) -> None:
        pass


class LeastLoaded(Random):
    """The node with the fewest runs, of equal ones any."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._runs = np.full(16, _NOWHERE, np.int32)

    def join(self, node: int) -> None:
        super().join(node)
        if node >= len(self._runs):
            self._runs = np.concatenate((self._runs, np.full(node + 1, _NOWHERE, np.int32)))
        self._runs[node] = 0

    def leave(self, node: int) -> None:
        super().leave(node)
        self._runs[node] = _NOWHERE

    def place(self, job: Job) -> int:  # noqa: ARG002
        least = np.flatnonzero(self._runs == self._runs.min())
        return self._count(int(least[self._random.randrange(len(least))]))

    def _count(self, node: int) -> int:
        self._runs[node] += 1
        return node

    def ended(self, job: Job, node: int) -> None:  # noqa: ARG002
        self._runs[node] -= 1


class PrefixAware(LeastLoaded):
    """Ray Serve LLM's router with the values of its documentation."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._routed: dict[bytes, dict[int, int]] = {}  # tokens by prefix and node
        self._sizes: Counter[int] = Counter()  # tokens routed, by node

    def place(self, job: Job) -> int:
        tokens, routed = job.work.document_tokens, self._routed.setdefault(job.key, {})
        runs = self._runs
        if int(runs.max(initial=0, where=runs != _NOWHERE)) - int(runs.min()) > RAY_IMBALANCED:
            nodes = self._random.sample(self._live, min(2, len(self._live)))
        else:
            most = min(max(routed.values(), default=0), tokens)
            if most < RAY_MATCH_RATE * (tokens + job.work.turns[0].prompt):
                least = min(self._sizes[node] for node in self._live)
                nodes = [node for node in self._live if self._sizes[node] == least]
            else:
                nodes = [node for node, held in routed.items() if held >= most]
        node = min(nodes, key=lambda each: int(runs[each]))
        context = tokens + sum(turn.prompt + turn.answer for turn in job.work.turns)
        self._note(node, job.key, tokens if job.work.session < 0 else context)
        return self._count(node)

    def _note(self, node: int, key: bytes, tokens: int) -> None:
        routed = self._routed.setdefault(key, {})
        self._sizes[node] += max(tokens - routed.get(node, 0), 0)
        routed[node] = max(tokens, routed.get(node, 0))

    def stored(self, node: int, key: bytes, tokens: int) -> None:
        if not self._routed.get(key):  # it was here before the simulation began
            self._note(node, key, tokens)

    def leave(self, node: int) -> None:
        super().leave(node)
        del self._sizes[node]
        for routed in self._routed.values():
            routed.pop(node, None)


class KVBlocks(Random):
    """Dynamo's KV router: the lowest cost, of equal ones any (temperature 0)."""

    def __init__(self, seed: int, overlap_weight: float = 1.0) -> None:
        super().__init__(seed)
        self._overlap_weight = overlap_weight
        self._prefill = np.full(16, np.inf)  # tokens of prompts that wait; inf: no node
        self._blocks = np.zeros(16)  # of active runs, shared ones once
        self._held: dict[bytes, dict[int, int]] = {}
        self._active: dict[int, Counter[bytes]] = {}

    def join(self, node: int) -> None:
        super().join(node)
        if node >= len(self._prefill):
            self._prefill = np.concatenate((self._prefill, np.full(node + 1, np.inf)))
            self._blocks = np.concatenate((self._blocks, np.zeros(node + 1)))
        self._prefill[node] = self._blocks[node] = 0.0
        self._active[node] = Counter()

    def leave(self, node: int) -> None:
        super().leave(node)
        self._prefill[node] = np.inf
        for held in self._held.values():
            held.pop(node, None)

    def place(self, job: Job) -> int:
        tokens, own = job.work.document_tokens, job.work.turns[0].prompt
        new = self._overlap_weight * (tokens + own) / PAGE_TOKENS + (tokens + own) // PAGE_TOKENS
        cost = self._overlap_weight * self._prefill / PAGE_TOKENS + self._blocks + new
        for node, held in self._held.get(job.key, {}).items():
            cost[node] -= self._overlap_weight * min(held, tokens) / PAGE_TOKENS
            if self._active[node][job.key]:
                cost[node] -= tokens // PAGE_TOKENS
        least = np.flatnonzero(cost == cost.min())
        node = int(least[self._random.randrange(len(least))])
        missing = tokens - min(self._held.get(job.key, {}).get(node, 0), tokens) + own
        blocks = own // PAGE_TOKENS
        if not self._active[node][job.key]:
            blocks += tokens // PAGE_TOKENS
        self._active[node][job.key] += 1
        self._prefill[node] += missing
        self._blocks[node] += blocks
        job.handle = (missing, own // PAGE_TOKENS)
        return node

    def began(self, job: Job, node: int) -> None:
        self._prefill[node] -= job.handle[0]  # type: ignore[index]

    def ended(self, job: Job, node: int) -> None:
        if job.first < 0:
            self.began(job, node)
        blocks = job.handle[1]  # type: ignore[index]
        active = self._active[node]
        active[job.key] -= 1
        if not active[job.key]:
            del active[job.key]
            blocks += job.work.document_tokens // PAGE_TOKENS
        self._blocks[node] -= blocks

    def stored(self, node: int, key: bytes, tokens: int) -> None:
        self._held.setdefault(key, {})[node] = tokens

    def evicted(self, node: int, key: bytes) -> None:
        self._held.get(key, {}).pop(node, None)


class Symphony:
    """The placer of `symphony_runtime.cluster`."""

    def __init__(self, seed: int, now: Callable[[], float], machine: Machine) -> None:
        costs = machine.costs
        row_us = costs.decode_row_us + costs.fixed_us / _ROWS_TYPICAL
        self._speeds = Speeds(1e-6 * costs.prefill_token_us, 1e-6 * row_us)
        directory = Directory(now, HOLDINGS_MAX, expiry_s=1e9, lease_s=1e9)
        self.placer = Placer(now, directory, Loads(), seed)

    def join(self, node: int) -> None:
        self.placer.add_node(str(node), self._speeds)

    def leave(self, node: int) -> None:
        self.placer.remove_node(str(node))

    def place(self, job: Job) -> int:
        work = job.work
        needs = (Need((job.key,), work.document_tokens),) if work.document_tokens else ()
        prompt = answer = 0
        for turn in work.turns:
            prompt += turn.prompt
            answer += turn.answer
        session = str(work.session) if work.session >= 0 else ""
        placement = self.placer.place(Run(work.tenant, needs, prompt, answer, session))
        job.handle = placement
        return int(placement.node)

    def began(self, job: Job, node: int) -> None:  # noqa: ARG002
        assert isinstance(job.handle, Placement)
        self.placer.computed(job.handle)

    def ended(self, job: Job, node: int) -> None:  # noqa: ARG002
        assert isinstance(job.handle, Placement)
        self.placer.ended(job.handle)

    def stored(self, node: int, key: bytes, tokens: int) -> None:
        self.placer.directory.hold(str(node), "t", key, tokens)

    def evicted(self, node: int, key: bytes) -> None:
        self.placer.directory.release(str(node), key)


POLICIES = ("random", "least loaded", "prefix-aware", "kv blocks", "symphony")


def make_policy(name: str, seed: int, now: Callable[[], float], machine: Machine) -> Policy:
    """Return a policy by its name."""
    simple = {"random": Random, "least loaded": LeastLoaded, "prefix-aware": PrefixAware}
    if name in simple:
        return simple[name](seed)
    if name == "kv blocks":
        return KVBlocks(seed)
    if name == "symphony":
        return Symphony(seed, now, machine)
    raise ValueError(f"no policy is called {name!r}: there are {', '.join(POLICIES)}")
