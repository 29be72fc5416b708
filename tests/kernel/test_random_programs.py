"""Random programs of several tenants against lists, while pages leave and the kernel dies.

Real sessions, kernel, journal, schedulers and tiers, on memory links and in virtual time; the
device is the simulated one, whose model computes each entry from all that it could see. So a page
that came back wrong, a call that was lost or done twice, or a right that grew, is another answer
than the reference's (`tests.support.kernel.kvfs_reference`), which knows nothing of all that.

SYMPHONY_SEQUENCES=2000 plays so many programs instead of 120 (about five minutes).
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.prediction import PredictionOptions

from tests.support.kernel.crashes import CrashingKernelRig, Peer, with_crashing_kernel
from tests.support.kernel.kvfs_reference import Reference, RefusedError
from tests.support.kernel.rig import ASSETS, Gateway, Result, Worker, options, pairs, tokens

# What is edited many times over may need several times its pages to be computed again; with fewer
# frames it would be tied, and programs hear of that (`test_tying`).
FRAMES = 88
PLACES = TierConfig(host_slots=24, pages_a_frame=16, poison=True)
ENTRIES_MAX = {"t": 480, "u": 150}  # of a run: a file and what computes it again fit the device
MARGIN = 20  # pages: what calls under way may hold for a while
PATHS = ("a", "a/b", "c")
NAMES = ("x", "y")
BOLD = PredictionOptions(least=0, odd=0, vain=0)  # all that could be guessed is
SEQUENCES = int(os.environ.get("SYMPHONY_SEQUENCES", "120"))

Operation = tuple[str, int, int, int, int]
WHATS = [
    "create", "fork", "fork", "extract", "append", "truncate", "len", "stat", "tokens",
    "pred", "pred", "pred", "tree", "places", "aside", "generate", "decode", "decode", "decode",
    "close", "save", "open",
    "remove", "list", "grant", "granted", "advise", "end", "kill", "evict", "evict", "die", "die",
]  # fmt: skip
OPERATIONS = st.tuples(
    st.sampled_from(WHATS),
    st.integers(0, 3),
    st.integers(0, 40),
    st.integers(0, 90),
    st.integers(0, 90),
)
WAITING = {
    "generate", "decode", "save", "open", "remove", "list", "grant", "granted", "kill", "evict",
}  # fmt: skip


@dataclass
class Asked:
    """A call on its way: what should come of it, and how its reply is read."""

    wanted: Any
    reply: "asyncio.Future[Result]"
    read: Callable[[Result], Any]


class Player:
    """Plays a program to the kernel and to the reference."""

    def __init__(
        self, rig: CrashingKernelRig, gateway: Gateway, worker: Worker, chance: random.Random
    ):
        self.rig, self.gateway, self.chance = rig, gateway, chance
        self.workers = {"w": worker}
        self.reference = Reference(ASSETS.model.vocab_size)
        self.crew: list[int] = []  # instances that take part, by their places
        self.made = 0  # instances, and handles
        self.guessed = 0  # preds that kernels which have died computed before they came
        self.batch: dict[int, list[Asked]] = {}
        self.frames: dict[int, list[list[Any]]] = {}

    # -- Who takes part --------------------------------------------------------------------------
    async def begin(self) -> None:
        await self._begin_worker()
        for place in range(4):
            self.crew.append(0)
            await self._join(place)

    async def _begin_worker(self) -> None:
        peer = Peer(self.rig, "worker", "v")
        self.rig.peers.append(peer)
        await peer.begun.wait()
        self.workers["v"] = Worker(peer.session)

    async def _join(self, place: int) -> None:
        """Places 0 and 1 are a parent and its child, 2 is another tenant's, 3 on its own worker."""
        self.made += 1
        number = self.made
        tenant, worker = ("u" if place == 2 else "t"), ("v" if place == 3 else "w")
        parent = self.crew[0] if place == 1 else 0
        most = ENTRIES_MAX[tenant]
        self.crew[place] = number
        self.reference.register(number, tenant, worker, parent, most)
        answer = await self.gateway.register(number, tenant, worker, parent, kv_tokens=most)
        assert answer.errno == 0, answer
        for place, n in enumerate((89, 40, 20)):  # of u's 150 entries only two are left
            await self._create(number, 0, 0, 0)
            self._pred_of(number, place, n, 0)

    # -- Playing ---------------------------------------------------------------------------------
    async def play(self, program: list[Operation]) -> None:
        for what, place, a, b, c in program:
            number = self.crew[place]
            if what == "die":
                await self._flush(dying=True)
                continue
            mine = self.reference.instances[number].tenant
            for other in list(self.frames):
                if other != number and self.reference.instances[other].tenant is mine:
                    await self._flush()
                    break
            if what in WAITING or (number in self.frames and self._tight(number)):
                # Of a quota it matters what has been computed when the next call is made.
                await self._flush()
            await getattr(self, "_" + what)(number, a, b, c)
            if what in WAITING:
                await self._flush()
        await self._flush()

    def _tight(self, number: int) -> bool:
        run = self.reference.instances[number].run
        return run.pages + MARGIN > run.pages_max

    def _ask(
        self,
        number: int,
        op: int,
        *arguments: Any,
        wanted: Callable[[], Any],
        read: Callable[[Result], Any] = lambda result: result,
    ) -> None:
        """Queue a call, and let the reference make it."""
        expected: Any
        try:
            expected = wanted()
        except RefusedError as error:
            expected = -error.errno
        worker = self._worker(number)
        worker._seq += 1
        reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        worker.replies[number, worker._seq] = reply
        self.batch.setdefault(number, []).append(Asked(expected, reply, read))
        frame = [number, int(op), worker._seq, *arguments]
        self.frames.setdefault(number, []).append(frame)

    def _ask_both(
        self, number: int, op: int, wanted: Callable[..., Any], *arguments: Any, **given: Any
    ) -> None:
        """Queue a call that the reference makes with the same arguments."""
        self._ask(number, op, *arguments, wanted=lambda: wanted(number, *arguments), **given)

    def _worker(self, number: int) -> Worker:
        return self.workers[self.reference.instances[number].worker]

    def _send(self) -> list[Asked]:
        frames, self.frames = self.frames, {}
        batch, self.batch = self.batch, {}
        for number, calls in frames.items():
            self._worker(number).link.send(m.encode(m.Calls(calls)))
        return [asked for each in batch.values() for asked in each]

    async def _flush(self, dying: bool = False) -> None:
        """Send what is queued and compare the replies; the kernel may die meanwhile."""
        asked = self._send()
        if dying:
            await self._die()
        for each in asked:
            result = await each.reply
            found = each.read(result) if not isinstance(result, int) or result >= 0 else result
            assert found == each.wanted, (found, each.wanted)
        if asked:
            held = int((self.rig.kernel._kvfs.pool.references > 0).sum())
            assert held == len(self.reference.pages)

    async def _die(self) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.011, 0.02, 0.05]))
        self.guessed += self.rig.kernel.statistics()["preds_guessed"]
        self.rig.die(self.chance)
        await asyncio.sleep(self.chance.choice([0.0, 0.01]))
        self.rig.boot()

    # -- What a program does ---------------------------------------------------------------------
    def _handle(self, number: int, choice: int) -> int:
        """A handle of its own; now and then one that it has not, or has no more."""
        handles = sorted(self.reference.instances[number].handles)
        if not handles or choice % 16 == 15:
            return 1 << 16 | (choice * self.made) % 4_000
        return handles[choice % len(handles)]

    def _new(self) -> int:
        self.made += 1
        return 1 << 16 | self.made

    def _length(self, number: int, handle: int) -> int:
        found = self.reference.instances[number].handles.get(handle)
        return len(found.file.entries) if found else 0

    async def _create(self, number: int, a: int, b: int, c: int) -> None:
        new = self._new()
        self._ask_both(number, Op.KV_CREATE, self.reference.create, new)

    async def _fork(self, number: int, a: int, b: int, c: int) -> None:
        new, source = self._new(), self._handle(number, a)
        self._ask_both(number, Op.KV_FORK, self.reference.fork, new, source)

    async def _extract(self, number: int, a: int, b: int, c: int) -> None:
        new, source = self._new(), self._handle(number, a)
        ranges = [(b, c), (b // 2, b)] if a % 3 else [(min(b, c), max(b, c))]
        if a % 5:  # mostly such as can be had
            length = self._length(number, source)
            ranges = [
                (min(start, end, length), min(max(start, end), length)) for start, end in ranges
            ]
        packed = tokens(*(bound for pair in ranges for bound in pair))
        self._ask(
            number, Op.KV_EXTRACT, new, source, packed,
            wanted=lambda: self.reference.extract(number, new, source, ranges),
        )  # fmt: skip

    async def _append(self, number: int, a: int, b: int, c: int) -> None:
        handle, source = self._handle(number, a), self._handle(number, a // 2 + c)
        length = self._length(number, source)
        start = (b % 3) * 16 if b % 2 else b
        start, end = (min(start, length), min(start + c, length)) if a % 7 else (b, c)
        self._ask_both(number, Op.KV_APPEND, self.reference.append, handle, source, start, end)

    async def _truncate(self, number: int, a: int, b: int, c: int) -> None:
        handle = self._handle(number, a)
        length = b if c % 8 == 0 else min(b, self._length(number, handle))
        self._ask_both(number, Op.KV_TRUNCATE, self.reference.truncate, handle, length)

    async def _len(self, number: int, a: int, b: int, c: int) -> None:
        self._ask_length(number, self._handle(number, a))

    def _ask_length(self, number: int, handle: int) -> None:
        self._ask_both(number, Op.KV_LEN, self.reference.length, handle)

    async def _stat(self, number: int, a: int, b: int, c: int) -> None:
        handle = self._handle(number, a)

        def read(result: Result) -> dict[str, Any]:
            found = msgpack.unpackb(result)
            found.pop("expires_ms")  # a wish may have set it
            assert found.pop("tier") in ("device", "host", "disk", "tokens")
            return dict(found)

        self._ask_both(number, Op.KV_STAT, self.reference.stat, handle, read=read)

    async def _tokens(self, number: int, a: int, b: int, c: int) -> None:
        handle = self._handle(number, a)
        n = c if c % 8 == 0 else max(0, min(c, self._length(number, handle) - b))
        self._ask_tokens(number, handle, b, n)

    def _ask_tokens(self, number: int, handle: int, start: int, n: int) -> None:
        self._ask_both(number, Op.KV_TOKENS, self.reference.tokens, handle, start, n, read=_tokens)

    def _pred_of(self, number: int, a: int, b: int, c: int, **given: Any) -> None:
        handle = self._handle(number, a)
        n = 1 if c % 3 else 1 + b
        ids = [(7 * b + 13 * c + 3 * i * i) % 4_000 + 1 for i in range(n)]
        positions = given.pop("positions", None)
        if positions is not None:
            positions = [(positions + 2 * i) % 1_000 for i in range(n)]
        if "parents" in given:
            given["parents"] = [(i * (b + 1) + c) % (i + 1) - 1 for i in range(n)]
        packed = options(at="all", **given)
        places = None if positions is None else tokens(*positions)
        self._ask(
            number, Op.PRED, handle, tokens(*ids), places, packed,
            wanted=lambda: self.reference.pred(number, handle, ids, positions, **given),
            read=lambda result: [token for token, _ in pairs(result)],
        )  # fmt: skip

    async def _pred(self, number: int, a: int, b: int, c: int) -> None:
        self._pred_of(number, a, b, c)

    async def _tree(self, number: int, a: int, b: int, c: int) -> None:
        self._pred_of(number, a, b % 20, 3 * (c // 3), parents=True)

    async def _places(self, number: int, a: int, b: int, c: int) -> None:
        self._pred_of(number, a, b, c, positions=c)

    async def _aside(self, number: int, a: int, b: int, c: int) -> None:
        self._pred_of(number, a, b, c, keep=False)

    async def _decode(self, number: int, a: int, b: int, c: int) -> None:
        """Pred after pred on a file, most of them of the token that the last one gave."""
        handle, token = self._handle(number, a), 1 + b
        chance = random.Random(a * 8_281 + b * 91 + c)
        given: dict[str, Any] = {}
        for _ in range(3 + c % 14):
            made = self._pred_of_one(number, handle, token, given)
            await self._flush(dying=chance.random() < 0.02)
            if made is None:
                return
            token = made
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.0, 0.002, 0.009, 0.03]))
            what = chance.choice(["same"] * 9 + ["token", "options", "truncate", "fork", "other"])
            if what == "token":
                token = 1 + chance.randrange(4_000)
            elif what == "options":
                given = chance.choice(
                    [{}, {"logprobs": 1}, {"get": {"sample": {"seed": 1, "top_k": 1}}}]
                )
            elif what == "truncate":
                await self._truncate(number, a, max(0, self._length(number, handle) - 1), 1)
            elif what == "fork":
                await self._fork(number, a, 0, 0)
                handle = chance.choice([handle, 1 << 16 | self.made])
            elif what == "other":
                await getattr(
                    self, chance.choice(["_len", "_stat", "_append", "_aside", "_evict"])
                )(number, a, chance.randrange(40), chance.randrange(40))

    def _pred_of_one(
        self, number: int, handle: int, token: int, given: dict[str, Any]
    ) -> int | None:
        """Ask for what comes behind one token; None: the pred will be refused."""
        best: list[int] = []

        def wanted() -> list[int]:
            best.extend(self.reference.pred(number, handle, [token]))
            return best

        self._ask(
            number, Op.PRED, handle, tokens(token), None, options(**given),
            wanted=wanted, read=lambda result: [token for token, _ in pairs(result)][:1],
        )  # fmt: skip
        return best[0] if best else None

    async def _generate(self, number: int, a: int, b: int, c: int) -> None:
        handle = self._handle(number, a)
        ids = [(b + 5 * i) % 4_000 + 1 for i in range(1 + c % 40)]
        most = 1 + b % 12
        given: list[int] = []
        error: int | None
        try:
            given, error = self.reference.generate(number, handle, ids, most)
        except RefusedError as refused:
            error = refused.errno
        made = self._worker(number).generate(number, handle, tokens(*ids), max=most)
        if c % 2:
            await self._die()
        end = await made.end
        assert (made.ids, end) == (given, b"" if error is None else -error)

    async def _close(self, number: int, a: int, b: int, c: int) -> None:
        handle = self._handle(number, a)
        self._ask_both(number, Op.KV_CLOSE, self.reference.close, handle)

    async def _save(self, number: int, a: int, b: int, c: int) -> None:
        handle, path, replace = self._handle(number, a), PATHS[b % 3], bool(c % 2)
        self._ask(
            number, Op.KV_SAVE, handle, path, int(replace),
            wanted=lambda: self.reference.save(number, handle, path, replace),
        )  # fmt: skip

    async def _open(self, number: int, a: int, b: int, c: int) -> None:
        new, path, rights = self._new(), PATHS[b % 3], c % 32 if c % 4 == 0 else 31
        self._ask_both(number, Op.KV_OPEN, self.reference.open, new, path, rights)

    async def _remove(self, number: int, a: int, b: int, c: int) -> None:
        path = PATHS[b % 3]
        self._ask_both(number, Op.KV_REMOVE, self.reference.remove, path)

    async def _list(self, number: int, a: int, b: int, c: int) -> None:
        prefix = ("", "a", "a/")[b % 3]

        def read(result: Result) -> list[tuple[str, int, int]]:
            return [(each["path"], each["len"], each["pages"]) for each in msgpack.unpackb(result)]

        self._ask_both(number, Op.KV_LIST, self.reference.listing, prefix, read=read)

    async def _grant(self, number: int, a: int, b: int, c: int) -> None:
        handle, to = self._handle(number, a), self.crew[b % 4]
        rights, name = c % 32 if c % 2 else 31, NAMES[b % 2]
        self._ask_both(number, Op.KV_GRANT, self.reference.grant, handle, to, rights, name)

    async def _granted(self, number: int, a: int, b: int, c: int) -> None:
        new, name = self._new(), NAMES[b % 2]
        self._ask_both(number, Op.KV_GRANTED, self.reference.take_grant, new, name)

    async def _advise(self, number: int, a: int, b: int, c: int) -> None:
        """A wish, which changes nothing that can be seen."""
        handle, hint = self._handle(number, a), b % 5
        self._ask(
            number, Op.KV_ADVISE, handle, hint, c % 8 if hint in (1, 4) else 0,
            wanted=lambda: self.reference.advise(number, handle),
        )  # fmt: skip

    # -- Ends ------------------------------------------------------------------------------------
    async def _end(self, number: int, a: int, b: int, c: int) -> None:
        """An instance ends, with what it has asked for under way."""
        for asked in self.batch.get(number, ()):
            asked.reply.cancel()
        self._forget(number)
        self._send_of(number)
        await self.gateway.end(number)
        self.reference.end(number)
        await self._join(self.crew.index(number))

    def _send_of(self, number: int) -> None:
        calls = self.frames.pop(number, None)
        self.batch.pop(number, None)
        if calls:
            self._worker(number).link.send(m.encode(m.Calls(calls)))

    def _forget(self, number: int) -> None:
        """No reply is awaited by an instance that ends; those on their way may come or not."""
        worker = self._worker(number)
        for key, reply in worker.replies.items():
            if key[0] == number:
                worker.replies[key] = asyncio.get_running_loop().create_future()
                reply.cancel()

    async def _kill(self, number: int, a: int, b: int, c: int) -> None:
        """The worker "v" dies, and another one takes its place."""
        self.rig.peers.pop().stop()
        await self._begin_worker()
        for gone in self.reference.end_worker("v"):
            await self.gateway.end(gone)  # what it had used, which is asked for here alone
            await self._join(self.crew.index(gone))

    async def _evict(self, number: int, a: int, b: int, c: int) -> None:
        self.rig.kernel._kvfs.eviction.make_free(FRAMES - a % 12)

    async def finish(self) -> None:
        """Look at everything that is there, and give it back."""
        for number in self.crew:
            for handle in sorted(self.reference.instances[number].handles):
                self._ask_length(number, handle)
                await self._stat(number, 0, 0, 0)
                self._ask_tokens(number, handle, 0, self._length(number, handle))
            await self._flush()
        await self.gateway.check_integrity()
        for number in (0, 2):
            for path in list(self.reference.instances[self.crew[number]].tenant.names):
                await self._remove(self.crew[number], 0, PATHS.index(path), 0)
        await self._flush()
        for number in self.crew:
            await self.gateway.end(number)
            self.reference.end(number)
        await self.gateway.check_integrity()
        assert not self.reference.pages
        assert not (self.rig.kernel._kvfs.pool.references > 0).any()


def _tokens(result: Result) -> list[int]:
    assert isinstance(result, bytes)
    ids: list[int] = np.frombuffer(result, "<u4").tolist()
    return ids


def play(program: list[Operation], seed: int) -> int:
    """Play a program; return how many of its preds were computed before they came."""
    guessed = 0

    async def test(rig: CrashingKernelRig) -> None:
        nonlocal guessed
        player = Player(rig, rig.gateway, rig.worker, random.Random(seed))
        await player.begin()
        await player.play(program)
        await player.finish()
        guessed = player.guessed + rig.kernel.statistics()["preds_guessed"]

    given = KernelOptions(
        tenants=TenantLimits(pages=FRAMES), places=PLACES, prefix_cache_share=0.0, predictions=BOLD
    )
    with tempfile.TemporaryDirectory() as folder:
        with_crashing_kernel(Path(folder), test, pages=FRAMES, log_bytes=40_000, options=given)
    return guessed


@settings(max_examples=SEQUENCES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATIONS, min_size=25, max_size=80), st.integers(0, 1 << 30))
def test_random_programs_get_what_lists_would_give(program: list[Operation], seed: int) -> None:
    play(program, seed)


def test_decodes_of_such_programs_are_computed_ahead() -> None:
    """Otherwise the test above would not test guesses."""
    program: list[Operation] = [
        ("decode", place, number, 7 * number, 13) for number in range(6) for place in range(4)
    ]
    assert play(program, 1) > 60
