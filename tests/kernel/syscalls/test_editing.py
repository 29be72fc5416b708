"""What editing is for, against dense attention with the equivalent mask and positions.

Each scenario runs on the native kernels and on plain torch, on a model that sees everything and on
one with a sliding window. Every pred compares all its logits with the oracle's, so a scenario only
has to edit and to continue.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.executor.models import (
    VOCAB,
    Checkpoint,
    Float32,
    as_logits,
    make_checkpoint,
    relative_error,
)
from tests.support.executor.native import native_library
from tests.support.kernel.dense_attention import Dense
from tests.support.kernel.rig import ASSETS, KernelRig, options, run_beside, tokens
from tests.support.run_by import run_by

_TOLERANCE = 1e-4  # of the largest logit, in float32
_FIRST_HANDLE = 1 << 16
_PAGE_BYTES = 2 * 2 * 2 * 16 * 4 * PAGE_TOKENS  # layers, K and V, heads, their size, float32
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "windowed": ("mistral", {"sliding_window": 24}),
}
NARROW = StepLimits(tokens=40, rows=3, quantum=8)  # a prompt comes in many chunks


@dataclass
class Sheet:
    """A KV file, and the oracle's entries that it holds."""

    handle: int
    entries: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass
class Desk:
    """One instance's files."""

    rig: KernelRig
    dense: Dense
    instance: int = 1
    made: int = 0

    def _new(self, entries: Sequence[int] = ()) -> Sheet:
        self.made += 1
        return Sheet(_FIRST_HANDLE + self.made - 1, list(entries))

    def _tell(self, op: Op, *given: Any) -> None:
        self.rig.worker.tell(self.instance, op, *given)

    def create(self) -> Sheet:
        sheet = self._new()
        self._tell(Op.KV_CREATE, sheet.handle)
        return sheet

    def fork(self, source: Sheet) -> Sheet:
        sheet = self._new(source.entries)
        self._tell(Op.KV_FORK, sheet.handle, source.handle)
        return sheet

    def extract(self, source: Sheet, *ranges: tuple[int, int]) -> Sheet:
        taken = [source.entries[i] for start, end in ranges for i in range(start, end)]
        sheet = self._new(self._distinct([], taken))
        self._tell(Op.KV_EXTRACT, sheet.handle, source.handle, tokens(*np.ravel(ranges).tolist()))
        return sheet

    def append(self, sheet: Sheet, source: Sheet, start: int, end: int) -> None:
        sheet.entries += self._distinct(sheet.entries, source.entries[start:end])
        self._tell(Op.KV_APPEND, sheet.handle, source.handle, start, end)

    def truncate(self, sheet: Sheet, length: int) -> None:
        del sheet.entries[length:]
        self._tell(Op.KV_TRUNCATE, sheet.handle, length)

    def close(self, sheet: Sheet) -> None:
        self._tell(Op.KV_CLOSE, sheet.handle)

    async def pred(
        self,
        sheet: Sheet,
        ids: Sequence[int],
        positions: Sequence[int] | None = None,
        parents: Sequence[int] | None = None,
        keep: bool = True,
    ) -> Float32:
        """Compute tokens and compare every distribution with the oracle's; return them."""
        given: dict[str, Any] = {"at": "all", "get": "logits", "keep": keep}
        if parents is not None:
            given["parents"] = list(parents)
        packed = None if positions is None else tokens(*positions)
        result = await self.rig.worker.pred(
            self.instance, sheet.handle, tokens(*ids), options(**given), packed
        )
        assert isinstance(result, bytes), f"errno {result}"
        found = as_logits(result)
        numbers = self._compute(sheet, ids, positions, parents)
        if keep:
            sheet.entries += numbers
        assert relative_error(found, self.dense.logits(numbers)) < _TOLERANCE
        return found

    def _compute(
        self,
        sheet: Sheet,
        ids: Sequence[int],
        positions: Sequence[int] | None,
        parents: Sequence[int] | None,
    ) -> list[int]:
        """Add the entries to the oracle: their mask is written down here, from ABI's words."""
        before, numbers, paths = len(sheet), list[int](), list[tuple[int, ...]]()
        for index, token in enumerate(ids):
            parent = index - 1 if parents is None else parents[index]
            path = () if parent < 0 else (*paths[parent], numbers[parent])
            position = before + len(path) if positions is None else positions[index]
            paths.append(path)
            numbers.append(self.dense.add(token, position, (*sheet.entries, *path)))
        return numbers

    def _distinct(self, held: Sequence[int], taken: Sequence[int]) -> list[int]:
        """A file may hold an entry twice: attention then counts it twice."""
        seen, distinct = set(held), []
        for number in taken:
            distinct.append(self.dense.again(number) if number in seen else number)
            seen.add(number)
        return distinct


