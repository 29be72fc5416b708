"""Throughput when the device holds a tenth of what the runs hold, against one that holds it all.

    python -m benchmarks.pressure [--real] [--runs N] [--prompt N] [--tokens N] [--json]

    roomy     frames for all
    host      a tenth of that, and host memory for the rest
    tokens    a tenth of that, and nothing else: what goes is computed again

    busy      every run generates all the time: how many rows a step has is what the frames allow
    tools     every run answers in turns, and waits nine times as long for its tools as it generates
    held      one run in ten generates all the time, the others hold their files and wait

Without --real: the whole kernel on the simulated executor in virtual time, with the costs of some
devices. With --real: the tiny model on this machine in fp32, rounds interleaved, the best counts.
Outputs are compared, and must be the same to the last token.

In virtual time each figure stands beside the most that the device itself allows with so many frames
(`most_tokens_a_second`): what the schedulers and admission lose is what is missing to that.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import Clock, RealClock, VirtualClock
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.rig import ASSETS, A, KernelRig, start

ROUNDS = 2
SHARE = 10  # of what the runs hold, on the device
TURNS = 4  # of a run that waits for its tools
DEVICES = {
    "a small model on two cores": CostModel(15_000, 600, 700, 0.1, 40),
    "an accelerator": CostModel(6_000, 15, 20, 0.002, 10),
}


@dataclass(frozen=True)
class Load:
    """What every run does: its prompt, its tokens, and for how long its tools take a turn."""

    runs: int
    prompt: int
    tokens: int
    turns: int = 1
    tools_s: float = 0.0
    waiting: int = 0  # of the runs: they hold what they have and wait for the others' end

    @property
    def pages(self) -> int:
        """Pages that all runs hold at their ends."""
        return self.runs * -(-(self.prompt + self.tokens) // PAGE_TOKENS)


@dataclass(frozen=True)
class Measured:
    """One round of one setting."""

    tokens_a_second: float
    mean_rows: float
    preemptions: int
    moved_pages: int
    rebuilt_tokens: int
    bound: float | None = None  # tokens a second that no order of steps could pass


def most_tokens_a_second(costs: CostModel, load: Load, frames: int) -> float:
    """Return the most tokens a second that runs can generate under any admission policy.

    Each token needs its file's pages in the step that computes it, so the steps have at least as
    many pages as all tokens together, over the frames; and each run has its tokens one behind the
    other. Nothing is moved or computed again for it, and prompts cost no step of their own.
    """
    busy = load.runs - load.waiting
    prompt = 1 if load.waiting else load.prompt
    contexts = load.prompt + np.arange(load.waiting > 0, load.tokens)  # seen by each token
    steps = max(load.tokens, busy * float((-(-contexts // PAGE_TOKENS)).sum()) / frames)
    each = (
        costs.prefill_token_us * (prompt if prompt > 1 else 0)
        + costs.decode_row_us * load.tokens
        + costs.context_token_us * float(contexts.sum())
    )
    return 1e6 * busy * load.tokens / (costs.fixed_us * steps + busy * each)


class Runs:
    """All runs of a load."""

    def __init__(self, rig: KernelRig, load: Load) -> None:
        self._rig, self._load = rig, load
        self._filled = 0
        self._all_filled, self._over = asyncio.Event(), asyncio.Event()
        self.seconds = 0.0

    async def run(self) -> list[list[int]]:
        """Return what each generates."""
        load, loop = self._load, asyncio.get_running_loop()
        busy = load.runs - load.waiting
        runs = [loop.create_task(self._one(i, i > busy)) for i in range(1, load.runs + 1)]
        await self._all_filled.wait()
        began = loop.time()
        made = list(await asyncio.gather(*runs[:busy]))
        self.seconds = loop.time() - began
        self._over.set()
        return made + list(await asyncio.gather(*runs[busy:]))

    async def _one(self, instance: int, waits: bool) -> list[int]:
        load, worker = self._load, await start(self._rig, instance)
        generator = np.random.default_rng(instance)
        made: list[int] = []
        if load.waiting:
            await self._generate(worker, instance, generator, load.prompt, 1)
        self._filled += 1
        if self._filled == load.runs:
            self._all_filled.set()
        await self._all_filled.wait()
        if waits:
            await self._over.wait()
            return await self._generate(worker, instance, generator, 1, 1)
        for turn in range(load.turns):
            if turn or load.turns > 1:
                await asyncio.sleep(load.tools_s * 2 * generator.random())
            prompt = 1 if load.waiting else load.prompt // load.turns
            count = load.tokens // load.turns
            made += await self._generate(worker, instance, generator, prompt, count)
        return made

    async def _generate(
        self, worker: Any, instance: int, generator: np.random.Generator, prompt: int, count: int
    ) -> list[int]:
        ids = generator.integers(5, 400, prompt).astype("<u4").tobytes()
        generation = worker.generate(instance, A, ids, max=count)
        assert await generation.end == b""
        found: list[int] = generation.ids
        return found


async def measure(
    executor: Executor, clock: Clock, load: Load, places: TierConfig
) -> tuple[Measured, list[list[int]]]:
    """Run a load."""
    kernel = Kernel(executor, describe(ASSETS), clock, KernelOptions(places=places))
    running = asyncio.create_task(kernel.run())
    try:
        rig = KernelRig(kernel)
        runs = Runs(rig, load)
        made = await runs.run()
        found: dict[str, Any] = await rig.gateway.statistics()
        await rig.gateway.check_integrity()
    finally:
        await kernel.close()
        await running
    busy = (load.runs - load.waiting) * (load.tokens // load.turns * load.turns)
    measured = Measured(
        tokens_a_second=busy / runs.seconds,
        mean_rows=found["mean_decode_rows"],
        preemptions=found["preemptions"],
        moved_pages=found["tiers_saved_pages"] + found["tiers_loaded_pages"],
        rebuilt_tokens=found["rebuilt_tokens"],
    )
    return measured, made


def settings(load: Load) -> dict[str, tuple[int, TierConfig]]:
    """Return frames and places of each setting, by name."""
    all_ = load.pages + 2 * load.runs  # a step has room for the next tokens before they are there
    few = max(load.pages // SHARE, 2 + load.pages // load.runs)
    return {
        "roomy": (all_, TierConfig()),
        "host": (few, TierConfig(host_slots=all_, pages_a_frame=16)),
        "tokens": (few, TierConfig(pages_a_frame=32)),
    }


def simulate(
    costs: CostModel, load: Load, frames: int, places: TierConfig
) -> tuple[Measured, list[list[int]]]:
    """Measure in virtual time."""
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, frames, costs=costs)
    measured, made = clock.run(measure(executor, clock, load, places))
    if not load.tools_s:
        measured = replace(measured, bound=most_tokens_a_second(costs, load, frames))
    return measured, made


def compute(load: Load, frames: int, places: TierConfig) -> tuple[Measured, list[list[int]]]:
    """Measure the tiny model."""

    async def main() -> tuple[Measured, list[list[int]]]:
        executor = tiny(1 << 20)
        page_bytes = executor.pages.layout.page_bytes
        await executor.close()
        return await measure(tiny(frames * page_bytes), RealClock(), load, places)

    return asyncio.run(main())


def tiny(pool_bytes: int) -> TorchExecutor:
    """Return the tiny model with a pool of so many bytes."""
    return TorchExecutor.load(tiny_model.path(), dtype="fp32", device="cpu", pool_bytes=pool_bytes)


Run = Callable[[Load, int, TierConfig], tuple[Measured, list[list[int]]]]


def best(run: Run, load: Load, rounds: int) -> dict[str, Measured]:
    """Measure all settings in turn; fail when an output differs."""
    found: dict[str, Measured] = {}
    expected: list[list[int]] | None = None
    for _ in range(rounds):
        for name, (frames, places) in settings(load).items():
            measured, made = run(load, frames, places)
            expected = expected or made
            assert made == expected, f"{name}: an output differs"
            if name not in found or measured.tokens_a_second > found[name].tokens_a_second:
                found[name] = measured
    return found


def loads(runs: int, prompt: int, tokens: int, busy_s: float) -> dict[str, Load]:
    """Return the loads by name; all of them generate for `busy_s` together at best."""
    return {
        "busy": Load(runs, prompt, tokens),
        "tools": Load(runs, prompt, tokens, TURNS, 9 * busy_s / TURNS),
        "held": Load(runs, prompt, tokens, waiting=runs - max(runs // SHARE, 1)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = (given.runs, given.prompt, given.tokens)
    devices: dict[str, Run] = {
        name: partial(simulate, costs) for name, costs in DEVICES.items() if not given.real
    } or {"the tiny model": compute}
    found: dict[str, dict[str, dict[str, Measured]]] = {}
    for name, run in devices.items():
        rounds = ROUNDS if given.real else 1
        alone, _ = run(Load(*sizes), *settings(Load(*sizes))["roomy"])
        busy_s = given.runs * given.tokens / alone.tokens_a_second
        found[name] = {
            kind: best(run, load, rounds) for kind, load in loads(*sizes, busy_s).items()
        }
    if given.json:
        print(json.dumps(found, default=lambda each: each.__dict__))
        return
    print(f"{given.runs} runs of {given.prompt} + {given.tokens} tokens")
    for device, kinds in found.items():
        print(device)
        for kind, by_name in kinds.items():
            show(kind, by_name)


def show(kind: str, by_name: dict[str, Measured]) -> None:
    """Print one load's settings."""
    roomy = by_name["roomy"].tokens_a_second
    for name, measured in by_name.items():
        print(
            f"  {kind:6} {name:7} {measured.tokens_a_second:7.0f} tokens/s"
            f" {measured.tokens_a_second / roomy:5.2f} of roomy {measured.mean_rows:5.1f} rows"
            f" {measured.preemptions:5} preemptions {measured.moved_pages:6} pages moved"
            f" {measured.rebuilt_tokens:7} tokens computed again"
            + (f", bound {measured.bound:7.0f}" if measured.bound is not None else "")
        )


if __name__ == "__main__":
    main()
