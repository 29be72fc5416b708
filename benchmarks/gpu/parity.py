"""Is it right: logits against float64, and greedy tokens against transformers.

What a dtype allows is what the plain torch network makes of the same steps in it: a network may be
twice as far from float64 as that one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from symphony_kernel.executor.base import Int32, Int64, Row
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions

from benchmarks.gpu.model import Model, Pool, pages_for, run
from benchmarks.gpu.reference import reference_logits
from benchmarks.gpu.report import Finding

PAGES = 512
HOST_SLOTS = 64
_LOGITS = PredOptions(at="all", get=Get.LOGITS)
_NOTHING = PredOptions(get=Get.NONE)
_YARDSTICKS = 2.0
_ERROR_MIN = 1e-4  # smaller ones are not looked at


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a row's logits are those of: the last `places` of a sequence of tokens."""

    tokens: Int32
    positions: Int32
    places: int
    parents: Int32 | None = None


Found = tuple[bytes, Wanted]
Case = Callable[["Bench"], Iterator[Found]]


class Bench:
    """An executor that steps are given to, with a pool that has not been used."""

    def __init__(self, executor: TorchExecutor) -> None:
        self.executor = executor
        self.pool = Pool(PAGES)
        self._draw = np.random.default_rng(1)

    def tokens(self, count: int) -> Int32:
        """Return random tokens."""
        vocab = self.executor.model.vocab_size
        return self._draw.integers(0, vocab, count).astype(np.int32)

    def fill(self, tokens: Int32, table: Int32) -> None:
        """Compute tokens from the beginning of a file on."""
        run(self.executor, [row(tokens, 0, table, places=0)])


def row(tokens: Int32, start: int, table: Int32, places: int, parents: Int32 | None = None) -> Row:
    """Return a row that continues at `start`, with the logits of its last tokens."""
    count = len(tokens)
    positions = np.arange(start, start + count, dtype=np.int32)
    if parents is not None:
        positions = start + _depths(parents)
    return Row(
        tokens=tokens.astype(np.uint32),
        positions=positions,
        start=start,
        block_table=table[: pages_for(start + count)],
        places=np.arange(count - places, count, dtype=np.int32),
        options=_LOGITS if places else _NOTHING,
        parents=parents,
    )


def _depths(parents: Int32) -> Int32:
    depths: list[int] = []
    for parent in parents.tolist():
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return np.array(depths, np.int32)


def _plain(tokens: Int32, places: int) -> Wanted:
    return Wanted(tokens, np.arange(len(tokens), dtype=np.int32), places)


# -- The cases -----------------------------------------------------------------------------------
def ragged(bench: Bench) -> Iterator[Found]:
    """Rows that decode, go on with a chunk, and begin, of many lengths, in one step."""
    rows, wanted = [], []
    for before, new in ((45, 1), (333, 1), (16, 1), (20, 17), (130, 40), (0, 1), (0, 9), (0, 300)):
        tokens = bench.tokens(before + new)
        table = bench.pool.table(len(tokens))
        if before:
            bench.fill(tokens[:before], table)
        places = min(new, 3)
        rows.append(row(tokens[before:], before, table, places))
        wanted.append(_plain(tokens, places))
    yield from zip(run(bench.executor, rows), wanted, strict=True)


def trees(bench: Bench) -> Iterator[Found]:
    """Trees of drafts beside a row that decodes."""
    rows, wanted = [], []
    shapes = ([-1, 0, 0, 1, 2, -1, 5], [-1, -1, -1], [-1, 0, 1, 2, 2, 1, 0, -1, 7])
    for before, parents in zip((37, 64, 5), shapes, strict=True):
        tokens = bench.tokens(before + len(parents))
        table = bench.pool.table(len(tokens))
        bench.fill(tokens[:before], table)
        tree = np.array(parents, np.int32)
        rows.append(row(tokens[before:], before, table, len(parents), tree))
        positions = np.concatenate([np.arange(before), before + _depths(tree)]).astype(np.int32)
        wanted.append(Wanted(tokens, positions, len(parents), tree))
    tokens, table = bench.tokens(50), bench.pool.table(50)
    bench.fill(tokens[:49], table)
    rows.append(row(tokens[49:], 49, table, 1))
    wanted.append(_plain(tokens, 1))
    yield from zip(run(bench.executor, rows), wanted, strict=True)