def at_a_desk(
    checkpoint: Checkpoint,
    scenario: Callable[[Desk], Coroutine[Any, Any, None]],
    limits: StepLimits | None = None,
    pages: int = 512,
) -> None:
    """Run a scenario over a real executor, its pool full of NaN; all pages must come back."""

    async def test(rig: KernelRig) -> None:
        assert (await rig.gateway.register(1)).errno == 0
        await scenario(Desk(rig, Dense(checkpoint)))
        await rig.gateway.check_integrity()

    async def main() -> None:
        executor = TorchExecutor.load(
            checkpoint.directory, dtype="fp32", device="cpu", threads=1,
            pool_bytes=pages * _PAGE_BYTES,
        )  # fmt: skip
        frames = np.arange(executor.frame_count, dtype=np.int32)
        await executor.after_steps(lambda: executor.pages.poison(frames))
        places = TierConfig(pages_a_frame=8)  # what does not fit is kept as tokens alone
        kernel_options = KernelOptions(steps=limits or StepLimits(), places=places)
        kernel = Kernel(executor, describe(ASSETS), RealClock(), kernel_options)
        await run_beside(kernel, test)
        found = kernel.statistics()
        assert found["pages_free"] == found["pages"]

    asyncio.run(main())


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Checkpoint:
    kind, settings = MODELS[request.param]
    directory: Path = tmp_path_factory.mktemp("model")
    return make_checkpoint(directory, kind, **settings)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    # Small products gain nothing from two threads, and threads that spin disturb the neighbours.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["native", "torch"], autouse=True)
def _network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        native_library()
    monkeypatch.setenv("SYMPHONY_NATIVE", "1" if request.param == "native" else "0")


def ids(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, VOCAB, count).tolist()
    return found


def best(logits: Any) -> int:
    return int(np.argmax(logits))


@run_by(at_a_desk, "checkpoint")
async def test_attention_sinks_with_kept_positions_equal_dense(desk: Desk) -> None:
    """StreamingLLM (2309.17453): the first tokens and a window, at their old positions."""
    stream = desk.create()
    logits = await desk.pred(stream, ids(50))
    position = 50
    for _ in range(3):
        kept = desk.extract(stream, (0, 4), (len(stream) - 19, len(stream)))
        desk.close(stream)
        stream = kept
        for _ in range(5):
            logits = await desk.pred(stream, [best(logits[-1])], [position])
            position += 1


@run_by(at_a_desk, "checkpoint", limits=NARROW)
async def test_attention_sinks_with_new_positions_equal_dense(desk: Desk) -> None:
    """Positions inside the cache: the window's tokens are computed again behind the sinks."""
    stream = desk.create()
    text = ids(60)
    await desk.pred(stream, text)
    for step in range(3):
        kept = desk.extract(stream, (0, 4))
        window = text[-20:]
        logits = await desk.pred(kept, window)  # at 4, 5, ..: behind what the file has
        for _ in range(6):
            text.append(best(logits[-1]))
            logits = await desk.pred(kept, text[-1:])
        # The very same tokens at positions said one by one.
        other = desk.extract(stream, (0, 4))
        again = await desk.pred(other, window + text[-6:], range(4, 30))
        assert np.allclose(again[-1], logits[-1], rtol=1e-3, atol=1e-4), step
        desk.close(kept)


@run_by(at_a_desk, "checkpoint")
async def test_sliding_window_equals_dense(desk: Desk) -> None:
    stream = desk.create()
    logits = await desk.pred(stream, ids(30))
    for position in range(30, 42):
        kept = desk.extract(stream, (len(stream) - 15, len(stream)))
        desk.close(stream)
        stream = kept
        logits = await desk.pred(stream, [best(logits[-1])], [position])


