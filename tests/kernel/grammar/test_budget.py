"""Memory of grammars: budgets, which are released first, and texts that continue all the same."""

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
from symphony_kernel.grammar import budget
from symphony_kernel.grammar.budget import GrammarBudget
from symphony_kernel.grammar.compiler import Grammar, GrammarCompiler, Vocabulary
from symphony_kernel.grammar.matcher import LATER
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.platform.malloc import trim
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    GRAMMAR_BYTES_MAX,
    GRAMMAR_IDLE_BYTES_MAX,
    TENANT_GRAMMAR_BYTES_MAX,
    TENANT_GRAMMARS_MAX,
)
from symphony_kernel.protocol.messages import Op

from tests.support.garbage import left_to_collector
from tests.support.kernel.constrained import (
    REGEX,
    assets,
    constraint,
    generate,
    ids_of,
    kernel_with_text,
    sampled,
    start,
)
from tests.support.kernel.grammars import (
    WORDS,
    drawn,
    errno_of,
    grammar_of,
    make_vocabulary,
    masked,
    matcher,
)
from tests.support.kernel.grammars import constraint as made_of
from tests.support.requirements import requires

MIB = 1 << 20


class Held:
    """A grammar that holds so much until it is released."""

    def __init__(self, held_bytes: int, used: float) -> None:
        self.held_bytes, self.used = held_bytes, used

    def release(self) -> None:
        self.held_bytes = 0


