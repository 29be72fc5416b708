"""A network over several ranks: rank 0 makes the others do what it does.

Each call goes to the others first and then to the local network, whose products end in sums that
all ranks must reach. Ranks reply only at the end of page moves and when pages are read. Only rank 0
samples: the others compute the logits and drop them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from symphony_kernel.executor.base import Float32, Int32, Int64, KVArray, KVLayout, Pages, Row
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.network import AdapterlessNetwork, ForwardOnlyNetwork, Network
from symphony_kernel.executor.parallel.calls import pack, pack_rows, unpack_rows
from symphony_kernel.executor.parallel.ranks import Ranks
from symphony_kernel.executor.parallel.sharding import Shard, whole_pages
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import KernelBug, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions

_NOTHING = PredOptions(get=Get.NONE)
# Calls of pages, with a reply and without.
_REPLYING = {"open_host", "read_frames", "read_host", "settle"}
_SILENT = {"copy", "load", "poison", "save", "write_frames", "write_host"}


class ParallelNetwork(ForwardOnlyNetwork, AdapterlessNetwork):
    """Rank 0's share of a model and its pages, and the other ranks.

    The local network must compute the logits of all places that it is to `answer`, for any
    options: all ranks gather them.
    """

    def __init__(self, local: Network, ranks: Ranks, config: ModelConfig) -> None:
        self.local = local
        self.computes = local.computes
        self._ranks = ranks
        self.pages = ParallelPages(local.pages, ranks, config)

    def forward(self, rows: Sequence[Row]) -> list[int]:
        self._ranks.send(pack("forward", *pack_rows(rows)))
        with self._ranks.in_lockstep():
            return self.local.forward(rows)

    def answer(self, first: int, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        self._ranks.send(pack("answer", first, sum(len(request.positions) for request in requests)))
        with self._ranks.in_lockstep():
            return self.local.answer(first, requests)

    def hidden(self, first: int, count: int) -> Float32:
        return self.local.hidden(first, count)  # the same on all ranks

    def release(self) -> None:
        try:
            self._ranks.release()
        finally:
            self.local.release()


class ParallelPages:
    """The pages of all ranks (see `base.Pages`); each rank has its heads of each page.

    No slot's bytes lie in one place, so a parallel executor has no disk tier.
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
        self._ranks.send(pack("open_host", pages))
        try:
            self._local.open_host(pages)
        finally:
            self._ranks.receive_replies()

    def host_page(self, slot: int) -> memoryview:
        """Raise KernelBug: a server with several ranks has no disk tier."""
        raise KernelBug(f"host slot {slot} has parts on {len(self._shards)} ranks")

    def save(self, frames: Int32, slots: Int32) -> None:
        self._ranks.send(pack("save", frames, slots))
        self._local.save(frames, slots)

    def load(self, slots: Int32, frames: Int32) -> None:
        self._ranks.send(pack("load", slots, frames))
        self._local.load(slots, frames)

    def settle(self) -> float:
        """Wait for the moves of all ranks; return the seconds of the slowest."""
        self._ranks.send(pack("settle"))
        mine = self._local.settle()
        seconds: list[float] = self._ranks.receive_replies()
        return max(mine, *seconds)

    def copy(self, group: Int64) -> None:
        self._ranks.send(pack("copy", group))
        self._local.copy(group)

    def poison(self, frames: Int32) -> None:
        self._ranks.send(pack("poison", frames))
        self._local.poison(frames)

    def read_frames(self, frames: Int32) -> KVArray:
        self._ranks.send(pack("read_frames", frames))
        return self._whole(self._local.read_frames(frames))

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        self._spread("write_frames", frames, values)
        self._local.write_frames(frames, self._shards[0].part(values))

    def read_host(self, slots: Int32) -> KVArray:
        self._ranks.send(pack("read_host", slots))
        return self._whole(self._local.read_host(slots))

    def write_host(self, slots: Int32, values: KVArray) -> None:
        self._spread("write_host", slots, values)
        self._local.write_host(slots, self._shards[0].part(values))

    def _spread(self, call: str, numbers: Int32, values: KVArray) -> None:
        self._ranks.send_each(
            [pack(call, numbers, share.part(values)) for share in self._shards[1:]]
        )

    def _whole(self, mine: KVArray) -> KVArray:
        return whole_pages(self._config, [mine, *self._ranks.receive_replies()])


def execute_call(network: Network, call: list[Any]) -> bytes | None:
    """Execute rank 0's call on another rank; return the reply, if the call has one."""
    name, *given = call
    if name == "forward":
        network.forward(unpack_rows(given))
    elif name == "answer":
        first, count = given
        network.answer(first, [SamplingRequest(_NOTHING, 0, np.zeros(count, np.int32))])
    elif name in _REPLYING or name in _SILENT:
        result = getattr(network.pages, name)(*given)
        return pack(True, result) if name in _REPLYING else None
    else:
        raise KernelBug(f"unknown call {name!r} from rank 0")
    return None