@pytest.mark.parametrize("limits", [StepLimits(), NARROW], ids=["wide", "narrow"])
def test_pruned_contexts_equal_dense(checkpoint: Checkpoint, limits: StepLimits) -> None:
    """Any entries taken out of the middle, at any token and not at pages' ends."""

    async def scenario(desk: Desk) -> None:
        random = np.random.default_rng(3)
        stream = desk.create()
        await desk.pred(stream, ids(70))
        position = 70
        for _ in range(4):
            kept = np.flatnonzero(random.random(len(stream)) < 0.7)
            bounds = [(int(i), int(i) + 1) for i in kept]
            pruned = desk.extract(stream, *bounds)
            count = int(random.integers(1, 30))
            await desk.pred(pruned, ids(count, position), range(position, position + count))
            position += count
            stream = pruned

    at_a_desk(checkpoint, scenario, limits)


@run_by(at_a_desk, "checkpoint")
async def test_modules_appended_in_any_order_equal_dense(desk: Desk) -> None:
    """Prompt Cache (2311.04934): modules computed alone, each at positions of its own."""
    sizes = [16, 7, 33, 1]
    modules, begin = [], 8
    for index, size in enumerate(sizes):
        module = desk.create()
        await desk.pred(module, ids(size, index), range(begin, begin + size))
        modules.append(module)
        begin += size
    system = desk.create()
    await desk.pred(system, ids(8, 99))
    for order in ([0, 1, 2, 3], [2, 0], [3, 1, 2, 0], [1, 1]):
        prompt = desk.fork(system)
        for index in order:
            desk.append(prompt, modules[index], 0, sizes[index])
        await desk.pred(prompt, ids(11, 50), range(begin, begin + 11))
        await desk.pred(prompt, ids(1, 51), [begin + 11])


@run_by(at_a_desk, "checkpoint")
async def test_parts_of_modules_appended_elsewhere_equal_dense(desk: Desk) -> None:
    """Parts of one module, and of a file that grew behind modules, appended elsewhere."""
    one, other = desk.create(), desk.create()
    await desk.pred(one, ids(40, 1))
    await desk.pred(other, ids(25, 2), range(100, 125))
    desk.append(one, other, 3, 22)
    await desk.pred(one, ids(9, 3), range(125, 134))
    target = desk.create()
    await desk.pred(target, ids(5, 4))
    desk.append(target, one, 35, 64)
    desk.append(target, target, 0, 20)
    desk.append(target, other, 20, 25)
    await desk.pred(target, ids(20, 5), range(140, 160))
    desk.truncate(target, 37)
    await desk.pred(target, ids(2, 6))


async def decoded(desk: Desk, prompt: list[int], count: int) -> list[int]:
    """Return what plain greedy decoding gives behind a prompt."""
    plain = desk.create()
    logits = await desk.pred(plain, prompt)
    found = [best(logits[-1])]
    for _ in range(count):
        logits = await desk.pred(plain, found[-1:])
        found.append(best(logits[-1]))
    return found


@run_by(at_a_desk, "checkpoint")
async def test_speculation_as_a_chain_equals_plain_decoding(desk: Desk) -> None:
    """Each proposal is half right: accepted tokens and one more equal plain decoding."""
    expected = await decoded(desk, ids(33), 24)
    fast = desk.create()
    out = [best((await desk.pred(fast, ids(33)))[-1])]
    while len(out) < 18:
        right = expected[len(out) : len(out) + 3]
        lookaheads = [*right, (expected[len(out) + 3] + 1) % VOCAB, 5]
        found = await desk.pred(fast, [out[-1], *lookaheads])
        said = [best(each) for each in found]
        accepted = 0
        while accepted < len(lookaheads) and said[accepted] == lookaheads[accepted]:
            accepted += 1
        desk.truncate(fast, len(fast) - len(lookaheads) + accepted)
        out += said[: accepted + 1]
    assert out == expected[: len(out)]


