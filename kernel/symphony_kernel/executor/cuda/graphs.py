"""CUDA graphs for decode steps: one for each size of a ladder; steps are padded.

A graph is the whole captured network, from the tokens to the outputs of the last norm. It reads
tokens from its own buffers, and attention's plan from its wrappers' buffers. Padding rows are token
0 in the padding page; their results are not read. Without capturing, the same steps are computed
with the same padding, which lets the tests run on a CPU.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.attention import Attention
from symphony_kernel.executor.cuda.inputs import TOKEN_ARRAYS, Inputs, inputs_on, pack
from symphony_kernel.executor.cuda.model import CudaDecoder, Tokens
from symphony_kernel.executor.cuda.operators import Operators
from symphony_kernel.executor.cuda.plan import StepPlan, empty_plan, padded
from symphony_kernel.protocol.limits import STEP_ROWS_MAX

_log = logging.getLogger(__name__)

_LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)


def ladder(rows: int) -> tuple[int, ...]:
    """Return the sizes of the graphs for steps of up to so many rows."""
    return (*(size for size in _LADDER if size < rows), rows)


LADDER = ladder(STEP_ROWS_MAX)
# Of a step's rows together, in each window: 4 MiB of numbers. Larger steps use no graph.
INDICES_MAX = 1 << 20
_WARM_RUNS = 2  # before a capture: libraries make workspaces and kernels at first use


class DecodeGraph:
    """Decode steps of `rows` rows, padding included."""

    def __init__(
        self,
        rows: int,
        decoder: CudaDecoder,
        attention: Attention,
        operators: Operators,
        pool: Tensor,
    ) -> None:
        self._decoder, self._attention, self._operators = decoder, attention, operators
        self._pool = pool
        template = pack(padded(empty_plan(decoder.windows), rows, 0), decoder.windows, {}, False)
        arrays = [template.on_host(name) for name in TOKEN_ARRAYS]
        begins = [array.storage_offset() for array in arrays]
        end = begins[-1] + rows
        assert all(later > earlier for earlier, later in pairwise(begins)), "the tokens come first"
        self._fixed = torch.zeros(end, dtype=torch.int32, device=decoder.device)
        tokens, positions, pages, offsets = (self._fixed[at : at + rows] for at in begins)
        self._tokens = Tokens(tokens, positions, pages, offsets, None)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden = pool.new_empty(0)

    def run(self, inputs: Inputs) -> Tensor:
        """Compute a step of `rows` rows; return [rows, hidden], valid until the next step."""
        self._attention.plan(inputs)
        self._fixed.copy_(inputs.moved.buffer[: len(self._fixed)])
        if self._graph is None:
            return self._compute()
        self._graph.replay()
        return self._hidden

    def capture(self, inputs: Inputs, memory: Any, aside: torch.cuda.Stream) -> None:
        """Capture the computation, with any step's plan, in the graphs' memory pool.

        Before that it runs on `aside`, one stream for all graphs, since cuBLAS keeps a workspace
        (32 MiB on Hopper) for each stream that it has seen.
        """
        self._attention.plan(inputs)
        self._fixed.copy_(inputs.moved.buffer[: len(self._fixed)])
        aside.wait_stream(torch.cuda.current_stream(self._decoder.device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM_RUNS):
                self._compute()
        torch.cuda.current_stream(self._decoder.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Another thread may pin memory meanwhile, which does not concern the graph.
        with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            self._hidden = self._compute()
        self._graph = graph

    def _compute(self) -> Tensor:
        return self._decoder.forward(self._tokens, self._attention, self._operators, self._pool)


class DecodeGraphs:
    """The graphs of a ladder of sizes, and the choice of a step's graph."""

    def __init__(
        self, sizes: Sequence[int], make: Callable[[int], DecodeGraph], indices_max: int
    ) -> None:
        """Make the graphs of ascending sizes, not captured yet."""
        # The largest first: the smaller ones find room in the memory that it leaves.
        self._graphs = {size: make(size) for size in sorted(sizes, reverse=True)}
        self._indices_max = indices_max

    @property
    def sizes(self) -> list[int]:
        """Rows of each graph."""
        return sorted(self._graphs)

    def size_for(self, plan: StepPlan) -> int | None:
        if not plan.only_decodes:
            return None
        size = min((size for size in self._graphs if size >= plan.decodes), default=None)
        if size is None:
            return None
        most = max(len(reach.decodes.indices) for reach in plan.reaches.values())
        return size if most + size - plan.decodes <= self._indices_max else None

    def run(self, inputs: Inputs) -> Tensor:
        """Compute a step that is padded to one of the sizes."""
        return self._graphs[inputs.plan.decodes].run(inputs)

    def capture(self, decoder: CudaDecoder, padding_page: int) -> None:
        before = torch.cuda.memory_reserved(decoder.device)
        memory = torch.cuda.graph_pool_handle()
        nothing = empty_plan(decoder.windows)
        aside = torch.cuda.Stream(decoder.device)  # type: ignore[no-untyped-call]
        for size, graph in self._graphs.items():
            plan = padded(nothing, size, padding_page)
            packed = pack(plan, decoder.windows, {}, pinned=True)
            graph.capture(inputs_on(decoder.device, plan, decoder.windows, packed), memory, aside)
        torch.cuda.synchronize(decoder.device)
        taken = torch.cuda.memory_reserved(decoder.device) - before
        _log.info("captured %d graphs of decode steps in %d MiB", len(self._graphs), taken >> 20)
