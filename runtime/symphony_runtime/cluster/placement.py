"""Placement: the node where a run is done first, with the KV that is where.

    Run          what is known of a run before it starts
    Placer       chooses a node, and keeps account of what it placed
    Placement    the choice; the caller says when it is computed, and when it has ended

The score of a node is when the run would be done there, in seconds from now, and how long it makes
others wait:

    score = moves + finish(device) + device * (1 + parts)
    device = tokens to compute * prefill_token_s + answer tokens * decode_token_s
    finish   what waits there and `device`, at the tenant's share (loads.py)
    parts    prompts and answers of other runs that wait or run there, and one that may come

The last term keeps a crowd together. Without it each run that comes while a document is computed
would compute it once more on an idle node, to be done a moment sooner. And where all nodes have
long queues, runs would leave the nodes that hold their KV and make all queues longer.

Of KV that the run needs, and that is not at the node, each piece is computed there or moved there,
the cheaper of both. The lowest score wins. Scores within `TIE_S` are equal, and then rendezvous
hashing decides, so that placers that know nothing of each other choose alike.

Two rules come first. A *family* stays together: a run with `beside` goes to that run's node,
because handles and channels do not leave it. A run with a *session* goes where its last one went,
unless it would be done `SESSION_PATIENCE_S` sooner elsewhere.

Scored are only nodes that hold KV of the run (at most `HOLDERS_MAX` for each piece) and the node
that is done first without any. If a holder is certain to be better, that node is not looked for.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from symphony_runtime.cluster.directory import Directory
from symphony_runtime.cluster.keys import KEY_TOKENS, session_key
from symphony_runtime.cluster.loads import Loads, Speeds
from symphony_runtime.cluster.rendezvous import hash64

TIE_S = 0.001
SESSION_PATIENCE_S = 1.0
SESSIONS_MAX = 1 << 18
SESSION_EXPIRY_S = 3_600.0
HOLDERS_MAX = 8  # that are scored for each piece of KV, drawn at random where there are more
_HOLDERS_SEEN_MAX = 16 * HOLDERS_MAX  # of which they are drawn: it bounds what a popular key costs


@dataclass(frozen=True, slots=True)
class Need:
    """KV that a run reads: a named file (one key), or a prefix (a key a length, shortest first)."""

    keys: tuple[bytes, ...]
    tokens: int  # that the run reads; a prefix may be longer than its longest key
    owner: str = ""  # the tenant whose KV it is; "": the run's

    def __post_init__(self) -> None:
        if not self.keys or self.tokens < 1:
            raise ValueError(f"a need has keys and at least 1 token, not {self.tokens}")


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run: its KV, its own tokens and what ties it to others."""

    tenant: str
    needs: tuple[Need, ...] = ()
    prompt_tokens: int = 0  # that no node has yet
    answer_tokens: int = 0  # as expected
    session: str = ""
    beside: str = ""  # node of the family

    @property
    def home_key(self) -> int:
        """What rendezvous hashing goes by: its session, its first KV or its tenant."""
        if self.session:
            return hash64(session_key(self.tenant, self.session))
        if self.needs:
            return int.from_bytes(self.needs[0].keys[0][:8], "little")
        return hash64(self.tenant.encode())


@dataclass(slots=True)
class Placement:
    """A run on its node; `prefill_s` and `decode_s` are what it takes of the device there."""

    run: Run
    node: str
    score_s: float
    prefill_s: float
    decode_s: float
    moves: tuple[tuple[Need, str], ...] = ()  # KV to fetch, with a node that holds it
    moves_s: float = 0.0  # until all of it is there
    life: int = 0  # of the node, so that a node that returns is not charged for its earlier runs
    waits: bool = True  # for its prefill
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PlacerStatistics:
    """What a placer has placed, and why there."""

    placed: int
    by_family: int
    by_session: int
    by_kv: int  # at a node that holds some of its KV
    scans: int  # that looked at all nodes
    sessions: int


@dataclass(frozen=True, slots=True)
class _Score:
    seconds: float
    slot: int
    prefill_s: float
    decode_s: float
    moves: tuple[tuple[Need, str], ...]
    moves_s: float


_Held = list[Mapping[str, int]]  # tokens by node, for each need


