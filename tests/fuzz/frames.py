"""Cases of frames: a worker that strangers have taken over says what it likes to the kernel.

Frames are well-formed calls mostly, of instances that are its own, another worker's, or unknown;
some arguments are near misses or of any type; some frames are none of the messages. What must hold:
the kernel goes on and owes nothing to the frame after it; each call that names one of its instances
is answered, and nothing else is; a victim on another worker notices nothing.
"""

import asyncio
import struct
import time
from dataclasses import dataclass
from random import Random
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.links import MemoryLink, memory_pair
from symphony_kernel.protocol.messages import Op

from tests.fuzz.rig import FuzzRig, Seen, Setting, played
from tests.fuzz.values import EDGES, GRANTS, PATHS, VOCAB, piece, stretches
from tests.fuzz.victim import expected_of_victim, victim_beside

EVIL = "evil"
_INSTANCES = range(10_001, 10_005)
_SESSION = b"evil-session-001"
_HANDLE = 1 << 16
_FRAME_SECONDS = 5.0  # of the processor, on a slow machine: a hold-up, not a slow frame
_FRAMES = 60
_KINDS = (6, 7, 10, 10, 10, 20, 21, 3, 4, 11, 31, 40, 42, 44, 99, -1)

# Of each operation's arguments: h a handle, H a new one, p a path, and so on (`Frames.argument`).
_SHAPES: dict[int, str] = {
    Op.KV_CREATE: "H", Op.KV_OPEN: "Hpr", Op.KV_FORK: "Hh", Op.KV_EXTRACT: "HhR",
    Op.KV_APPEND: "hhnn", Op.KV_TRUNCATE: "hn", Op.KV_LEN: "h", Op.KV_STAT: "h",
    Op.KV_TOKENS: "hnn", Op.KV_SAVE: "hpf", Op.KV_REMOVE: "p", Op.KV_LIST: "p",
    Op.KV_GRANT: "hirg", Op.KV_GRANTED: "Hg", Op.KV_CLOSE: "h", Op.PRED: "htPo",
    Op.STAGE: "ns", Op.CANCEL: "q", Op.GENERATE: "htG", Op.TAKEN: "qn", Op.KV_OFFER: "h",
    Op.KV_MATCH: "Ht", Op.KV_LIST_AFTER: "ppn", Op.KV_ADVISE: "hnn", Op.WAITS: "n",
    Op.CONSTRAINT: "nc", Op.CONSTRAINT_CLOSE: "n",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Frames, and how long to wait behind each (seconds)."""

    setting: Setting
    frames: tuple[tuple[list[Any], float], ...]

    def __str__(self) -> str:
        return "\n".join([str(self.setting), *(f"  {frame!r}"[:2_000] for frame in self.frames)])


class Frames:
    """Makes a case's frames."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._seq = 0
        self._made = 0

    def frame(self) -> list[Any]:
        rng = self._rng
        if rng.random() < 0.9:
            return [m.Calls.KIND, [self.call() for _ in range(rng.choice((1, 1, 2, 5, 20)))]]
        if rng.random() < 0.3:
            return [m.Calls.KIND, [self.anything() for _ in range(3)]]
        kind = rng.choice(_KINDS) if rng.random() < 0.9 else self.anything()
        return [kind, *(self.anything() for _ in range(rng.choice((0, 1, 1, 2, 3, 6))))]

    def call(self) -> Any:
        rng = self._rng
        op = rng.choice([*_SHAPES, Op.PRED, Op.PRED, Op.KV_CREATE, Op.GENERATE])
        self._seq += 1
        odds = rng.random()
        seq: Any = self._seq if odds < 0.85 else 0 if odds < 0.93 else self.anything()
        instance: Any = rng.choice(_INSTANCES)
        if rng.random() < 0.06:
            instance = rng.choice((1, 2, 0, -1, 1 << 63, self.anything()))
        given = [self.argument(kind) for kind in _SHAPES[op]]
        if rng.random() < 0.05:
            given = given[:-1] if rng.random() < 0.5 else [*given, self.anything()]
        number = int(op) if rng.random() < 0.98 else self.anything()
        return [instance, number, seq, *given]

    def argument(self, kind: str) -> Any:
        rng = self._rng
        if rng.random() < 0.08:
            return self.anything()
        if kind == "H":
            self._made += 1
            return _HANDLE + self._made % 40
        if kind == "h":
            return _HANDLE + max(self._made - rng.randrange(6), 0) % 40
        if kind == "n":
            return rng.choice((0, 1, 2, 4, 16, 30, rng.choice(EDGES), -1))
        if kind == "q":
            return max(self._seq - rng.randrange(1, 12), 0)
        if kind == "i":
            return rng.choice((*_INSTANCES, 1))
        return self._data(kind)

    def _data(self, kind: str) -> Any:
        rng = self._rng
        if kind in "rf":
            return rng.choice((0, 1, 3, 7, 31, 32))
        if kind == "p":
            return rng.choice((*PATHS, "", "/", "../x", "a//b", "\0", "x" * 2_000))
        if kind == "g":
            return rng.choice((*GRANTS, "", "y" * 200))
        if kind == "c":
            return piece(rng, "grammar").decode(errors="replace")
        if kind == "s":
            return [[self.argument("h"), 3, self.argument("g")] for _ in range(rng.choice((0, 2)))]
        if kind == "P" and rng.random() < 0.6:
            return None
        if kind == "t" and rng.random() < 0.5:
            return struct.pack("<I", rng.randrange(VOCAB))
        kinds = {"t": "tokens", "P": "positions", "o": "pred", "G": "generate", "R": "ranges"}
        return b"" if kind == "o" and rng.random() < 0.4 else piece(rng, kinds[kind])

    def anything(self, depth: int = 0) -> Any:
        """Return a value of any type that a frame can carry."""
        rng = self._rng
        plain = (
            None, True, False, 0, -1, 1 << 63, -(1 << 63), (1 << 64) - 1, 1.5, float("nan"),
            float("inf"), "", "x", "\U0001f600", b"", b"\0" * 9, rng.choice(EDGES),
        )  # fmt: skip
        if depth > 3 or rng.random() < 0.7:
            return rng.choice(plain)
        items = [self.anything(depth + 1) for _ in range(rng.choice((0, 1, 3, 12)))]
        return items if rng.random() < 0.6 else {str(i): each for i, each in enumerate(items)}


def make(rng: Random, count: int = _FRAMES) -> Case:
    frames = Frames(rng)
    setting = Setting(
        pages=rng.choice((32, 64)),
        host=rng.choice((0, 16)),
        predictions=rng.random() < 0.7,
        step_ms=rng.choice((0.1, 5.0)),
    )
    waits = (0.0, 0.0, 0.0, 0.001, 0.006, 0.02)
    made = tuple((frames.frame(), rng.choice(waits)) for _ in range(rng.choice((5, count, count))))
    return Case(setting, made)


class _Evil:
    """The other end of the kernel's link with that worker."""

    def __init__(self, rig: FuzzRig) -> None:
        self._rig = rig
        # (instance, seq) -> operations: more than one where a number is taken twice.
        self.asked: dict[tuple[int, int], list[int]] = {}
        self.link: MemoryLink
        self.taken = 0

    async def connect(self) -> None:
        self.asked.clear()
        self.link, theirs = memory_pair()
        self.link.receive(self._on_frame, lambda: None)
        self._rig.server.accept(theirs)
        hello = m.Hello(m.PROTOCOL_VERSION, "worker", EVIL, self._rig.secret, 1, _SESSION)
        self.link.send(m.encode(hello))
        await asyncio.sleep(0.001)
        for instance in _INSTANCES:
            await self._rig.gateway.register(instance, f"t{instance % 2}", EVIL)

    def send(self, frame: list[Any]) -> None:
        """Send a frame, and note what must be answered."""
        if frame[0] == m.Calls.KIND and len(frame) == 2 and isinstance(frame[1], list):
            for call in frame[1]:
                self._note(call)
        self.link.send(frame)

    def _note(self, call: Any) -> None:
        if not isinstance(call, list) or len(call) < 3:
            return
        instance, op, seq = call[:3]
        if type(instance) is int and type(seq) is int and instance in _INSTANCES:
            self._rig.seen.calls[str(op) if type(op) is int else "?"] += 1
            if 0 < seq < 1 << 63:
                self.asked.setdefault((instance, seq), []).append(op if type(op) is int else 0)

    def _on_frame(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            return
        for instance, seq, result in frame[1]:
            ops = self.asked.get((instance, seq))
            if not ops:
                self._rig.seen.wrong.append(f"an unexpected reply: {instance}, {seq}")
            elif Op.GENERATE not in ops or not result or isinstance(result, int):
                # Of two calls with one number the generation continues.
                ops.sort(key=lambda op: op == Op.GENERATE)
                del ops[0]


def play(case: Case) -> tuple[Seen, float]:
    """Play a case; return what was seen, and the processor's seconds that it took."""
    alone = expected_of_victim()

    async def whole(rig: FuzzRig) -> None:
        evil = _Evil(rig)
        await evil.connect()
        watching = asyncio.ensure_future(victim_beside(rig, alone))
        for frame, wait in case.frames:
            began = time.thread_time()
            evil.send(frame)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            took = time.thread_time() - began
            if took > _FRAME_SECONDS:
                rig.seen.wrong.append(f"a frame took {took:.1f} s: {frame!r}"[:300])
            await asyncio.sleep(wait)
            if evil.link.closed:
                await evil.connect()
        await watching
        await _end(rig, evil)

    return played(case.setting, Random(0), whole)


async def _end(rig: FuzzRig, evil: _Evil) -> None:
    """Check that all calls are answered, after untaken generations are cancelled."""
    ends = [[i, Op.CANCEL, 0, seq] for (i, seq), ops in evil.asked.items() if ops]
    evil.link.send([m.Calls.KIND, ends])
    await asyncio.sleep(60)
    left = {key: ops for key, ops in evil.asked.items() if ops}
    if left and not evil.link.closed:
        rig.seen.wrong.append(f"never answered: {left}")
    for instance in _INSTANCES:
        try:
            await rig.gateway.end(instance)
        except SyscallError as error:
            if not evil.link.closed:
                rig.seen.wrong.append(f"instance {instance}: {error}")


def smaller(case: Case, at: int) -> Case | None:
    """Return the case with something left out, the `at`-th thing that could be; None: no more."""
    out = stretches(len(case.frames), (32, 8, 1))
    if at < len(out):
        return Case(case.setting, case.frames[: out[at].start] + case.frames[out[at].stop :])
    at -= len(out)
    for index, (frame, wait) in enumerate(case.frames):
        if frame[0] != m.Calls.KIND or len(frame) != 2 or len(frame[1]) < 2:
            continue
        if at < len(frame[1]):
            less = [m.Calls.KIND, frame[1][:at] + frame[1][at + 1 :]]
            before, behind = case.frames[:index], case.frames[index + 1 :]
            return Case(case.setting, (*before, (less, wait), *behind))
        at -= len(frame[1])
    return None
