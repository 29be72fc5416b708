"""A network on a GPU: FlashInfer or Triton, with CUDA graphs, if available, else plain torch.

On a CPU it computes the same steps from the same arrays, with torch's operators and without
capturing. So its tests need no GPU.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Float32, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.cuda.attention import Attention, TorchAttention
from symphony_kernel.executor.cuda.flashinfer_kernels import (
    FlashInferAttention,
    FlashInferOperators,
    GraphAttention,
    find_flashinfer,
    unsupported,
    workspace_bytes,
)
from symphony_kernel.executor.cuda.graphs import INDICES_MAX, LADDER, DecodeGraph, DecodeGraphs
from symphony_kernel.executor.cuda.inputs import Inputs, inputs_on, pack
from symphony_kernel.executor.cuda.model import CudaDecoder, Tokens
from symphony_kernel.executor.cuda.operators import Operators, TorchOperators
from symphony_kernel.executor.cuda.pages import CudaPages
from symphony_kernel.executor.cuda.plan import padded, plan_step
from symphony_kernel.executor.cuda.sampler import apply_bitmasks, choices_of, choose, move_bitmasks
from symphony_kernel.executor.cuda.step import Launched, PreparedStep
from symphony_kernel.executor.cuda.triton_kernels.selection import find_chooser, find_triton
from symphony_kernel.executor.network import AdapterlessNetwork
from symphony_kernel.executor.sampling import SamplingRequest, answer, host_floats
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS, STEP_ROWS_MAX
from symphony_kernel.protocol.pred_options import Get

_log = logging.getLogger(__name__)

_TOKENS_AT_FIRST = 8_192  # FlashInfer's operators have indices for so many tokens from the start
# How long the device's thread waits for a step's follower between checks for the step's end.
_LOOK_SECONDS = 20e-6


class CudaNetwork(AdapterlessNetwork):
    """A decoder and its page pool on one device (see `network.Network`).

    The pool is [layers, pages + 1, 2, PAGE_TOKENS, kv_heads, head_dim] in the model's dtype; the
    last page belongs to no file. Logits exist for at most `logits_places` places at once.
    `graph_rows` are the sizes of the graphs (None: the ladder, with FlashInfer or Triton),
    `library` is FlashInfer (None: the installed one, on a GPU). `triton` says whether Triton's
    kernels are used (None: on a GPU where FlashInfer is not used). On a GPU Triton chooses the
    tokens, if it is there.
    """

    computes = "cuda"

    def __init__(
        self,
        decoder: CudaDecoder,
        pages: int,
        logits_places: int,
        graph_rows: Sequence[int] | None = None,
        library: Any | None = None,
        triton: bool | None = None,
    ) -> None:
        config, self._device = decoder.config, decoder.device
        self.config = config
        self._decoder = decoder
        self._windows = decoder.windows
        self._logits_places = logits_places
        self.page_count = self._padding_page = pages
        self._pinned = self._device.type == "cuda"
        self._pool = torch.zeros(
            (config.layers, pages + 1, 2, PAGE_TOKENS, config.kv_heads, config.head_dim),
            dtype=decoder.dtype,
            device=self._device,
        )
        self.pages = CudaPages(config, self._pool)
        if library is None and not triton:
            library = self._find_library()
        self.library = library
        if triton is None:
            triton = self._pinned and library is None
        self.triton = find_triton(config, decoder.dtype, self._device) if triton else None
        self._chooser = find_chooser(self._device) if self._pinned or triton else None
        self._workspace = torch.empty(0, dtype=torch.uint8, device=self._device)
        self._attention, self._operators = self._kernels()
        self.graphs = self._make_graphs(graph_rows)
        self._hidden = self._pool.new_empty(0)
        self.launched_ahead = 0  # steps launched before the steps that they follow had ended
        self._follower_known = threading.Event()  # a step that follows has been given

    # -- Kernels --------------------------------------------------------------------------------
    def _find_library(self) -> Any | None:
        """Return FlashInfer if it is installed and computes this model."""
        if self._device.type != "cuda":
            return None
        reason = unsupported(self.config, self._decoder.dtype)
        if reason is not None:
            _log.warning("FlashInfer does not compute attention: %s", reason)
            return None
        return find_flashinfer()

    def _kernels(self) -> tuple[Attention, Operators]:
        config, decoder, library = self.config, self._decoder, self.library
        if self.triton is not None:
            return self.triton.attention(), self.triton.operators
        if library is None:
            attention = TorchAttention(self._padding_page, self._device)
            return attention, TorchOperators(config.norm_epsilon)
        processors = 1
        if self._pinned:
            processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        size = workspace_bytes(config, processors, STEP_ROWS_MAX)
        # All wrappers share it: their steps run one after the other. FlashInfer requires zeros.
        self._workspace = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return (
            FlashInferAttention(library, config, decoder.dtype, self._workspace),
            FlashInferOperators(library, config.norm_epsilon, _TOKENS_AT_FIRST, self._device),
        )

    @property
    def _capturable(self) -> bool:
        """Whether a graph can have these kernels."""
        return self.library is not None or self.triton is not None

    def _make_graphs(self, rows: Sequence[int] | None) -> DecodeGraphs:
        if rows is None:
            rows = LADDER if self._capturable else ()
        most = max(rows, default=0) * (-(-self.config.max_context // PAGE_TOKENS) + 1)
        most = min(most, INDICES_MAX)
        graphs = DecodeGraphs(rows, partial(self._make_graph, self._graph_attention(most)), most)
        if self._pinned and self._capturable and rows:
            graphs.capture(self._decoder, self._padding_page)
        return graphs

    def _make_graph(self, attention: Callable[[int], Attention], rows: int) -> DecodeGraph:
        operators = self._operators
        if self.library is not None:
            # Its own operators: a graph keeps reading the indices that it was captured with.
            epsilon = self.config.norm_epsilon
            operators = FlashInferOperators(self.library, epsilon, rows, self._device)
        return DecodeGraph(rows, self._decoder, attention(rows), operators, self._pool)

    def _graph_attention(self, indices: int) -> Callable[[int], Attention]:
        """Return a function that makes the attention of a graph of a given number of rows."""
        library, triton = self.library, self.triton
        if library is None and triton is None:
            return lambda _rows: TorchAttention(self._padding_page, self._device)
        shared = [
            torch.zeros(indices, dtype=torch.int32, device=self._device) for _ in self._windows
        ]
        if triton is not None:
            return lambda rows: triton.graph_attention(rows, shared)
        return lambda rows: GraphAttention(
            library, self.config, self._decoder.dtype, self._workspace, rows, shared
        )

    def release(self) -> None:
        self.pages.close()
        self._pool = self._hidden = self._pool.new_empty(0)
        self.graphs = DecodeGraphs((), partial(self._make_graph, self._graph_attention(0)), 0)

    def broken(self) -> str | None:
        """Return why the device is unusable, or None; call it after an error.

        After an illegal access by a kernel, all CUDA calls fail until the process ends. A lack of
        memory and errors of the host pass.
        """
        if not self._pinned:
            return None
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            return f"the GPU fails in every call: {error}"
        return None

    # -- Steps -----------------------------------------------------------------------------------
    def prepare(self, rows: Sequence[Row]) -> PreparedStep | None:
        """Return the step's arrays; None: it has too many places, or wants hidden states."""
        if sum(len(row.places) for row in rows) > self._logits_places:
            return None
        plan = plan_step(rows, self._windows)
        choices, others = choices_of(rows, plan.owners)
        if any(rows[plan.owners[n]].options.get is Get.HIDDEN for n in choices.left):
            return None
        size = self.graphs.size_for(plan)
        if size is not None:
            plan = padded(plan, size, self._padding_page)
        packed = pack(plan, self._windows, others, self._pinned)
        return PreparedStep(len(rows), plan, packed, choices, graph=size is not None)

    def launch_after(self, step: PreparedStep, before: PreparedStep) -> None:
        """Let `step`, which follows `before` (`PreparedStep.follow`), be launched early.

        Called on the thread that queues steps. The step must consist of rows only: no copies, no
        moves.
        """
        before.following = step
        self._follower_known.set()

    def mask_buffers(self, step: PreparedStep) -> BitmaskBuffers | None:  # noqa: ARG002
        return None

    def compute(self, step: PreparedStep, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Compute a step, and launch the step that follows it, if that is known."""
        if step.launched is None:
            self._launch(step)
        made = None
        if step.choices.masked:
            assert masks is not None
            made = masks()  # while the device computes
            self._choose(step, made)
        self._wait(step)
        if made is None:
            made = {} if masks is None else masks()
        results = step.results(made)
        before = step.before
        if before is not None:
            before.clear()
        if step.following is None:
            step.clear()
        return results

    def drop_step(self, step: PreparedStep) -> None:
        """Release a step that will not be computed, and the step that it follows."""
        if step.before is not None:
            step.before.clear()
        step.clear()

    def forward(self, rows: Sequence[Row]) -> list[int]:
        plan = plan_step(rows, self._windows)
        packed = pack(plan, self._windows, {}, self._pinned)
        self._hidden = self._outputs(inputs_on(self._device, plan, self._windows, packed))
        return plan.owners

    def answer(self, first: int, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        count = sum(len(request.positions) for request in requests)
        return answer(self._decoder.logits(self._hidden[first : first + count]), requests)

    def hidden(self, first: int, count: int) -> Float32:
        return host_floats(self._hidden[first : first + count])

    def _launch(self, step: PreparedStep, early: bool = False) -> None:
        """Launch a step; early: with the tokens that the step before chooses."""
        inputs = inputs_on(self._device, step.plan, self._windows, step.packed)
        if early:
            step.copy_tokens(inputs)
        hidden = self._padded_outputs(inputs) if step.graph else self._outputs(inputs)
        logits = None
        if step.choices.rows:
            decoder = self._decoder
            chooser = self._chooser
            logits = decoder.logits(hidden) if chooser is None else decoder.own_logits(hidden)
        step.launched = Launched(inputs, logits)
        if step.choices.masked:
            self._note_end(step.launched)  # of all but the choice, which waits for bitmasks
        else:
            self._choose(step, {})

    def _choose(self, step: PreparedStep, masks: RowMasks) -> None:
        """Choose a launched step's tokens on the device, and have them brought to the host."""
        launched, choices = step.launched, step.choices
        assert launched is not None
        logits = launched.logits
        if logits is not None and len(choices.chosen):
            moved = launched.inputs.moved
            bits = [masks[row] for row in choices.masked]
            if self._chooser is not None:
                words = move_bitmasks(bits, self._device, self._pinned) if bits else None
                chosen = self._chooser(logits, choices, moved, words)
            else:
                if bits:
                    apply_bitmasks(logits, bits, moved, self._pinned)
                chosen = choose(logits, choices, moved)
            launched.chosen = chosen
            launched.record = chosen.record
            if self._pinned:
                record = torch.empty(chosen.record.shape, dtype=torch.int32, pin_memory=True)
                launched.record = record.copy_(chosen.record, non_blocking=True)
        self._note_end(launched)

    def _note_end(self, launched: Launched) -> None:
        """Record an event behind all that a step has launched so far."""
        if self._pinned:
            launched.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            launched.done.record()

    def _launch_following(self, step: PreparedStep) -> bool:
        """Launch the step that follows a running step; False: none is known that may run."""
        following = step.following
        if following is None or not following.take():
            return False
        if following.launched is None:
            try:
                self._launch(following, early=True)
            except Exception as error:
                words = self.broken()
                if words is not None:  # CUDA reports a fault late: this one may be of either step
                    raise RuntimeError(
                        f"found in the launch of the step of {following.count} rows behind this "
                        f"one of {step.count}, so of either of them: {words}"
                    ) from error
                # not an error of this step; the following step is launched in its turn
                _log.warning("cannot launch a step ahead of its turn: %r", error)
            else:
                self.launched_ahead += 1
        return True

    def _wait(self, step: PreparedStep) -> None:
        """Wait for a step's end, and launch the step behind it as soon as that is known."""
        assert step.launched is not None
        done = step.launched.done
        self._follower_known.clear()
        while not self._launch_following(step):
            if done is None or not step.choices.whole or _has_ended(done):
                break
            self._follower_known.wait(_LOOK_SECONDS)
        step.launched.wait()

    def _outputs(self, inputs: Inputs) -> Tensor:
        moved = inputs.moved
        self._attention.plan(inputs)
        tokens = Tokens(
            moved["tokens"], moved["positions"], moved["pages"], moved["offsets"], moved["wanted"]
        )
        return self._decoder.forward(tokens, self._attention, self._operators, self._pool)

    def _padded_outputs(self, inputs: Inputs) -> Tensor:
        hidden = self.graphs.run(inputs)
        wanted = inputs.plan.wanted
        if np.array_equal(wanted, np.arange(len(wanted))):
            return hidden[: len(wanted)]
        return hidden.index_select(0, inputs.moved["wanted"])


def _has_ended(done: torch.cuda.Event) -> bool:
    return bool(done.query())  # type: ignore[no-untyped-call]