class TimedBudget:
    """A budget with a clock; `sweeps`: how often released grammars were swept."""

    def __init__(self, **tenants: list[Held]) -> None:
        self.tenants = tenants
        self.weights: dict[str, float] = {}
        self.now = 100.0
        self.sweeps = 0
        self.budget = GrammarBudget(
            lambda: {
                tenant: [each for each in held if each.held_bytes]
                for tenant, held in self.tenants.items()
            },
            self._count,
            lambda tenant: self.weights.get(tenant, 1.0),
            lambda: self.now,
        )

    def _count(self) -> None:
        self.sweeps += 1

    async def keep(self) -> dict[str, list[int]]:
        self.budget.enforce()
        self.budget.close()
        return {
            tenant: [each.held_bytes // MIB for each in held]
            for tenant, held in self.tenants.items()
        }


def test_budget_of_a_tenant_exceeded_drops_its_least_recently_used() -> None:
    each = TENANT_GRAMMAR_BYTES_MAX // 3
    held = [Held(each, used) for used in (99.0, 97.0, 98.0, 99.5)]
    other = Held(MIB, 90.0)
    found = asyncio.run(TimedBudget(mine=held, other=[other]).keep())
    assert found == {"mine": [each // MIB, 0, each // MIB, each // MIB], "other": [1]}


def test_budget_of_all_exceeded_takes_from_the_largest() -> None:
    most, tenants = TENANT_GRAMMAR_BYTES_MAX, GRAMMAR_BYTES_MAX // TENANT_GRAMMAR_BYTES_MAX
    many = {f"t{n}": [Held(most // 2, 99.0), Held(most // 2, 98.0)] for n in range(tenants)}
    found = asyncio.run(
        TimedBudget(**many, small=[Held(most, 1.0)], least=[Held(MIB, 99.0)]).keep()
    )
    assert sum(sum(held) for held in found.values()) <= GRAMMAR_BYTES_MAX // MIB
    assert found["least"] == [1]


def test_budget_of_all_exceeded_takes_from_the_most_for_its_weight() -> None:
    most = TENANT_GRAMMAR_BYTES_MAX
    tenants = {f"t{n}": [Held(most // 2, 99.0) for _ in range(2)] for n in range(5)}
    others = {"light": [Held(60 * MIB, 99.0)], "one": [Held(GRAMMAR_BYTES_MAX - 5 * most, 99.0)]}
    timed = TimedBudget(**tenants, **others)
    timed.weights = {"light": 0.1, **dict.fromkeys(tenants, 2.0)}
    found = asyncio.run(timed.keep())
    assert [tenant for tenant, held in found.items() if 0 in held] == ["light"]


def test_budget_idle_grammars_go_and_are_swept() -> None:
    idle = [Held(GRAMMAR_IDLE_BYTES_MAX // 2, used) for used in (10.0, 20.0, 30.0)]
    timed = TimedBudget(tenant=idle, other=[Held(100 * MIB, 99.0)])
    found = asyncio.run(timed.keep())
    half = GRAMMAR_IDLE_BYTES_MAX // 2 // MIB
    assert found == {"tenant": [0, half, half], "other": [100]}
    assert timed.sweeps == 1
    asyncio.run(timed.keep())
    assert timed.sweeps == 1, "nothing was released"
    timed.tenants["other"].clear()
    asyncio.run(timed.keep())
    assert timed.sweeps == 2, "its program has ended"


def test_budget_grammar_that_cannot_be_released_is_skipped() -> None:
    class Kept(Held):
        def release(self) -> None:
            """Do nothing: it is being built."""

    asyncio.run(TimedBudget(tenant=[Kept(2 * GRAMMAR_BYTES_MAX, 1.0)]).keep())


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.mark.parametrize("source", ["(ab|cd[0-9]{1,3}|[x-z]+){2,40}", r"(\p{L}x|[0-9]{2}-){3,12}"])
def test_release_during_a_text_keeps_its_masks(vocabulary: Vocabulary, source: str) -> None:
    """A grammar released at each place of a text is built again, and the matcher continues."""
    made, other = (made_of(vocabulary, GrammarKind.REGEX, source) for _ in range(2))
    grammar = grammar_of(made)
    for seed in range(4):
        text = drawn(other, seed)[:-1][:24]
        stepping = matcher(made, [])
        for end in range(1, len(text)):
            grammar.release()
            assert grammar.held_bytes == 0
            assert not grammar.ready()
            grammar.build()
            assert grammar.held_bytes > 0
            mine = masked(stepping, end - 1, [text[end - 1]])
            fresh = masked(matcher(other, text[: end - 1]), end - 1, [text[end - 1]])
            assert mine.tolist() == fresh.tolist()


def test_release_during_a_text_makes_its_next_mask_late(vocabulary: Vocabulary) -> None:
    made = made_of(vocabulary, GrammarKind.LARK, 'start: ("ab" | "cd")+')
    stepping = matcher(made, [])
    masked(stepping, 0, [])
    era = ref(grammar_of(made).generation)
    grammar_of(made).release()
    mask = np.zeros(WORDS, np.uint32)
    assert stepping.fill(0, np.empty(0, np.uint32), mask) is LATER
    assert era() is None, "the matcher does not hold it, either"
    assert masked(stepping, 0, []).tolist() == masked(matcher(made, []), 0, []).tolist()


@pytest.mark.parametrize(
    ("source", "text", "errno"),
    [("((a{1,100}){1,100}){1,100}", "a" * 12, Errno.EFBIG), ("[0-9]+", "abc", Errno.EINVAL)],
)
def test_failed_text_leaves_no_cycle_that_holds_its_grammar(
    vocabulary: Vocabulary, source: str, text: str, errno: Errno
) -> None:
    """An exception in a local variable of its own frame is one: with the matcher and its step."""
    with left_to_collector("symphony_kernel"):
        made = made_of(vocabulary, GrammarKind.REGEX, source)
        gone = ref(grammar_of(made))
        tokens = ids_of(text)
        for _ in range(3):  # from the second time on the error is known beforehand
            assert errno_of(matcher(made, tokens[:-1]), len(tokens) - 1, tokens[-1:]) is errno
        del made
        assert gone() is None


def test_grammars_of_ended_programs_are_freed() -> None:
    """Without the garbage collector, which runs too seldom."""

    async def test() -> None:
        async with kernel_with_text() as rig:
            worker = await start(rig)
            for instance in range(10, TENANT_GRAMMARS_MAX + 30):
                await rig.gateway.register(instance)
                worker.tell(instance, Op.KV_CREATE, 1 << 16)
                handle = await constraint(worker, REGEX, b"[a-z]{%d}" % (instance - 8), instance)
                asked = {"constraint": handle, "max": 3, "get": sampled(instance)}
                await generate(worker, instance, 1 << 16, **asked)
                await rig.gateway.end(instance)

    with left_to_collector("symphony_kernel"):
        asyncio.run(test())


async def test_grammars_compiled_at_once_find_room_where_none_is_in_use(
    grammars: GrammarCompiler,
) -> None:
    """Sixteen that compile at the same time fit where 64 are cached and idle."""
    loop = asyncio.get_running_loop()
    for number in range(0, 2 * TENANT_GRAMMARS_MAX, 16):
        ended = [loop.create_future() for _ in range(16)]
        for index, future in enumerate(ended):
            text = f"[a-z]{{{number + index + 1}}}"
            grammars.compile("t", 1, text, _into(future))
        assert await asyncio.gather(*ended) == [0] * 16


@pytest.fixture
def grammars() -> Iterator[GrammarCompiler]:
    found = GrammarCompiler(assets().tokenizer_json, 4_096, (0,))
    yield found
    found.close()


async def compile_large(grammars: GrammarCompiler, number: int) -> None:
    """Compile a schema of 200 kB, of which fifteen are more than a tenant may hold."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    schema = json.dumps({"enum": [f"{number}-{n:06}" for n in range(16_000)]})
    grammars.compile("t", 0, schema, _into(ended))
    assert await ended == 0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_grammars_of_one_tenant_stay_within_its_budget(grammars: GrammarCompiler) -> None:
    most = 0
    for number in range(20):
        await compile_large(grammars, number)
        most = max(most, grammars._budget.held_bytes)
    assert TENANT_GRAMMAR_BYTES_MAX / 2 < most <= TENANT_GRAMMAR_BYTES_MAX
    assert grammars.statistics()["grammars"] == 20
    built = [each for each in _all(grammars) if each.generation is not None]
    assert 5 < len(built) < 18


@requires("linux", sys.platform == "linux", "of glibc's allocator")
async def test_grammars_that_are_idle_give_memory_back_to_the_system(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compile_large(grammars, 99)  # and what the first one loads
    gc.collect()  # what earlier tests have left
    trim()
    before = resident()
    for number in range(12):
        await compile_large(grammars, number)
    peak = resident()
    assert before + 50 * MIB < peak < before + TENANT_GRAMMAR_BYTES_MAX
    monkeypatch.setattr(budget, "_IDLE_SECONDS", 0.0)
    async with asyncio.timeout(20):
        while resident() > before + 25 * MIB:
            await asyncio.sleep(0.1)
            trim()  # as each role does regularly


def _into(future: "asyncio.Future[int]") -> Callable[[int, str], None]:
    """Return what puts the errno of a compilation into a future."""
    return lambda errno, _: future.set_result(errno)


def _all(grammars: GrammarCompiler) -> list[Grammar]:
    return [grammar for live in grammars._live.values() for grammar in live]