def _source(need: Need, holders: Mapping[str, int]) -> str:
    """Return a node that holds all that is needed, or "" if none is found."""
    for node in islice(holders, _HOLDERS_SEEN_MAX):
        if holders[node] >= need.tokens:
            return node
    return ""


class Placer:
    """Places runs on the nodes of a directory and loads, which it keeps up to date."""

    def __init__(
        self,
        now: Callable[[], float],
        directory: Directory,
        loads: Loads,
        seed: int = 0,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self.directory = directory
        self.loads = loads
        self._now = now
        self._random = random.Random(seed)  # noqa: S311 - which holders are scored
        self._sessions_max = sessions_max
        # Node and expiry, the longest unused first.
        self._sessions: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._lives: dict[str, int] = {}
        self._life = 0
        self._placed = self._by_family = self._by_session = self._by_kv = self._scans = 0

    # -- Nodes --------------------------------------------------------------------------------
    def add_node(self, node: str, speeds: Speeds) -> None:
        """Add a node, or renew its lease and its speeds."""
        self.loads.add_node(node, speeds)
        self.directory.renew_lease(node)
        if node not in self._lives:
            self._life += 1
            self._lives[node] = self._life

    def remove_node(self, node: str) -> None:
        """Forget a node that is gone, with its KV and its runs; an unknown one is no error."""
        self.loads.remove_node(node)
        self.directory.drop_node(node)
        self._lives.pop(node, None)

    def expire(self) -> list[str]:
        """Forget what is past its time; return the nodes that are gone."""
        gone = self.directory.expire()
        for node in gone:
            self.remove_node(node)
        now = self._now()
        while self._sessions and next(iter(self._sessions.values()))[1] <= now:
            self._sessions.popitem(last=False)
        return gone

    # -- Runs ---------------------------------------------------------------------------------
    def place(self, run: Run) -> Placement:
        """Choose a node for a run and record that it goes there.

        Raise LookupError: there is no live node, or its family's node is gone.
        """
        held = [self._held(need) for need in run.needs]
        if run.beside:
            slot = self.loads.slots.get(run.beside)
            if slot is None:
                raise LookupError(f"node {run.beside} of the run's family is gone")
            best = self._score(run, held, slot)
            self._by_family += 1
        else:
            best = self._best(run, held)
            best = self._stay(run, held, best)
        return self._record(run, held, best)

    def computed(self, placement: Placement) -> None:
        """Record that a run's prompt is computed: its first token has come."""
        if placement.waits:
            placement.waits = False
            self._remove(placement, placement.prefill_s)

    def ended(self, placement: Placement) -> None:
        """Record that a run has ended, however it did; a second time is no error."""
        if not placement.ended:
            self.computed(placement)
            placement.ended = True
            self._remove(placement, placement.decode_s)

    def _remove(self, placement: Placement, seconds: float) -> None:
        if self._lives.get(placement.node) == placement.life:
            self.loads.remove_work(placement.node, placement.run.tenant, seconds)

    # -- The choice ---------------------------------------------------------------------------
    def _held(self, need: Need) -> Mapping[str, int]:
        if len(need.keys) == 1:
            return self.directory.holders(need.keys[0])
        return self.directory.held_prefix(need.keys, HOLDERS_MAX)

    def _candidates(self, held: _Held) -> set[int]:
        slots = self.loads.slots
        found: set[int] = set()
        for holders in held:
            names = list(islice(holders, _HOLDERS_SEEN_MAX))
            if len(names) > HOLDERS_MAX:
                names = self._random.sample(names, HOLDERS_MAX)
            found.update(slots[name] for name in names if name in slots)
        return found

    def _best(self, run: Run, held: _Held) -> _Score:
        scores = [self._score(run, held, slot) for slot in self._candidates(held)]
        first = min((score.seconds for score in scores), default=float("inf"))
        # Without any KV a run takes at least this, on the idlest node that there may be.
        if not scores or first > self._least_seconds(run, held):
            self._scans += 1
            needed = self._device_seconds(run, run.prompt_tokens + sum(n.tokens for n in run.needs))
            slot = self.loads.cheapest(run.tenant, needed, run.home_key, TIE_S)
            if all(score.slot != slot for score in scores):
                scores.append(self._score(run, held, slot))
                first = min(first, scores[-1].seconds)
        tied = [score for score in scores if score.seconds <= first + TIE_S]
        if len(tied) == 1:
            return tied[0]
        key = run.home_key
        return max(tied, key=lambda score: self.loads.rank(key, score.slot))

    def _least_seconds(self, run: Run, held: _Held) -> float:
        """Return what the run takes at least on a node without its KV: fetched or computed."""
        speeds = self.loads.fastest
        device, moves = self._device_seconds(run, run.prompt_tokens), 0.0
        for need, holders in zip(run.needs, held, strict=True):
            seconds, moved = self._missing(need, 0, holders, speeds)
            if moved:
                moves += seconds
            else:
                device += seconds
        return moves + 2.0 * device

    def _device_seconds(self, run: Run, tokens: int) -> float:
        speeds = self.loads.fastest
        return tokens * speeds.prefill_token_s + run.answer_tokens * speeds.decode_token_s

    @staticmethod
    def _missing(
        need: Need, has: int, holders: Mapping[str, int], speeds: Speeds
    ) -> tuple[float, bool]:
        """Return the seconds that a node needs for KV of which it has some; whether by a move."""
        tokens = need.tokens - min(has, need.tokens)
        compute = tokens * speeds.prefill_token_s
        if tokens and holders and speeds.move_token_s:
            move = speeds.move_s + tokens * speeds.move_token_s
            if move < 2.0 * compute:  # a move takes nothing of the device
                return move, True
        return compute, False

    def _score(self, run: Run, held: _Held, slot: int) -> _Score:
        loads = self.loads
        node, speeds = loads.names[slot], loads.speeds[slot]
        assert speeds is not None, "a slot without a node"
        prefill, moves_s = run.prompt_tokens * speeds.prefill_token_s, 0.0
        moves: list[tuple[Need, str]] = []
        for need, holders in zip(run.needs, held, strict=True):
            source = _source(need, holders) if speeds.move_token_s else ""
            sources = holders if source else {}
            seconds, moved = self._missing(need, holders.get(node, 0), sources, speeds)
            if moved:
                moves_s += seconds
                moves.append((need, source))
            else:
                prefill += seconds
        decode = run.answer_tokens * speeds.decode_token_s
        done_s = loads.cost_seconds(slot, run.tenant, prefill + decode)
        return _Score(moves_s + done_s, slot, prefill, decode, tuple(moves), moves_s)

    def _stay(self, run: Run, held: _Held, best: _Score) -> _Score:
        """Return the score of the session's node, if it is not far behind the best."""
        if not run.session:
            return best
        node, until = self._sessions.get((run.tenant, run.session), ("", 0.0))
        slot = self.loads.slots.get(node) if until > self._now() else None
        if slot is None:
            return best
        there = self._score(run, held, slot)
        if there.seconds > best.seconds + SESSION_PATIENCE_S:
            return best
        self._by_session += 1
        return there

    # -- Accounts -----------------------------------------------------------------------------
    def _record(self, run: Run, held: _Held, best: _Score) -> Placement:
        node = self.loads.names[best.slot]
        self._placed += 1
        self._by_kv += any(node in holders for holders in held)
        self.loads.add_work(node, run.tenant, best.prefill_s)
        self.loads.add_work(node, run.tenant, best.decode_s)
        for need, holders in zip(run.needs, held, strict=True):
            if holders.get(node, 0) < need.tokens:
                self._expect(node, need, need.owner or run.tenant)
        if run.session:
            self._sessions[run.tenant, run.session] = node, self._now() + SESSION_EXPIRY_S
            self._sessions.move_to_end((run.tenant, run.session))
            if len(self._sessions) > self._sessions_max:
                self._sessions.popitem(last=False)
        return Placement(
            run, node, best.seconds, best.prefill_s, best.decode_s, best.moves, best.moves_s,
            self._lives[node],
        )  # fmt: skip

    def _expect(self, node: str, need: Need, owner: str) -> None:
        """Record KV that a node will have; it says so itself later, or that it has it not."""
        if len(need.keys) == 1:
            self.directory.hold(node, owner, need.keys[0], need.tokens)
            return
        for count, key in enumerate(need.keys, 1):
            self.directory.hold(node, owner, key, min(count * KEY_TOKENS, need.tokens))

    def statistics(self) -> PlacerStatistics:
        return PlacerStatistics(
            self._placed, self._by_family, self._by_session, self._by_kv, self._scans,
            len(self._sessions),
        )  # fmt: skip
