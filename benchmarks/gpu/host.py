"""What the host does for a step of a GPU: the kernel's real code over a virtual device.

    python -m benchmarks.gpu.host [--rows 1,16,64,256] [--steps 200] [--json] [--profile FILE]

The device computes each step in 8 ms, in which the host is free. Everything is real but the
network's products: kernel, scheduler, KVFS, the plan's arrays, their packing and moving, the choice
of tokens (with a vocabulary of 256, so that its operators cost about what launching them costs),
the device's thread. Steps are

    chain      one token of each row, the steps given and launched ahead
    mixed      the same next to chunks of prompts
    prefill    chunks of 32 tokens
    tree       trees of 7 tokens

It prints microseconds of processor time a step: on the loop's thread from a step's end until the
next one is given (`loop`), in preparing its arrays there (`prepare`), and in launching it and
taking its results on the device's thread (`device`). Replies are in `loop`. Calls that come are
not, nor are steps that they begin at once (prompts and trees alone), nor FlashInfer's planning. The
aims: 300 us in a chain of 64 rows, 600 us in a mixed step.
"""

if __name__ == "__main__":  # as the kernel's process does
    import sys

    from symphony_kernel.compiled.loading import prefer_compiled

    print(f"the kernel's modules are {prefer_compiled()}", file=sys.stderr)

import argparse
import asyncio
import cProfile
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np
import torch
from symphony_kernel.executor.base import Batch, ModelInfo, Results
from symphony_kernel.executor.cuda.graphs import LADDER
from symphony_kernel.executor.cuda.inputs import Inputs
from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.cuda.step import PreparedStep
from symphony_kernel.executor.device_queue import DeviceThread, StepFuture
from symphony_kernel.executor.models.config import ModelConfig, Rope
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.limits import STEP_ROWS_MAX
from symphony_kernel.scheduler.batcher import StepLimits, step_sizes
from torch import Tensor

from benchmarks.gpu.model import RandomTensors
from tests.support.kernel.rig import ASSETS, A, KernelRig, options, run_beside, start

KINDS = ("chain", "mixed", "prefill", "tree")
AIMS_US = {("chain", 64): 300.0, ("mixed", 64): 600.0}
_PAGES, _PROMPT, _CHUNK = 24_576, 512, 32
_TREE = [-1, 0, 0, 1, 1, 2, 2]
_WARM_STEPS = 20
_PROMPTS = 3  # streams of prompts; at 64 rows and more few steps have one
_STEP_SECONDS = 0.008
_CONFIG = ModelConfig(
    vocab_size=256, hidden_size=64, intermediate_size=64, layers=1, heads=1, kv_heads=1,
    head_dim=64, max_context=1 << 14, norm_epsilon=1e-5, tied=True, qkv_bias=False,
    output_bias=False, mlp_bias=False, qk_norm=False, windows=(None,), ropes=(Rope(),),
    dtype="float32", bos=None, eos=(),
)  # fmt: skip
_MODEL = ModelInfo("virtual", 256, (), None, 1 << 14, "float32", 64)


class _End:
    """The event at a step's end on the device."""

    def __init__(self, at: float) -> None:
        self._at = at

    def query(self) -> bool:
        return perf_counter() >= self._at

    def synchronize(self) -> None:
        sleep(max(self._at - perf_counter(), 0.0))


class VirtualNetwork(CudaNetwork):
    """A network whose products take no time; the tokens that it chooses mean nothing."""

    def __init__(self) -> None:
        self._free_at = 0.0  # when the device has computed what it was given
        self.waited = 0.0  # processor seconds of waiting for a step, launches not included
        with torch.inference_mode():
            decoder = CudaDecoder(
                _CONFIG, RandomTensors(torch.device("cpu"), torch.float32), torch.float32
            )
            super().__init__(decoder, _PAGES, 1 << 14, LADDER)
            self._logits = torch.randn(1 << 14, _CONFIG.vocab_size)
        decoder.logits = lambda hidden: self._logits[: len(hidden)]  # type: ignore[method-assign]

    def _outputs(self, inputs: Inputs) -> Tensor:
        return self._logits[: len(inputs.plan.wanted)]

    _padded_outputs = _outputs

    def _launch(self, step: PreparedStep, early: bool = False) -> None:
        began = thread_time()
        super()._launch(step, early)
        assert step.launched is not None
        self._free_at = max(self._free_at, perf_counter()) + _STEP_SECONDS
        step.launched.done = _End(self._free_at)  # type: ignore[assignment]
        if early:
            self.waited -= thread_time() - began

    def _wait(self, step: PreparedStep) -> None:
        began = thread_time()
        super()._wait(step)
        self.waited += thread_time() - began


