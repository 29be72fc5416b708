"""Files over a device, and their absent entries computed again as `KVFile.plan` says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from symphony_kernel.executor.base import Batch, Int32, Int64, Row
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import FILE, Step
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions

from tests.support.kernel.page_device import FilesRig, slots_of_pages

NOTHING = PredOptions(get=Get.NONE)
_NO_PLACES: Int32 = np.empty(0, np.int32)
_WIPED = 0


class Device(Protocol):
    """Slots with a content, and rows that compute it."""

    frames: int

    def run(self, batch: Batch) -> None: ...
    def read(self, slots: Int64) -> npt.NDArray[Any]: ...
    def wipe(self, frames: Int32) -> None: ...


class HashDevice:
    """Stands for K and V of an entry: a hash of its token, its position, and of all that it sees.

    What it sees counts with its place in the row, as it does for a real executor's last bits.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.values: Int64 = np.zeros(frames * PAGE_TOKENS, np.int64)

    def run(self, batch: Batch) -> None:
        for sources, destinations in batch.copies:
            self.values[destinations] = self.values[sources]
        for row in batch.rows:
            self._compute(row)

    def _compute(self, row: Row) -> None:
        slots = slots_of_pages(row.block_table)[: row.start + len(row.tokens)]
        before = tuple(enumerate(self.values[slots[: row.start]].tolist()))
        assert all(value != _WIPED for _, value in before), "a row read what is not there"
        paths: list[tuple[tuple[int, int], ...]] = []
        for j, (token, position) in enumerate(zip(row.tokens, row.positions, strict=True)):
            parent = j - 1 if row.parents is None else int(row.parents[j])
            seen = before if parent < 0 else paths[parent]
            value = hash((int(token), int(position), seen)) | 1
            self.values[slots[row.start + j]] = value
            paths.append((*seen, (row.start + j, value)))

    def read(self, slots: Int64) -> npt.NDArray[Any]:
        return self.values[slots]

    def wipe(self, frames: Int32) -> None:
        self.values[slots_of_pages(frames)] = _WIPED