def shared(bench: Bench) -> Iterator[Found]:
    """Rows that share pages of a prefix, the last of which each has as a copy of its own."""
    prefix = bench.tokens(8 * PAGE_TOKENS + 5)
    table = bench.pool.table(len(prefix))
    bench.fill(prefix, table)
    rows, wanted, copies = [], [], []
    for _ in range(4):
        tail = bench.tokens(6)
        own = bench.pool.table(11)
        copies.append(_slots(table[8], 5, own[0]))
        tokens = np.concatenate([prefix, tail])
        rows.append(row(tail, len(prefix), np.concatenate([table[:8], own]), 2))
        wanted.append(_plain(tokens, 2))
    found = run(bench.executor, rows, copies=[np.concatenate(copies, axis=1)])
    yield from zip(found, wanted, strict=True)


def _slots(source: int, entries: int, destination: int) -> Int64:
    """Return the copy of a page's first entries ([2, entries])."""
    entry = np.arange(entries, dtype=np.int64)
    return np.stack([source * PAGE_TOKENS + entry, destination * PAGE_TOKENS + entry])


def moved(bench: Bench) -> Iterator[Found]:
    """Pages that went to the host, and came back to other frames in the step that reads them."""
    rows, wanted = [], []
    slots = np.random.default_rng(3).permutation(HOST_SLOTS).astype(np.int32)
    out, back = [], []
    for count in (40, 200):
        tokens, table = bench.tokens(count + 1), bench.pool.table(count + 1)
        bench.fill(tokens[:count], table)
        other = bench.pool.table(count + 1)
        out.append(table)
        back.append(other)
        rows.append(row(tokens[count:], count, other, 1))
        wanted.append(_plain(tokens, 1))
    frames = np.concatenate(out)
    places = slots[: len(frames)]
    run(bench.executor, [], saves=np.stack([frames, places]), poison=frames)
    loads = np.stack([places, np.concatenate(back)])
    yield from zip(run(bench.executor, rows, loads=loads), wanted, strict=True)


CASES: dict[str, Case] = {
    "ragged batch": ragged, "trees": trees, "shared prefix": shared, "through the host": moved,
}  # fmt: skip


def check(model: Model, tested: TorchExecutor, plain: TorchExecutor) -> Iterator[Finding]:
    """Compare both executors' logits with float64."""
    for executor in (tested, plain):
        executor.open_host(HOST_SLOTS)
    for name, case in CASES.items():
        found, yardstick = list(case(Bench(tested))), list(case(Bench(plain)))
        expected = [_expected(model, wanted) for _, wanted in found]
        error = _error([data for data, _ in found], expected)
        allowed = _error([data for data, _ in yardstick], expected)
        yield Finding(
            "parity", model.name, name,
            {"error (rms)": error, "plain torch's": allowed, "rows": len(found)},
            error <= max(_YARDSTICKS * allowed, _ERROR_MIN),
        )  # fmt: skip


def _expected(model: Model, wanted: Wanted) -> torch.Tensor:
    with torch.inference_mode():
        logits = reference_logits(model, wanted.tokens, wanted.positions, wanted.parents)
    return logits[-wanted.places :].cpu()


def _error(found: list[bytes], expected: list[torch.Tensor]) -> float:
    """Return the rows' largest root mean square of the differences, relative to the logits'."""
    errors = []
    for data, logits in zip(found, expected, strict=True):
        mine = torch.frombuffer(bytearray(data), dtype=torch.float32).view(logits.shape).double()
        errors.append(float((mine - logits).square().mean().sqrt() / logits.square().mean().sqrt()))
    worst = max(errors)
    return float("inf") if worst != worst else worst
