"""KV files of a real kernel over a real executor, each compared with what dense attention gives.

Every pred compares all its logits with the oracle's, so a scenario only has to edit and go on.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.executor.models import Checkpoint, Float32, as_logits, relative_error
from tests.support.kernel.dense_attention import Dense
from tests.support.kernel.rig import ASSETS, KernelRig, options, tokens

_TOLERANCE = 1e-4  # of the largest logit, in float32
_FIRST_HANDLE = 1 << 16
_PAGE_BYTES = 2 * 2 * 2 * 16 * 4 * PAGE_TOKENS  # layers, K and V, heads, their size, float32


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
        running = asyncio.create_task(kernel.run())
        try:
            rig = KernelRig(kernel)
            assert (await rig.gateway.register(1)).errno == 0
            await scenario(Desk(rig, Dense(checkpoint)))
            await rig.gateway.check_integrity()
        finally:
            await kernel.close()
            await running
        found = kernel.statistics()
        assert found["pages_free"] == found["pages"]

    asyncio.run(main())