class RealDevice:
    """A real executor's pool."""

    def __init__(self, executor: TorchExecutor, frames: int) -> None:
        self.executor = executor
        self.frames = min(frames, executor.frame_count)
        self.wipe(np.arange(self.frames, dtype=np.int32))

    def run(self, batch: Batch) -> None:
        asyncio.run(self.executor.run(batch))

    def read(self, slots: Int64) -> npt.NDArray[Any]:
        frames, which = np.unique(slots // PAGE_TOKENS, return_inverse=True)
        read_frames = self.executor.pages.read_frames
        values = self._on_device(lambda: read_frames(frames.astype(np.int32)))
        read: npt.NDArray[Any] = values[:, :, which, slots % PAGE_TOKENS]
        return read

    def wipe(self, frames: Int32) -> None:
        self._on_device(lambda: self.executor.pages.poison(frames))

    def _on_device(self, work: Callable[[], Any]) -> Any:
        return asyncio.run(self.executor.after_steps(work))


class Workbench(FilesRig):
    """One tenant's files over a device."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.frames)
        self.device = device

    def extract(self, source: KVFile, *ranges: tuple[int, int]) -> KVFile:
        file = self.create()
        if ranges:
            file.append(source, np.concatenate([np.arange(*each) for each in ranges]))
        return file

    def append(self, file: KVFile, source: KVFile, start: int, end: int) -> None:
        file.append(source, np.arange(start, end))

    def pred(
        self,
        file: KVFile,
        tokens: Sequence[int] | npt.NDArray[Any],
        positions: Sequence[int] | npt.NDArray[Any] | None = None,
        parents: Sequence[int] | None = None,
    ) -> None:
        """Compute tokens behind a file, as the kernel does."""
        ids, start = np.asarray(tokens, np.uint32), file.length
        if positions is None:
            positions = np.arange(start, start + len(ids))
        places = np.asarray(positions, np.int32)
        file.reserve(len(ids))
        self._compute(file.block_table(start + len(ids)), start, ids, places, parents)
        file.commit(ids, places, parents)

    def _compute(
        self,
        table: Int32,
        start: int,
        tokens: npt.NDArray[np.uint32],
        positions: Int32,
        parents: Sequence[int] | Int32 | None,
    ) -> None:
        tree = None if parents is None else np.asarray(parents, np.int32)
        self.settle()
        row = Row(tokens, positions, start, table, _NO_PLACES, NOTHING, tree)
        self.device.run(Batch([row]))

    def settle(self) -> None:
        """Make the copies that KVFS has asked for."""
        for batch in self.kvfs.take_transfers():
            self.device.run(batch)

    def content(self, file: KVFile) -> npt.NDArray[Any]:
        """Return what lies in a file's slots."""
        self.settle()
        return self.device.read(file.slots(np.arange(file.length)))

    def rebuild(self, file: KVFile, absent: Int64) -> list[Step]:
        """Compute absent entries again, step by step, in scratch files or in place."""
        steps = file.plan(absent)
        scratch: dict[int, KVFile] = {}
        for number, step in enumerate(steps):
            if step.in_place:
                table = file.block_table(step.start + len(step.tokens))
                self._compute(table, step.start, step.tokens, step.positions, step.parents)
            else:
                scratch[number] = self._in_scratch(file, step, steps, scratch)
            for each in step.finished:
                if each in scratch:
                    self.close(scratch.pop(each))
        assert not scratch, "a plan says of each step when it is needed no more"
        self.settle()
        return steps

    def _in_scratch(
        self, file: KVFile, step: Step, steps: list[Step], scratch: dict[int, KVFile]
    ) -> KVFile:
        mine = self.create()
        for part in step.context:
            source, first = file, 0
            if part.source != FILE:
                source, first = scratch[part.source], steps[part.source].start
            self.append(mine, source, first + part.start, first + part.end)
        self.pred(mine, step.tokens, step.positions,
                  None if step.parents is None else step.parents.tolist())  # fmt: skip
        for copy in step.copies:
            sources = mine.slots(step.start + np.arange(copy.start, copy.end))
            count = copy.end - copy.start
            destinations = file.slots(np.arange(copy.at, copy.at + count))
            self.settle()
            self.device.run(Batch([], [np.stack((sources, destinations))]))
        return mine


def random_files(bench: Workbench, random: np.random.Generator, calls: int) -> list[KVFile]:
    """Return the files that a random program of edits leaves."""
    files = [bench.create()]
    for _ in range(calls):
        file = files[int(random.integers(len(files)))]
        other = files[int(random.integers(len(files)))]
        match int(random.integers(8)):
            case 0:
                made = _random_edit(bench, random, other)
                if len(files) < 6:
                    files.append(made)
                else:
                    index = int(random.integers(len(files)))
                    bench.close(files[index])
                    files[index] = made
            case 1:
                start, end = np.sort(random.integers(0, other.length + 1, 2)).tolist()
                bench.append(file, other, start, min(end, start + 40))
            case 2:
                file.truncate(int(random.integers(file.length // 2, file.length + 1)))
            case 3:
                count = int(random.integers(1, 12))
                parents = [int(random.integers(-1, i)) if i else -1 for i in range(count)]
                depths: list[int] = []
                for parent in parents:
                    depths.append(file.length if parent < 0 else depths[parent] + 1)
                bench.pred(file, random.integers(1, 90, count), depths, parents)
            case 4:
                count = int(random.integers(1, 30))
                first = int(random.integers(0, 200))
                bench.pred(file, random.integers(1, 90, count), np.arange(first, first + count))
            case _:
                bench.pred(file, random.integers(1, 90, int(random.integers(1, 40))))
    return files


def _random_edit(bench: Workbench, random: np.random.Generator, source: KVFile) -> KVFile:
    if random.random() < 0.3:
        return bench.fork(source)
    bounds = np.sort(random.integers(0, source.length + 1, (3, 2)), axis=1)
    return bench.extract(source, *[(int(start), int(end)) for start, end in bounds])