@run_by(at_a_desk, "checkpoint")
async def test_speculation_as_a_tree_equals_plain_decoding(desk: Desk) -> None:
    """Proposals in a tree, in one pass (SpecInfer, 2305.09781); the right path is extracted."""
    expected = await decoded(desk, ids(40), 20)
    fast = desk.create()
    out = [best((await desk.pred(fast, ids(40)))[-1])]
    while len(out) < 16:
        right = expected[len(out) : len(out) + 2]
        # Node 0 is the token itself; below it wrong proposals stand before the right ones.
        lookaheads = [out[-1], right[0] ^ 1, right[0], 3, right[1] ^ 2, right[1]]
        found = await desk.pred(fast, lookaheads, parents=[-1, 0, 0, 1, 2, 2])
        before = len(fast) - 6
        assert [best(found[0]), best(found[2])] == right
        kept = desk.extract(fast, (0, before + 1), (before + 2, before + 3),
                            (before + 5, before + 6))  # fmt: skip
        desk.close(fast)
        fast = kept
        out += [*right, best(found[5])]
    assert out == expected[: len(out)]


@run_by(at_a_desk, "checkpoint")
async def test_tree_rolled_back_to_any_level_equals_dense(desk: Desk) -> None:
    """All branches in one file, and rolled back to any level; parents within one pass only."""
    trunk = desk.create()
    await desk.pred(trunk, ids(37))
    branches = [desk.fork(trunk) for _ in range(3)]
    for index, branch in enumerate(branches):
        parents = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 3, -1, 10, 11]
        await desk.pred(branch, ids(13, index), parents=parents)
        desk.truncate(branch, 37 + 13 - 2 * index - 1)
        await desk.pred(branch, ids(3, index), [45, 46, 47])
    # Two roots only, siblings without children, at positions that the program says.
    await desk.pred(trunk, [9, 8, 7], [60, 60, 60], [-1, -1, -1])
    await desk.pred(trunk, ids(5), parents=[-1, 0, 1, 2, 3], keep=False)
    await desk.pred(trunk, ids(4))


@run_by(at_a_desk, "checkpoint", limits=StepLimits())
async def test_tree_deeper_than_the_window_equals_dense(desk: Desk) -> None:
    file = desk.create()
    await desk.pred(file, ids(21))
    # A chain of 40 with a sibling before each link: depth is not the place in the file.
    parents = [-1, -1]
    for link in range(1, 40):
        parents += [2 * link - 1, 2 * link - 1]
    await desk.pred(file, ids(80, 4), parents=parents)
    await desk.pred(file, ids(3, 5))


@run_by(at_a_desk, "checkpoint")
async def test_file_with_repeated_entries_equals_dense(desk: Desk) -> None:
    file = desk.create()
    await desk.pred(file, ids(45))
    jumbled = desk.extract(file, (16, 32), (40, 45), (0, 3), (41, 43), (0, 0), (44, 45))
    await desk.pred(jumbled, ids(7, 1), [3, 1, 4, 1, 5, 9, 2])
    await desk.pred(jumbled, ids(2, 2))


@pytest.mark.parametrize("pages", [60, 24])
def test_edited_files_under_pressure_equal_dense(checkpoint: Checkpoint, pages: int) -> None:
    """They take turns on a device that holds a part of them, and give the same results."""

    async def scenario(desk: Desk) -> None:
        random = np.random.default_rng(8)
        text, other = desk.create(), desk.create()
        await desk.pred(text, ids(90))
        await desk.pred(other, ids(40, 1), range(200, 240))
        sinks = desk.extract(text, (0, 4), (61, 90))
        await desk.pred(sinks, ids(25, 2), range(90, 115))
        window = desk.extract(sinks, (0, 4), (30, 58))
        tree = desk.fork(text)
        await desk.pred(tree, ids(6, 3), parents=[-1, 0, 0, 1, 2, 2])
        path = desk.extract(tree, (0, 91), (92, 93), (95, 96))
        mixed = desk.extract(other, (5, 40))
        desk.append(mixed, text, 16, 70)
        desk.append(mixed, sinks, 30, 50)
        files = [text, other, sinks, window, tree, path, mixed]
        for turn in range(28):
            file = files[turn % 7] if turn < 14 else files[int(random.integers(7))]
            await desk.pred(file, ids(int(random.integers(1, 4)), turn))
        admission = desk.rig.kernel._scheduler._admission
        assert admission is not None
        assert (admission.recomputed_tokens > 0) == (pages == 24), admission.recomputed_tokens

    at_a_desk(checkpoint, scenario, pages=pages)