@dataclass
class Taken:
    """Processor seconds so far, and steps by the kind that they were."""

    loop: float = 0.0
    prepare: float = 0.0
    device: float = 0.0
    steps: int = 0
    rows: int = 0
    wanted: Callable[[Batch], bool] = field(default=lambda _: True)
    other: int = 0  # steps of another kind

    def split(self) -> dict[str, float]:
        """Return microseconds a step."""
        each = 1e6 / max(self.steps + self.other, 1)
        return {
            "loop": self.loop * each, "prepare": self.prepare * each, "device": self.device * each,
            "all": (self.loop + self.prepare + self.device) * each,
        }  # fmt: skip


class _Watched(StepFuture[Results]):
    """A step's future that knows what its callback costs."""

    __slots__ = ()
    taken: Taken

    def then(self, callback: Callable[[StepFuture[Results]], None]) -> None:
        super().then(_timed(callback))


def _timed(callback: Callable[..., None]) -> Callable[..., None]:
    def timed(*given: Any) -> None:
        taken = _Watched.taken
        began, prepared = thread_time(), taken.prepare
        callback(*given)
        taken.loop += thread_time() - began - (taken.prepare - prepared)

    return timed


def _time_looks() -> None:
    """Count the loop's looks for steps (`StepLoop.look`), between which no step ends."""
    loop: Any = asyncio.get_running_loop()
    call_soon, call_later = loop.call_soon, loop.call_later

    def watched(callback: Callable[..., None]) -> Callable[..., None]:
        looks = getattr(callback, "__name__", "") in ("look", "_timer_fired")
        return _timed(callback) if looks else callback

    loop.call_soon = lambda callback, *given, **more: call_soon(watched(callback), *given, **more)
    loop.call_later = lambda seconds, callback, *given: call_later(
        seconds, watched(callback), *given
    )


class VirtualExecutor(TorchExecutor):
    """The executor of a GPU over a virtual network; it says what a step costs the host."""

    def __init__(self) -> None:
        thread = DeviceThread(context=torch.inference_mode)
        self._virtual = VirtualNetwork()
        super().__init__(_MODEL, self._virtual, _PAGES, 1 << 14, thread)
        self.taken = _Watched.taken = Taken()

    def start(self, batch: Batch) -> StepFuture[Results]:
        began = thread_time()
        outcome = super().start(batch)
        self.taken.prepare += thread_time() - began
        outcome.__class__ = _Watched
        return outcome

    def _run_step(self, batch: Batch, prepared: Any) -> Results:
        began, waited = thread_time(), self._virtual.waited
        results = super()._run_step(batch, prepared)
        taken = self.taken
        taken.device += thread_time() - began - (self._virtual.waited - waited)
        if results and taken.wanted(batch):
            taken.steps += 1
            taken.rows += len(batch.rows)
        elif results:
            taken.other += 1
        return results

    def begin(self, wanted: Callable[[Batch], bool]) -> Taken:
        """Count from now on."""
        self.taken = _Watched.taken = Taken(wanted=wanted)
        return self.taken


def _ids(count: int) -> bytes:
    return (np.arange(count, dtype="<u4") % _CONFIG.vocab_size).tobytes()


async def _until(taken: Callable[[], int], steps: int) -> None:
    until = taken() + steps
    while taken() < until:
        await asyncio.sleep(0.002)


