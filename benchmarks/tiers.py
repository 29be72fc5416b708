"""What moving pages costs beside computing them again, and what forks and open files cost.

    python -m benchmarks.tiers [--model DIR] [--json]

1. Pages of a model between the device's pool and host memory, in lots of several sizes, and the
   same entries computed again as a prompt. By default the embedded model's; DIR is a checkpoint
   (`benchmarks/checkpoints.py` makes some).
2. A fork of a file of 4,096 entries, and its first token, which copies the last page: KVFS alone.
3. Steps of 16 files that decode beside 16 to 10,000 open ones, on a device that takes no time: the
   processor's time of the whole process. Once with all of them on the device, once with all of them
   evicted but the 16.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import SimulatedExecutor, simulated_model
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import KernelRig, tokens

LOTS = (1, 8, 64)  # pages moved at once
PROMPT = 1_024
REPEATS = 25
FORKED = 4_096 + 5  # entries: the last page is not full
OPEN = (16, 1_000, 10_000)
FILE_ENTRIES = 33
FILES_AN_INSTANCE = 2_000
DECODING = 16
STEPS = 500
ROUNDS = 3


# -- Moving against computing --------------------------------------------------------------------
async def moving(model: Path) -> dict[str, float]:
    """Return microseconds a page: saved and loaded in lots, and computed again."""
    executor = TorchExecutor.load(model, pool_bytes=512 << 20)
    pages = min(max(LOTS), executor.frame_count // 2)
    executor.open_host(pages)
    table = np.arange(PROMPT // PAGE_TOKENS, dtype=np.int32)
    computed = []
    for _ in range(3):
        began = time.perf_counter()
        await executor.run(Batch([_prompt(table)]))
        computed.append(time.perf_counter() - began)
    found: dict[str, float] = {
        "page_bytes": executor.pages.layout.page_bytes,
        "computed_us": min(computed) / len(table) * 1e6,
    }
    for lot in (lot for lot in LOTS if lot <= pages):
        saved, loaded = [], []
        frames, slots = np.arange(lot, dtype=np.int32), np.arange(lot, dtype=np.int32)
        for _ in range(REPEATS):
            save = Batch([], saves=np.stack((frames, slots)))
            load = Batch([], loads=np.stack((slots, frames)))
            await executor.run(save)
            await executor.run(load)
            saved.append(save.moved_seconds)
            loaded.append(load.moved_seconds)
        found[f"saved_us_{lot}"] = min(saved) / lot * 1e6
        found[f"loaded_us_{lot}"] = min(loaded) / lot * 1e6
    await executor.close()
    return found


def _prompt(table: Int32) -> Row:
    count = len(table) * PAGE_TOKENS
    ids = np.arange(count, dtype=np.uint32) % 200
    last = np.array([count - 1], np.int32)
    return Row(ids, np.arange(count, dtype=np.int32), 0, table, last)


# -- Forks ---------------------------------------------------------------------------------------
def forking() -> dict[str, float]:
    """Return microseconds of a fork and of its first token, and the pages that those take."""
    kvfs = KVFS(1 << 12, time.monotonic)
    account = kvfs.tenant("t").account
    source = kvfs.create("t", account)
    _extend(source, FORKED)
    forks, writes = [], []
    pages: tuple[int, int] = (0, 0)
    for _ in range(200):
        free = kvfs.pool.free
        began = time.perf_counter()
        fork = kvfs.fork(source, account)
        forked = time.perf_counter()
        _extend(fork, 1)
        written = time.perf_counter()
        forks.append(forked - began)
        writes.append(written - forked)
        copied = sum(group.shape[1] for batch in kvfs.take_transfers() for group in batch.copies)
        pages = free - kvfs.pool.free, copied
        kvfs.release(fork)
    return {
        "fork_us": min(forks) * 1e6,
        "first_token_us": min(writes) * 1e6,
        "new_pages": pages[0],
        "copied_entries": pages[1],
    }


def _extend(file: KVFile, n: int) -> None:
    start = file.length
    file.reserve(n)
    file.commit(np.zeros(n, np.uint32), np.arange(start, start + n, dtype=np.int32))


# -- Open files ----------------------------------------------------------------------------------
async def stepping(opened: int, evicted: bool) -> float:
    """Return the least processor time of a step, in microseconds, beside `opened` files."""
    pages = OPEN[-1] * 3 + 4_096
    executor = SimulatedExecutor(RealClock(), pages, hashed=False)
    assets = ModelAssets(simulated_model(), b"{}", None, {})
    places = TierConfig(host_slots=pages, pages_a_frame=2)
    kernel = Kernel(executor, describe(assets), RealClock(), KernelOptions(places=places))
    running = asyncio.create_task(kernel.run())
    rig = KernelRig(kernel)
    await _open(rig, opened)
    if evicted:
        _evict(kernel)
    gc.collect()
    gc.freeze()  # as a kernel's process does when it has started
    spent: list[float] = []
    decoding = [(1, Op.PRED, _handle(number), tokens(7), None, b"") for number in range(DECODING)]
    for _ in range(REPEATS):
        steps = -kernel.statistics()["steps"]
        began = time.process_time()
        for _ in range(STEPS // REPEATS):
            await asyncio.gather(*rig.worker.calls(*decoding))
        seconds = time.process_time() - began
        steps += kernel.statistics()["steps"]
        spent.append(seconds / steps)
    gc.unfreeze()
    await kernel.close()
    await running
    return min(spent) * 1e6


async def _open(rig: KernelRig, opened: int) -> None:
    """Open files of one text each: the first ones, of instance 1, will decode."""
    instances = -(-opened // FILES_AN_INSTANCE)
    text = tokens(*range(1, FILE_ENTRIES + 1))
    for instance in range(1, instances + 1):
        await rig.gateway.register(instance)
        mine = min(FILES_AN_INSTANCE, opened - (instance - 1) * FILES_AN_INSTANCE)
        for number in range(mine):
            rig.worker.tell(instance, Op.KV_CREATE, _handle(number))
        calls = [(instance, Op.PRED, _handle(number), text, None, b"") for number in range(mine)]
        for at in range(0, len(calls), 500):
            await asyncio.gather(*rig.worker.calls(*calls[at : at + 500]))


def _handle(number: int) -> int:
    return 1 << 16 | number


def _evict(kernel: Kernel) -> None:
    """Evict all files: the 16 come back with their first step."""
    kvfs = kernel._kvfs  # noqa: SLF001 - a measurement looks inside
    held = np.flatnonzero(kvfs.pool.references).astype(np.int32)
    kvfs.tiers.evict(held, keep=True)


# -- All -----------------------------------------------------------------------------------------
def measure(model: Path) -> dict[str, Any]:
    """Return all figures."""
    return {
        "moving": asyncio.run(moving(model)),
        "forking": forking(),
        "step_us": _steps(),
    }


def _steps() -> dict[str, dict[str, float]]:
    """Return what a step takes by kind and by open files: the least of some interleaved rounds."""
    found: dict[str, dict[str, float]] = {"on the device": {}, "evicted": {}}
    for _ in range(ROUNDS):
        for kind, steps in found.items():
            for count in OPEN:
                spent = asyncio.run(stepping(count, kind == "evicted"))
                steps[str(count)] = min(spent, steps.get(str(count), spent))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=tiny_model.path())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = measure(options.model)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, value in found["moving"].items():
        print(f"{name:20} {value:12.1f}")
    for name, value in found["forking"].items():
        print(f"{name:20} {value:12.1f}")
    for kind, steps in found["step_us"].items():
        flat = "  ".join(f"{count} open: {spent:7.1f} us" for count, spent in steps.items())
        print(f"a step, {kind:14} {flat}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
