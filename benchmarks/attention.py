"""`python -m benchmarks.attention`: one layer's attention over pages, native against torch.

Entries lie in a pool of so many layers that the caches cannot hold it, and the layers are computed
in turn, some at a time. The two ways take turns, and the best time of each is told, in microseconds
a layer, with its share of the floor: bytes over the bandwidth, or operations over the rate of a
large product, whichever takes longer, both measured in the same run.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.native.library import load_library
from symphony_kernel.executor.native.pages import NativePages, PoolShape
from symphony_kernel.executor.native.step import flat_step
from symphony_kernel.executor.reference.attention import attend
from symphony_kernel.executor.reference.step_plan import Geometry, plan_step
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.executor.native_kernels import LayerWork, LoneAttention

POOL_BYTES = 192 << 20
PARTS = 4  # that are timed by themselves: a short time is less often disturbed
SHAPES = {"135M": (9, 3, 64), "0.5B": (14, 2, 64)}
# (rows, new tokens of each, entries present before)
CASES = {
    "decode 1 x 256": (1, 1, 255),
    "decode 1 x 4,096": (1, 1, 4095),
    "decode 16 x 256": (16, 1, 255),
    "decode 16 x 1,024": (16, 1, 1023),
    "decode 64 x 512": (64, 1, 511),
    "16 forks x 1,024": (16, 1, 1023),
    "prefill 1,024": (1, 1024, 0),
    "prefill 64 after 2,048": (1, 64, 2048),
}


Layers = Callable[[int, int], object]  # computes layers [first, last)


@dataclass(frozen=True)
class Machine:
    """What the machine can do at best."""

    bytes_per_us: float
    operations_per_us: float


def _best(work: Callable[[], object], seconds: float, least: int = 3) -> float:
    """Return the shortest time of several calls, in microseconds."""
    times: list[float] = []
    while sum(times) < seconds or len(times) < least:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) * 1e6


def _measure_machine() -> Machine:
    stream = torch.split(torch.ones(64 << 20), 2 << 20)
    reading = min(_best(partial(torch.sum, part), 0.0, least=1) for part in stream)
    size = 1024
    a, b = torch.randn(size, size).bfloat16(), torch.randn(size, size).bfloat16()
    multiplying = _best(lambda: torch.mm(a, b), 0.2)
    return Machine(stream[0].nbytes / reading, 2 * size**3 / multiplying)


def _rows(name: str) -> list[Row]:
    rows, q, start = CASES[name]
    needed = -(-(start + q) // PAGE_TOKENS)
    pages = needed + rows - 1 if "forks" in name else rows * needed
    free = iter(np.random.default_rng(0).permutation(pages).astype(np.int32))
    trunk = [next(free) for _ in range(needed - 1)] if "forks" in name else []
    tables = [
        np.array([*trunk, *(next(free) for _ in range(needed - len(trunk)))], np.int32)
        for _ in range(rows)
    ]
    return [
        Row(
            tokens=np.zeros(q, np.uint32),
            positions=np.arange(start, start + q, dtype=np.int32),
            start=start,
            block_table=table,
            places=np.empty(0, np.int32),
        )
        for table in tables
    ]


def _floor(name: str, shape: tuple[int, int, int], machine: Machine) -> float:
    """Return the least time of a layer in microseconds."""
    heads, kv_heads, head_dim = shape
    rows, q, start = CASES[name]
    entries = start + q if "forks" in name else rows * (start + q)
    pairs = rows * sum(start + i + 1 for i in range(q))
    reading = entries * 2 * kv_heads * head_dim * 2 / machine.bytes_per_us
    return max(reading, pairs * heads * head_dim * 4 / machine.operations_per_us)


def _pages_and_layers(rows: list[Row], shape: tuple[int, int, int]) -> tuple[int, int]:
    pages = max(int(row.block_table.max()) for row in rows) + 1
    return pages, -(-POOL_BYTES // (pages * PAGE_TOKENS * 2 * shape[1] * shape[2] * 2))


def _native(rows: list[Row], shape: tuple[int, int, int], threads: int) -> Layers:
    heads, kv_heads, head_dim = shape
    library = load_library()
    pages, layers = _pages_and_layers(rows, shape)
    wide = library.widens
    windows = (None,) * layers
    pool = NativePages(library, PoolShape(*shape, 2, pages, windows, threads=threads, wide=wide))
    random = np.random.default_rng(1)
    slots = np.arange(pages * PAGE_TOKENS)
    plain = random.standard_normal((PAGE_TOKENS, 2, kv_heads, head_dim)).astype(np.float32)
    bits = torch.from_numpy(plain).bfloat16().view(torch.int16).numpy().view(np.uint16)
    for layer in range(layers):
        pool.write(layer, slots[:PAGE_TOKENS], bits)
    first = np.repeat(slots[:PAGE_TOKENS][None], pages - 1, axis=0).ravel()
    pool.copy(np.stack((first, slots[PAGE_TOKENS:])))
    flat = flat_step(rows)
    count = len(flat.positions)
    qkv = random.standard_normal((count, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    out = np.zeros((count, heads * head_dim), np.float32 if wide else np.uint16)
    angles = np.zeros((8192, head_dim // 2), np.float32)
    works = [LayerWork(layer, qkv, out, angles + 1, angles) for layer in range(layers)]
    attention = LoneAttention(library, pool)
    attention.plan(flat)
    return lambda first, last: attention.compute(works[first:last])


def _torch(rows: list[Row], shape: tuple[int, int, int]) -> Layers:
    heads, kv_heads, head_dim = shape
    pages, layers = _pages_and_layers(rows, shape)
    slots = (pages + 1) * PAGE_TOKENS
    pool = torch.randn(slots, 2, kv_heads, head_dim).bfloat16().repeat(layers, 1, 1, 1, 1)
    geometry = Geometry((None,), pages * PAGE_TOKENS, torch.bfloat16, torch.device("cpu"))
    groups = plan_step(rows, geometry).groups[None]
    queries = torch.randn(sum(len(row.tokens) for row in rows), heads, head_dim).bfloat16()

    def work(first: int, last: int) -> None:
        for layer in range(first, last):
            attend(queries, pool[layer], groups, exact=False)

    return work


def _compare(
    name: str, shape: tuple[int, int, int], threads: int, seconds: float
) -> npt.NDArray[np.float64]:
    """Return the best times of a layer, native's and torch's, in microseconds."""
    rows = _rows(name)
    layers = _pages_and_layers(rows, shape)[1]
    each = -(-layers // PARTS)
    ways = [_native(rows, shape, threads), _torch(rows, shape)]
    best = np.full(2, np.inf)
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for index, way in enumerate(ways):
            for first in range(0, layers - each + 1, each):
                began = time.perf_counter()
                way(first, first + each)
                best[index] = min(best[index], (time.perf_counter() - began) / each)
    return best * 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="135M")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each case")
    parser.add_argument("--case", choices=CASES, action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = SHAPES[options.shape]
    machines, found = [], {}
    with torch.inference_mode():
        for name in options.case or CASES:
            # Measured again and again, because others use the machine too.
            machines.append(_measure_machine())
            found[name] = _compare(name, shape, options.threads, options.seconds)
    machine = Machine(
        max(each.bytes_per_us for each in machines),
        max(each.operations_per_us for each in machines),
    )
    print(f"{options.shape}, bfloat16, {options.threads} threads, microseconds a layer")
    reads, computes = machine.bytes_per_us / 1e3, machine.operations_per_us / 1e3
    print(f"the machine reads {reads:.0f} GB/s and computes {computes:.0f} GFLOP/s")
    print(f"{'':<24}{'native':>9}{'torch':>9}{'ratio':>7}{'floor':>9}{'share':>7}")
    for name, (native, plain) in found.items():
        floor = _floor(name, shape, machine)
        print(
            f"{name:<24}{native:>9.1f}{plain:>9.1f}{plain / native:>7.1f}{floor:>9.1f}"
            f"{floor / native:>7.0%}"
        )


if __name__ == "__main__":
    main()
