"""Texts under constraints when the kernel dies: they continue, since they follow from tokens."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import numpy as np
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.journal.snapshot import SnapshotClass, Snapshotter
from symphony_kernel.journal.snapshot_classes import MANY
from symphony_kernel.kernel import Kernel, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.constrained import (
    JSON_SCHEMA,
    PERSON,
    PROMPT,
    REGEX,
    assets,
    constraint,
    sampled,
    schema,
    text_of,
)
from tests.support.kernel.crashes import CrashingKernelRig, differences
from tests.support.kernel.grammars import Text, drawn, make_vocabulary, masked
from tests.support.kernel.grammars import constraint as compiled
from tests.support.kernel.rig import A, B, Worker, ids, options, start, tokens
from tests.support.run_by import run_by

T = TypeVar("T")
STEP = CostModel(fixed_us=2_000)  # so that there is time to die in


class TextCrashingRig(CrashingKernelRig):
    """Its model has a tokenizer, and its time is real."""

    def make(self) -> Kernel:
        clock = RealClock()
        device = SimulatedExecutor(clock, 256, assets().model, STEP, hashed=True)
        return Kernel(device, describe(assets()), clock)

    async def die_now(self, chance: random.Random) -> None:
        dead = self.kernel
        self.die(chance)
        dead.constraints.end()  # a process's end would do that
        await asyncio.sleep(chance.choice([0.0, 0.02]))
        self.boot()


def with_text_crashing(
    folder: Path, test: Callable[[TextCrashingRig], Coroutine[Any, Any, T]]
) -> T:
    async def main() -> T:
        rig = TextCrashingRig(RealClock(), folder, log_bytes=20_000)  # type: ignore[arg-type]
        await rig.join()
        await start(rig)
        try:
            return await test(rig)
        finally:
            await rig.close()

    return asyncio.run(main())


async def continuation(worker: Worker) -> list[Any]:
    """A generation, a loop of preds that forks, and texts that are compiled meanwhile."""
    person = await constraint(worker, JSON_SCHEMA, schema(PERSON))
    made = worker.generate(1, A, PROMPT, max=120, constraint=person, get=sampled(3))
    worker.create(1, B)
    digits = await constraint(worker, REGEX, b"([a-f][0-9]){12}")
    assert await worker.call(1, Op.CONSTRAINT_CLOSE, person) == 0
    first, found = PROMPT, []
    for _ in range(8):
        packed = options(constraint=digits, get=sampled(5))
        (token,) = ids(await worker.pred(1, B, first, packed))
        found.append(token)
        first = tokens(token)
    worker.tell(1, Op.KV_FORK, B + 1, B)
    rest = await worker.complete(1, B + 1, first, max=60, constraint=digits, get=sampled(6))
    assert await made.end == b""
    return [made.ids, found + rest.ids]


def test_constrained_texts_survive_kernel_deaths(tmp_path: Path) -> None:
    async def undisturbed(rig: TextCrashingRig) -> list[Any]:
        return await continuation(rig.worker)

    async def dying(rig: TextCrashingRig) -> list[Any]:
        chance = random.Random(7)
        running = asyncio.ensure_future(continuation(rig.worker))
        for _ in range(6):
            await asyncio.wait({running}, timeout=chance.random() / 5)
            await rig.die_now(chance)
        found = await running
        assert not any(peer.lost for peer in rig.peers)
        await rig.gateway.check_integrity()
        return found

    wanted = with_text_crashing(tmp_path / "twin", undisturbed)
    jsonschema.validate(json.loads(text_of(wanted[0])), PERSON)
    assert with_text_crashing(tmp_path / "dying", dying) == wanted


@run_by(with_text_crashing, "tmp_path")
async def test_journal_has_where_each_text_begins(rig: TextCrashingRig) -> None:
    await continuation(rig.worker)
    asked = rig.worker.call(1, Op.CONSTRAINT, REGEX, b"new")  # is waiting, or compiled
    rig.worker.generate(1, A, PROMPT, max=9, constraint=2, get=sampled(1), since=150)
    await rig.worker.call(1, Op.KV_LEN, B)
    assert not differences(rig.recovered_image(), rig.image())
    assert await asked == 3


@dataclass(slots=True)
class Root:
    matcher: GrammarMatcher | None = None


def test_matcher_from_a_snapshot_continues_from_its_tokens() -> None:
    pattern, vocabulary = "([a-f][0-9]){12}", make_vocabulary()
    made = compiled(vocabulary, GrammarKind.REGEX, pattern)
    text = drawn(made, 3)
    file = Text([])
    matcher = GrammarMatcher(made, file, 1, kept=False)
    matcher.set_prefix(np.empty(0, np.uint32))
    entries = [7, *text]
    half = len(text) // 2
    for n in range(half):
        masked(matcher, n, [entries[n]])
    file.ids = entries[:half]

    root, classes = Root(), (*MANY, SnapshotClass(Root), SnapshotClass(Text))
    image = Snapshotter(classes, {"root": Root(matcher)}, {}).write()
    Snapshotter(classes, {"root": root}, {}).read(image)
    again = root.matcher
    assert again is not None
    again.constraint.grammar = compiled(
        vocabulary, GrammarKind.REGEX, pattern
    ).grammar  # another process
    again.set_prefix(np.array(entries[half : half + 1], np.uint32))
    for n in range(half, len(text)):
        assert np.array_equal(masked(again, n, [entries[n]]), masked(matcher, n, [entries[n]]))
