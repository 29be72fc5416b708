"""What offered prefixes cost the kernel: KVFS alone, no device and no link.

    python -m benchmarks.prefix_cache [--json]

For texts of several lengths: the first offer, one that adds nothing, a match with the file that
comes of it; and a page that an allocation gets from the cache, beside one that is free.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.limits import PAGE_TOKENS

PAGES = 1 << 16
LENGTHS = (64, 1_024, 8_192)
REPEATS = 30
SINGLE_PAGES = 64


class Bench:
    """One tenant's files in a pool of their own."""

    def __init__(self) -> None:
        self.kvfs = KVFS(PAGES, time.monotonic)
        self.account = self.kvfs.tenant("t").account
        self._random = np.random.default_rng(7)

    def file(self, length: int) -> KVFile:
        """Return a file of random tokens."""
        file = self.kvfs.create("t", self.account)
        file.reserve(length)
        tokens = self._random.integers(0, 50_000, length).astype(np.uint32)
        file.commit(tokens, np.arange(length, dtype=np.int32))
        return file

    def text(self, length: int) -> dict[str, float]:
        """Return the microseconds of each call for one new text."""
        file = self.file(length)
        asked = np.append(file.tokens, np.uint32(1))
        found: list[KVFile] = []
        spent = {
            "offer_us": _us(lambda: self.kvfs.offer(file)),
            "offer_again_us": _us(lambda: self.kvfs.offer(file)),
            "match_us": _us(lambda: found.append(self.kvfs.match("t", asked, self.account))),
        }
        assert found[0].length == length
        self.kvfs.release(file, *found)
        return spent

    def pages_us(self) -> float:
        """Return the microseconds that a page of a growing file takes; it keeps them all."""
        file = self.kvfs.create("t", self.account)

        def grow() -> None:
            for pages in range(1, SINGLE_PAGES + 1):
                file.reserve(pages * PAGE_TOKENS)

        return _us(grow) / SINGLE_PAGES

    def fill(self) -> None:
        """Leave free pages only in the cache."""
        while self.kvfs.prefix_cache.statistics()["pages"] < self.kvfs.prefix_cache.pages_max:
            file = self.file(2_048)
            self.kvfs.offer(file)
            self.kvfs.release(file)
        self.kvfs.create("t", self.account).reserve(self.kvfs.pool.free * PAGE_TOKENS)


def _us(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


def measure() -> list[dict[str, float]]:
    """Return the minima over some repeats: others use this machine, too."""
    bench = Bench()
    rows: list[dict[str, float]] = []
    for length in LENGTHS:
        runs = [bench.text(length) for _ in range(REPEATS)]
        rows.append({"tokens": length, **{k: min(run[k] for run in runs) for k in runs[0]}})
    free = min(bench.pages_us() for _ in range(10 * REPEATS))
    bench.fill()
    cached = min(bench.pages_us() for _ in range(10 * REPEATS))
    rows.append({"free_page_us": free, "cached_page_us": cached})
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = measure()
    if parser.parse_args().json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print("  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
