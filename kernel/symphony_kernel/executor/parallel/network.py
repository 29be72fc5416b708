"""A network whose work several ranks share: rank 0's, which has the others do what it does.

Every call goes to the others first and then to the local network, whose products end in the sums
that all have to reach. Nothing is asked back but at the end of moves between frames and host, and
when pages leave. What is sampled is rank 0's alone: the others compute the logits and forget them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, KVArray, KVLayout, Pages, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.network import Network
from symphony_kernel.executor.parallel.calls import array, pack, pack_rows, unpack_rows
from symphony_kernel.executor.parallel.ranks import Ranks
from symphony_kernel.executor.parallel.sharding import Shard, whole_pages
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import KernelBug, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions

_NOTHING = PredOptions(get=Get.NONE)


class ParallelNetwork:
    """Rank 0's share of a model and of its pages, and the other ranks (see `network.Network`).

    The local network has to compute the logits of all places that it is to `answer` about, whatever
    is asked there: all ranks gather them.
    """

    def __init__(self, local: Network, ranks: Ranks, config: ModelConfig) -> None:
        self.local = local
        self._ranks = ranks
        self.pages = ParallelPages(local.pages, ranks, config)

    def prepare(self, rows: Sequence[Row]) -> None:
        """There is nothing to prepare."""

    def room(self, step: Any) -> BitmaskBuffers | None:
        """Never called: nothing was prepared."""
        raise AssertionError(step)

    def compute(self, step: Any, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Never called: nothing was prepared."""
        raise AssertionError(step, masks)

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the rows' entries."""
        self._ranks.tell(pack("forward", *pack_rows(rows)))
        with self._ranks.together():
            return self.local.forward(rows)

    def answer(self, first: int, asks: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Answer from the logits of places of the last step."""
        self._ranks.tell(pack("answer", first, sum(len(ask.positions) for ask in asks)))
        with self._ranks.together():
            return self.local.answer(first, asks)

    def release(self) -> None:
        """Give the memory back, and end the other ranks."""
        try:
            self._ranks.release()
        finally:
            self.local.release()


class ParallelPages:
    """The pages of all ranks (see `network.Pages`): whole ones come and go, each keeps its heads.

    No slot has its bytes in one place: there is no disk tier.
    """

    def __init__(self, local: Pages, ranks: Ranks, config: ModelConfig) -> None:
        mine = local.layout
        self.layout = KVLayout(mine.layers, config.kv_heads, mine.head_dim, mine.dtype)
        self._local = local
        self._ranks = ranks
        self._config = config
        count = 1 + len(ranks)
        self._shards = [Shard(config, rank, count) for rank in range(count)]

    def open_host(self, pages: int) -> None:
        """Make room for so many pages, on each rank for its part of them."""
        self._ranks.tell(pack("open_host", pages))
        try:
            self._local.open_host(pages)
        finally:
            self._ranks.replies()

    def host_page(self, slot: int) -> memoryview:
        """Never called: a server with several ranks has no disk tier."""
        raise KernelBug(f"host slot {slot} has parts on {len(self._shards)} ranks")

    def save(self, frames: Int32, slots: Int32) -> None:
        """Copy pages from frames to host slots."""
        self._ranks.tell(pack("save", frames, slots))
        self._local.save(frames, slots)

    def load(self, slots: Int32, frames: Int32) -> None:
        """Copy pages from host slots to frames."""
        self._ranks.tell(pack("load", slots, frames))
        self._local.load(slots, frames)

    def settle(self) -> float:
        """Wait until no page moves on any rank; the seconds are those of the slowest."""
        self._ranks.tell(pack("settle"))
        mine = self._local.settle()
        seconds: list[float] = self._ranks.replies()
        return max(mine, *seconds)

    def copy(self, group: Int64) -> None:
        self._ranks.note(pack("copy", group))
        self._local.copy(group)

    def poison(self, frames: Int32) -> None:
        self._ranks.note(pack("poison", frames))
        self._local.poison(frames)

    def read_frames(self, frames: Int32) -> KVArray:
        """Return pages, the heads of all ranks."""
        self._ranks.tell(pack("read_frames", frames))
        return self._whole(self._local.read_frames(frames))

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        """Write pages."""
        self._spread("write_frames", frames, values)
        self._local.write_frames(frames, self._shards[0].part(values))

    def read_host(self, slots: Int32) -> KVArray:
        """Return pages in host slots, the heads of all ranks."""
        self._ranks.tell(pack("read_host", slots))
        return self._whole(self._local.read_host(slots))

    def write_host(self, slots: Int32, values: KVArray) -> None:
        """Write pages into host slots."""
        self._spread("write_host", slots, values)
        self._local.write_host(slots, self._shards[0].part(values))

    def _spread(self, call: str, numbers: Int32, values: KVArray) -> None:
        self._ranks.tell_each(
            [pack(call, numbers, share.part(values)) for share in self._shards[1:]]
        )

    def _whole(self, mine: KVArray) -> KVArray:
        parts = [array(data, mine.dtype, mine.shape) for data in self._ranks.replies()]
        return whole_pages(self._config, [mine, *parts])


def follow(network: Network, call: list[Any]) -> bytes | None:
    """Do on another rank what rank 0 has told; return the reply, if there is one."""
    name, *given = call
    pages = network.pages
    match name:
        case "forward":
            network.forward(unpack_rows(given))
        case "answer":
            first, count = given
            network.answer(first, [SamplingRequest(_NOTHING, 0, np.zeros(count, np.int32))])
        case "copy":
            pages.copy(array(given[0], np.int64, (2, -1)))
        case "poison":
            pages.poison(array(given[0]))
        case "save" | "load":
            move = pages.save if name == "save" else pages.load
            move(array(given[0]), array(given[1]))
        case "settle":
            return pack(True, pages.settle())
        case "open_host":
            pages.open_host(given[0])
            return pack(True, None)
        case "read_frames" | "read_host":
            read = pages.read_frames if name == "read_frames" else pages.read_host
            return pack(True, read(array(given[0])))
        case "write_frames" | "write_host":
            write = pages.write_frames if name == "write_frames" else pages.write_host
            numbers = array(given[0])
            shape = pages.layout.shape(len(numbers))
            write(numbers, array(given[1], pages.layout.numpy, shape))
        case _:
            raise KernelBug(f"rank 0 wants {name!r}")
    return None