async def _generate(
    rig: KernelRig, executor: VirtualExecutor, rows: int, mixed: bool, steps: int
) -> Taken:
    """Measure steps of `rows` rows that decode, next to a prompt's chunk if `mixed`."""
    decodes = min(rows, STEP_ROWS_MAX - _PROMPTS) if mixed else rows
    for number in range(1, decodes + 1):
        await start(rig, number)
    made = [
        rig.worker.generate(number, A, _ids(_PROMPT), max=16 * steps + 4_000, ahead=256)
        for number in range(1, decodes + 1)
    ]
    ended = asyncio.Event()

    async def prompt(number: int) -> None:
        worker = await start(rig, number)
        while not ended.is_set():
            await worker.pred(number, A, _ids(_CHUNK), options(keep=False))

    prompts = [asyncio.create_task(prompt(rows + 1 + n)) for n in range(_PROMPTS if mixed else 0)]
    while any(len(each.records) < _WARM_STEPS for each in made):
        assert not any(each.end.done() for each in made), made[0].end
        await asyncio.sleep(0.002)
    taken = executor.begin(lambda batch: (len(batch.rows) > decodes) == mixed)
    await _until(lambda: taken.steps + taken.other, steps)
    ended.set()
    await asyncio.gather(*prompts)
    for each in made:
        each.cancel()
    await asyncio.gather(*(each.end for each in made))
    return taken


async def _preds(
    rig: KernelRig, executor: VirtualExecutor, rows: int, tree: bool, steps: int
) -> Taken:
    """Measure steps of `rows` prompts or trees that come together."""
    count = len(_TREE) if tree else _CHUNK
    given = options(keep=False, parents=_TREE) if tree else options(keep=False)
    for number in range(1, rows + 1):
        await start(rig, number)
    taken = executor.taken
    for turn in range(_WARM_STEPS + steps):
        if turn == _WARM_STEPS:
            taken = executor.begin(lambda batch: len(batch.rows) == rows)
        await asyncio.gather(
            *(rig.worker.pred(number, A, _ids(count), given) for number in range(1, rows + 1))
        )
    return taken


def measure(kind: str, rows: int, steps: int) -> Taken:
    """Return what steps of a kind with so many rows cost."""

    async def test(rig: KernelRig) -> Taken:
        if kind in ("chain", "mixed"):
            taken = await _generate(rig, executor, rows, kind == "mixed", steps)
        else:
            taken = await _preds(rig, executor, rows, kind == "tree", steps)
        for number in range(1, rows + 1 + (_PROMPTS if kind == "mixed" else 0)):
            await rig.gateway.end(number)
        return taken

    async def main() -> Taken:
        tokens, quantum = step_sizes("cuda")
        _time_looks()
        limits = StepLimits(tokens, quantum=quantum, decode_gap_ms=float("inf"))
        kernel = Kernel(executor, describe(ASSETS), RealClock(), KernelOptions(steps=limits))
        return await run_beside(kernel, test)

    executor = VirtualExecutor()
    return asyncio.run(main())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the host does for a step of a GPU.")
    parser.add_argument("--rows", default="1,16,64,256")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", metavar="FILE", help="the loop's thread, by cProfile")
    given = parser.parse_args()
    profile = cProfile.Profile() if given.profile else None
    found = []
    for kind in given.kinds.split(","):
        for rows in map(int, given.rows.split(",")):
            if profile is not None:
                profile.enable()
            taken = measure(kind, rows, given.steps)
            if profile is not None:
                profile.disable()
            aim = AIMS_US.get((kind, rows))
            found.append(
                {"kind": kind, "rows": rows, "steps": taken.steps, "others": taken.other,
                 **taken.split(), "aim": aim}
            )  # fmt: skip
            if not given.json:
                _print(found[-1], header=len(found) == 1)
    if profile is not None:
        profile.dump_stats(given.profile)
    if given.json:
        print(json.dumps(found))


def _print(each: dict[str, Any], header: bool) -> None:
    parts = ("loop", "prepare", "device", "all")
    if header:
        print(f"{'us a step':10}{'rows':>5}" + "".join(f"{part:>9}" for part in parts) + "   aim")
    aim = "" if each["aim"] is None else f"{each['aim']:6.0f}"
    figures = "".join(f"{each[part]:9.0f}" for part in parts)
    print(
        f"{each['kind']:10}{each['rows']:>5}{figures}{aim}   of {each['steps']} steps, "
        f"{each['others']} others",
        flush=True,
    )


if __name__ == "__main__":
    main()
