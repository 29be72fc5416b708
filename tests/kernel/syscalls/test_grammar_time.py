"""Time of bitmasks and grammars: spread over steps, on their own thread, and charged."""

import asyncio
import threading
from typing import Any

import pytest
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.grammar.compiler import Grammar
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.errno import Errno, SyscallError

from tests.support.kernel.constrained import (
    EOS,
    PROMPT,
    REGEX,
    KernelRig,
    assets,
    constraint,
    generated,
    ids_of,
    kernel_with_text,
    preds,
    refused,
    sampled,
    with_text,
)
from tests.support.kernel.rig import A, B, ids, options, start, tokens
from tests.support.run_by import run_by
from tests.support.waiting import wait_until


def test_slow_bitmasks_are_spread_over_steps() -> None:
    steps: list[list[bool]] = []

    class Watched(SimulatedExecutor):
        async def run(self, batch: Batch) -> list[bytes | SyscallError]:
            steps.append([row.matcher is not None for row in batch.rows])
            return await super().run(batch)

    async def main() -> None:
        device = Watched(RealClock(), 512, assets().model, CostModel(fixed_us=200.0), hashed=True)
        async with kernel_with_text(device) as rig:
            worker = await start(rig)
            handle = await constraint(worker, REGEX, b"[a-z]{300}")
            grammars = rig.kernel.constraints.grammars
            (grammar,) = grammars._live["t"]
            grammar.record_mask = lambda seconds: None  # type: ignore[method-assign]
            grammar.seconds = 0.009  # two of them fit
            worker.create(1, *range(B, B + 6))
            made = [
                worker.generate(1, file, tokens(9), max=8, constraint=handle)
                for file in range(B, B + 6)
            ]
            plain = worker.generate(1, A, tokens(9), max=8)
            for each in (*made, plain):
                assert await each.end == b""
                assert len(each.ids) == 8

    asyncio.run(main())
    assert max(map(sum, steps)) == 2
    assert sum(map(sum, steps)) >= 6 * 8  # look-ahead steps that never begin are counted, too


@run_by(with_text)
async def test_grammar_compiled_again_gives_the_same_text(
    rig: KernelRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar whose states are used up, and one that is gone."""
    built: list[str] = []
    build = Grammar.build

    def watched(grammar: Grammar) -> None:
        built.append(threading.current_thread().name)
        build(grammar)

    monkeypatch.setattr(Grammar, "build", watched)
    handle = await constraint(rig.worker, REGEX, b"[a-f]{1,9}( [a-f]{1,9}){40}")
    wanted = await generated(rig, 1, handle)
    (grammar,) = rig.kernel.constraints.grammars._live["t"]
    rig.worker.create(1, B)
    began = rig.worker.generate(1, B, PROMPT, max=300, constraint=handle, get=sampled(1), ahead=2)
    await wait_until(lambda: len(began.records) >= 2)
    assert grammar.generation is not None
    grammar.generation.exhausted = True
    rig.worker.create(1, B + 1)
    began.take(300)
    await rig.worker.complete(1, B + 1, PROMPT, max=60)
    assert await began.end == b""
    assert began.ids == wanted
    grammar.generation = None
    rig.worker.create(1, B + 2)
    assert await generated(rig, 1, handle, B + 2) == wanted
    assert built[0].startswith("grammars")
    assert len(built) == 3
    assert len(set(built)) == 1, "the same thread, and no other"


@run_by(with_text)
async def test_texts_that_take_steps_to_follow_are_the_same(
    rig: KernelRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are put off until the matcher has followed, and keep their pages."""
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"[a-f ]*")
    text = tokens(*ids_of("abc def fed cab" * 12))
    asked: dict[str, Any] = {"constraint": handle, "since": 0, "bias": {EOS: -50.0}}
    worker.create(1, B, B + 1)
    wanted = await preds(worker, A, text, 5, **asked)
    before = (await rig.gateway.statistics())["steps"]
    monkeypatch.setattr("symphony_kernel.grammar.matcher.TEXT_MS_MAX", 0.0)
    (grammar,) = rig.kernel.constraints.grammars._live["t"]
    grammar.generation = None  # nothing is kept of it
    assert await preds(worker, B, text, 5, **asked) == wanted
    assert (await rig.gateway.statistics())["steps"] > before + 5 + len(text) // 4 // 8
    looked = worker.pred(1, B + 1, text, options(get=sampled(5), keep=False, **asked))
    assert ids(await looked)[0] == wanted[0]


@run_by(with_text)
async def test_unknown_text_that_began_far_back_is_refused(
    rig: KernelRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.syscalls.pending.SINCE_TOKENS_MAX", 20)
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"[a-f ]*")
    text = tokens(*ids_of("abcdef")[:1] * 15)
    near, bias = {"constraint": handle, "since": 0}, {EOS: -50.0}
    assert await worker.pred(1, A, PROMPT, options(**near)) == -Errno.EFBIG
    (token,) = await preds(worker, A, text, 1, bias=bias, **near)
    rest = await preds(worker, A, tokens(token), 30, bias=bias, **near)
    assert len(rest) == 30, "it is known by now"
    other = await constraint(worker, REGEX, b"[a-g ]*")
    far = options(constraint=other, since=1)
    assert await worker.pred(1, A, tokens(token), far) == -Errno.EFBIG


@run_by(with_text)
async def test_grammar_slow_to_compile_is_refused(
    rig: KernelRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.grammar.compiler.CONSTRAINT_BUILD_MS_MAX", 0.0)
    errno, words = await refused(rig.worker, REGEX, b"a+")
    assert (errno, "ms" in words) == (Errno.EFBIG, True)
    monkeypatch.undo()
    assert await constraint(rig.worker, REGEX, b"a+") == 1


@run_by(with_text)
async def test_bitmask_time_is_charged_to_the_lip(rig: KernelRig) -> None:
    charged: list[tuple[int, float]] = []
    queue = rig.kernel._scheduler._queue
    charge = queue.charge_run

    def watched(root: int, tenant: str, weight: float, seconds: float) -> None:
        charged.append((root, seconds))
        charge(root, tenant, weight, seconds)

    queue.charge_run = watched  # type: ignore[method-assign]
    handle = await constraint(rig.worker, REGEX, b"[a-z]{20}")
    await start(rig, 2)
    plain = rig.worker.generate(2, A, PROMPT, max=30)
    fill = GrammarMatcher.fill

    def slow(matcher: GrammarMatcher, *given: Any) -> SyscallError | None:
        matcher.spent += 0.01
        return fill(matcher, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrammarMatcher, "fill", slow)
        given = await generated(rig, 1, handle, max=10)
    assert await plain.end == b""
    assert {root for root, _ in charged} == {1}
    assert len(charged) >= len(given)
    assert all(cost > 0 for _, cost in charged)
