"""Measures the machine: `python -m benchmarks.serving.rates` prints what `Rates` needs, as JSON.

It is a process of its own, so that the threads of a library for products are nowhere near the
client. Each figure is the best of several repeats. Where the kernels that Symphony compiles are to
be had, they read too, since NumPy may not read as fast as the memory gives, and they tell what the
processor's instructions do when they touch no memory: a ceiling that no product reaches.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from symphony_kernel.executor.native.library import Library, load_library
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.support.executor.native_kernels import bytes_per_s, flops_per_s

_BYTES = 1 << 28  # a thread's share: far above any cache
_SIDE = 4096
_PRODUCT_SECONDS_MAX = 1.0  # of one product; a processor without bf16 took minutes for a large one


def main(threads: int) -> None:
    """Print {"read": {threads: bytes/s}, "bf16": operations/s, "bf16_ceiling": …, or null}."""
    native = _native()
    figures = {
        "read": {str(count): read_rate(count, native) for count in sorted({1, threads})},
        "bf16": product_rate(threads),
        "bf16_ceiling": None if native is None else ceiling(threads, native),
    }
    json.dump(figures, sys.stdout)


def _native() -> Library | None:
    try:
        return load_library(lambda words: print(words, file=sys.stderr))
    except LibraryUnavailable as error:
        print(f"measured without native kernels: {error}", file=sys.stderr)
        return None


def read_rate(threads: int, native: Library | None, repeats: int = 5) -> float:
    """Return the bytes/s that so many threads read from memory."""
    parts = [np.ones(_BYTES // 8, np.int64) for _ in range(threads)]
    seen = threads * _BYTES / _best(lambda: _together(parts), repeats)
    if native is None:
        return seen
    return max(seen, *(bytes_per_s(native, threads, threads * _BYTES) for _ in range(repeats)))


def ceiling(threads: int, native: Library, repeats: int = 5) -> float:
    """Return the operations/s of registers alone, in bf16 or, where that is faster, in float32."""
    widths = (2, 4) if native.computes_bf16 else (4,)
    return max(flops_per_s(native, width, threads) for width in widths for _ in range(repeats))


def _together(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> None:
    # NumPy lets go of the interpreter while it reduces.
    workers = [threading.Thread(target=part.max) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def product_rate(threads: int, repeats: int = 3, dtype: Any = None) -> float:
    """Return the operations/s of torch's product of two square matrices, of bfloat16 by default."""
    import torch

    torch.set_num_threads(threads)

    def seconds(side: int, repeats: int) -> float:
        left, right = (torch.randn(side, side).to(dtype or torch.bfloat16) for _ in range(2))
        return _best(lambda: torch.mm(left, right), repeats)

    side = 256
    # Twice the side is eight times the work.
    while side < _SIDE and 8 * seconds(side, 1) < _PRODUCT_SECONDS_MAX:
        side *= 2
    return 2 * side**3 / seconds(side, repeats)


def _best(work: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def measure(threads: int) -> dict[str, Any]:
    """Measure in a process of its own and return what it printed."""
    command = [sys.executable, "-m", "benchmarks.serving.rates", str(threads)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main(int(sys.argv[1]))
