"""One step's index arrays: on the host for planning attention, and on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32
from symphony_kernel.executor.cuda.plan import Paged, StepPlan, packed_mask
from symphony_kernel.executor.cuda.staging import MovedArrays, StagedArrays

Kind = Literal["decodes", "chunks", "trees"]
Part = Literal["indptr", "indices", "last_page_len", "lengths"]  # lengths: of decodes alone
KINDS: tuple[Kind, ...] = ("decodes", "chunks", "trees")


# What a layer reads of the tokens comes first: so a decode step's number of rows determines its
# place.
TOKEN_ARRAYS = ("tokens", "positions", "pages", "offsets")


def pack(
    plan: StepPlan, windows: Sequence[int | None], others: Mapping[str, Int32], pinned: bool
) -> StagedArrays:
    """Return a plan's arrays, and others, in one buffer on the host."""
    arrays: dict[str, Int32] = {
        **{name: getattr(plan, name) for name in TOKEN_ARRAYS},
        "wanted": plan.wanted,
        "chunks_indptr": plan.chunks_indptr,
        "trees_indptr": plan.trees_indptr,
    }
    for number, window in enumerate(windows):
        for kind in KINDS:
            paged: Paged = getattr(plan.reaches[window], kind)
            if paged.rows:
                arrays[f"{kind} {number} indptr"] = paged.indptr
                arrays[f"{kind} {number} indices"] = paged.indices
                arrays[f"{kind} {number} last_page_len"] = paged.last_page_len
        if plan.decodes:
            arrays[f"decodes {number} lengths"] = plan.reaches[window].decodes.lengths
        if len(plan.trees_indptr) > 1:
            bits, begins = packed_mask(plan.reaches[window], plan.trees_indptr)
            arrays[f"trees {number} mask"], arrays[f"trees {number} mask_indptr"] = bits, begins
    return StagedArrays({**arrays, **others}, pinned)


@dataclass(slots=True)
class Inputs:
    """A step whose arrays are on the device, or on their way there."""

    plan: StepPlan
    windows: tuple[int | None, ...]
    packed: StagedArrays
    moved: MovedArrays

    @property
    def tokens(self) -> Tensor:
        return self.moved["tokens"]

    def host(self, kind: Kind, number: int, part: Part) -> Tensor:
        """Return the part that rows of a kind read through window `number`, on the host."""
        return self.packed.on_host(f"{kind} {number} {part}")

    def device(self, kind: Kind, number: int, part: Part) -> Tensor:
        """Return the same part on the device."""
        return self.moved[f"{kind} {number} {part}"]

    def tree_mask(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the trees' masks through window `number` on the device (`plan.packed_mask`).

        They are uint8, with the offsets of rows in bytes.
        """
        bits = self.moved[f"trees {number} mask"].view(torch.uint8)
        return bits, self.moved[f"trees {number} mask_indptr"]


def inputs_on(
    device: torch.device, plan: StepPlan, windows: tuple[int | None, ...], packed: StagedArrays
) -> Inputs:
    """Move a step's arrays to a device, without waiting for it."""
    return Inputs(plan, windows, packed, packed.move(device))
