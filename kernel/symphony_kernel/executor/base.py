"""The Executor: what the kernel asks of a device.

An executor owns the model's weights and one pool of physical pages (K and V of every layer). It
knows nothing of files, tenants or programs: a step names physical pages and slots. Slot `s` is
entry `s % PAGE_TOKENS` of page `s // PAGE_TOKENS`.

Steps run in the order in which they were given, one after the other; whatever a later step writes
happens after every read of an earlier one. That order is what lets the kernel reuse a page as soon
as no later step of the old owner can come.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.options import DEFAULT, PredOptions

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What programs may know of the model (`model_info`). `dtype` is "float32" or "bfloat16"."""

    name: str
    vocab_size: int
    eos: tuple[int, ...]
    bos: int | None
    max_context: int
    dtype: str


@dataclass(slots=True)
class Row:
    """One sequence's part of a step: `q` new entries after `start` present ones.

    Entry i of the sequence (0 <= i < start + q) lies in slot
    `block_table[i // PAGE_TOKENS] * PAGE_TOKENS + i % PAGE_TOKENS`. New token j attends to all
    `start` present entries, to itself, and to the new tokens before it; with `parents`, among the
    new tokens to its ancestors only (parent -1: none). Order in the file, not position, decides
    what is visible; `positions` feed the rotary embedding.
    """

    tokens: UInt32  # [q]
    positions: Int32  # [q]
    start: int
    block_table: Int32  # [ceil((start + q) / PAGE_TOKENS)]
    places: Int32  # [w] indices into the q tokens, in the order in which results are wanted
    options: PredOptions = DEFAULT  # get, sampling, top, of, bias, allow; the rest is applied above
    parents: Int32 | None = None  # [q]
    # u64 for Get.SAMPLE: options.sampling.seed, or what the kernel drew. The noise at a place is a
    # function of this seed, of the token's position (`positions[place]`) and of the token id.
    seed: int = 0


@dataclass(slots=True)
class Batch:
    """One step: copies first, group after group, then all rows."""

    rows: list[Row]
    # Each group is [2, c]: source and destination slots. Within a group all reads come before all
    # writes and destinations are distinct.
    copies: list[Int64] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return sum(len(row.tokens) for row in self.rows)


Results: TypeAlias = list[bytes | SyscallError]  # one a row


class Executor(Protocol):
    """A device with a model and a pool of `pages` pages.

    It may also have `start(batch) -> Outcome[Results]`, the same as `run` without a coroutine: the
    step loop takes that where it is there.
    """

    @property
    def model(self) -> ModelInfo:
        """The model it runs."""

    @property
    def computes(self) -> str:
        """What computes, for an operator: "native", "torch" or "simulated"."""

    @property
    def pages(self) -> int:
        """Physical pages in the pool."""

    async def run(self, batch: Batch) -> Results:
        """Compute one step; return each row's result, places in order (see `options.Get`).

        A row whose options cannot be answered (an `allow` mask that allows no token) has a
        `SyscallError` instead; its entries are computed all the same.

        The calls may overlap; the steps do not. Raises whatever went wrong on the device, after
        which the contents of the batch's new slots are undefined and everything else is intact.
        """

    async def close(self) -> None:
        """Wait for the last step and give the device back."""
