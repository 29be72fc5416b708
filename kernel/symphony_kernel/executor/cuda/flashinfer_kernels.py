"""Attention and operators by FlashInfer, on a GPU.

Written against the Python interface and the C++ of flashinfer-python 0.6.13; the arguments used are
the same up to 0.6.18. No GPU has run it (docs/how-it-works/gpu.md). Facts from the source that the
documentation lacks:

* A wrapper's `plan` writes into its own pinned memory, which the device reads later. Do not plan
  again before that: see `_PlannedWrapper`.
* The decode wrapper with tensor cores is the prefill kernel, for any number of heads a group. The
  one without supports groups of 1, 2, 3, 4 and 8 only. So one compiled module does everything.
* With `custom_mask`, `plan` packs masks on the device and waits for it four times. With
  `packed_custom_mask` it waits for nothing, but `_mask_indptr_buf`, where rows' masks begin, counts
  bits where the kernel expects bytes (variants.cuh). So trees pass packed masks, and then set it.
* `plan` looks for the longest row with Python's `max` over a tensor. A graph's wrapper is therefore
  planned by its module after the first time, through attributes that are FlashInfer's own.
* `indices` on the host are copied with a wait for the device, so they are moved before.
* With a custom or a causal mask, `window_left` is how many entries before itself a token sees.
"""

# ruff: noqa: SLF001 - FlashInfer's attributes: see the module's docstring
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.inputs import KINDS, Inputs, Kind
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

_log = logging.getLogger(__name__)

HEAD_DIMS = (64, 128, 256)  # supported by all of its operators that are used here
_WORKSPACE_BYTES_MIN = 128 << 20  # the documentation's recommendation
_LAYOUT = "NHD"
_APPEND_THREADS_MAX = 1_024  # of a block, which appends one token's K and V
# Of a tile of queries, in tokens times the heads of a group, as its scheduler picks them.
_TILES = (16, 64, 128)


def find_flashinfer() -> Any | None:
    """Return the FlashInfer package, or None if it is not installed."""
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        _log.warning("FlashInfer does not compute attention: %s", error)
        return None


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Return why FlashInfer's operators cannot compute this model, or None."""
    if dtype != torch.bfloat16:
        return f"it computes bfloat16, not {dtype}"
    if config.head_dim not in HEAD_DIMS:
        return f"it supports heads of {', '.join(map(str, HEAD_DIMS))}, not {config.head_dim}"
    if config.kv_heads * config.head_dim // 8 > _APPEND_THREADS_MAX:
        return f"its append has {_APPEND_THREADS_MAX} threads, a thread for 8 numbers of all heads"
    if config.hidden_size % 8 or config.intermediate_size % 8:
        return "its loads are of 16 bytes: hidden and intermediate sizes must be multiples of 8"
    return None


def workspace_bytes(config: ModelConfig, processors: int, rows: int) -> int:
    """Return the size of the buffer for partial attention results.

    A row's entries are divided among blocks of queries, two a multiprocessor. In a graph of `rows`
    rows the buffer has room for all possible blocks (PrefillPlan in FlashInfer's scheduler.cuh).
    """
    group = config.heads // config.kv_heads
    split = 2 * processors // config.kv_heads
    tile = next((tile for tile in _TILES if group <= tile), _TILES[-1])
    graph = max(split, -(-rows * group // tile) + rows - 1) * tile
    blocks = max(graph, split * _TILES[-1])
    parts = config.heads * blocks * (config.head_dim + 1) * 4
    return max(_WORKSPACE_BYTES_MIN, ((parts >> 20) + 1) << 20)


class _PlannedWrapper:
    """A wrapper that is planned again after the device has read its pinned memory."""

    def __init__(self, wrapper: Any, device: torch.device) -> None:
        self.wrapper = wrapper
        self._planned: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._planned = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, **given: Any) -> None:
        """Plan the wrapper for the step that is computed next."""
        self.plan_by(lambda: self.wrapper.plan(**given))

    def plan_by(self, plan: Callable[[], None]) -> None:
        if self._planned is None:
            plan()
            return
        self._planned.synchronize()  # returns at once before the first plan
        plan()
        self._planned.record()


def window_left(window: int | None) -> int:
    """Return FlashInfer's window: entries before itself that a token sees, -1: all."""
    return -1 if window is None else window - 1


class FlashInferAttention:
    """Paged attention by FlashInfer (see `attention.Attention`)."""

    def __init__(self, library: Any, config: ModelConfig, dtype: torch.dtype, workspace: Tensor):
        self._library = library
        self._workspace = workspace
        self._shape = {
            "num_qo_heads": config.heads,
            "num_kv_heads": config.kv_heads,
            "page_size": PAGE_TOKENS,
            "pos_encoding_mode": "NONE",
            "q_data_type": dtype,
            "kv_data_type": dtype,
            "non_blocking": True,
        }
        self._head_dim = config.head_dim
        self._wrappers: dict[tuple[Kind, int], _PlannedWrapper] = {}
        self._inputs: Inputs | None = None

    def plan(self, inputs: Inputs) -> None:
        self._inputs = inputs
        plan = inputs.plan
        for number, window in enumerate(inputs.windows):
            if plan.decodes:
                self._plan_decodes(inputs, number, window_left(window))
            if len(plan.chunks_indptr) > 1:
                self._plan_chunks(inputs, number, window_left(window))
            if len(plan.trees_indptr) > 1:
                self._plan_trees(inputs, number)

    def run(self, window: int, queries: Tensor, cache: Tensor, out: Tensor) -> None:
        assert self._inputs is not None
        plan = self._inputs.plan
        begin = 0
        counts = plan.decodes, int(plan.chunks_indptr[-1]), int(plan.trees_indptr[-1])
        for kind, count in zip(KINDS, counts, strict=True):
            if count:
                tokens = slice(begin, begin + count)
                wrapper = self._wrappers[kind, window].wrapper
                wrapper.run(queries[tokens], cache, out=out[tokens])
            begin += count

    def _wrapper(self, kind: Kind, number: int) -> _PlannedWrapper:
        planned = self._wrappers.get((kind, number))
        if planned is None:
            planned = self._wrappers[kind, number] = _PlannedWrapper(
                self._make(kind), self._workspace.device
            )
        return planned

    def _make(self, kind: Kind) -> Any:
        if kind == "decodes":
            return self._library.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, _LAYOUT, use_tensor_cores=True, backend="fa2"
            )
        return self._library.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, _LAYOUT, backend="fa2"
        )

    def _plan_decodes(self, inputs: Inputs, number: int, left: int) -> None:
        self._wrapper("decodes", number).plan(
            indptr=inputs.host("decodes", number, "indptr"),
            indices=inputs.device("decodes", number, "indices"),
            last_page_len=inputs.host("decodes", number, "last_page_len"),
            head_dim=self._head_dim,
            window_left=left,
            **self._shape,
        )

    def _plan_chunks(self, inputs: Inputs, number: int, left: int) -> None:
        self._wrapper("chunks", number).plan(
            qo_indptr=inputs.packed.on_host("chunks_indptr"),
            paged_kv_indptr=inputs.host("chunks", number, "indptr"),
            paged_kv_indices=inputs.device("chunks", number, "indices"),
            paged_kv_last_page_len=inputs.host("chunks", number, "last_page_len"),
            head_dim_qk=self._head_dim,
            causal=True,
            window_left=left,
            **self._shape,
        )

    def _plan_trees(self, inputs: Inputs, number: int) -> None:
        planned = self._wrapper("trees", number)
        mask, begins = inputs.tree_mask(number)
        planned.plan(
            qo_indptr=inputs.packed.on_host("trees_indptr"),
            paged_kv_indptr=inputs.host("trees", number, "indptr"),
            paged_kv_indices=inputs.device("trees", number, "indices"),
            paged_kv_last_page_len=inputs.host("trees", number, "last_page_len"),
            head_dim_qk=self._head_dim,
            packed_custom_mask=mask,
            window_left=-1,  # the mask has the window, which counts along a path
            **self._shape,
        )
        planned.wrapper._mask_indptr_buf = begins


class GraphAttention(FlashInferAttention):
    """Attention of decode steps of `rows` rows, as a CUDA graph needs it.

    Its wrappers read the same buffers in every step. `indices` ([windows][n] int32) have room for
    the pages of all rows together; graphs, which run one after the other, share them.
    """

    def __init__(
        self,
        library: Any,
        config: ModelConfig,
        dtype: torch.dtype,
        workspace: Tensor,
        rows: int,
        indices: list[Tensor],
    ) -> None:
        super().__init__(library, config, dtype, workspace)
        for number, pages in enumerate(indices):
            wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
                workspace,
                _LAYOUT,
                use_cuda_graph=True,
                use_tensor_cores=True,
                paged_kv_indptr_buffer=pages.new_zeros(rows + 1),
                paged_kv_indices_buffer=pages,
                paged_kv_last_page_len_buffer=pages.new_zeros(rows),
                backend="fa2",
            )
            self._wrappers["decodes", number] = _PlannedWrapper(wrapper, pages.device)
        self._begins = torch.arange(rows + 1, dtype=torch.int32)

    def _plan_decodes(self, inputs: Inputs, number: int, left: int) -> None:
        planned = self._wrapper("decodes", number)
        if getattr(planned.wrapper, "_cached_module", None) is None:  # it is planned first
            super()._plan_decodes(inputs, number, left)
        else:
            planned.plan_by(lambda: self._plan_again(planned.wrapper, inputs, number, left))

    def _plan_again(self, wrapper: Any, inputs: Inputs, number: int, left: int) -> None:
        """Do what a wrapper's `plan` does after the first time, without Python over the rows.

        As in 0.6.13, of a wrapper with tensor cores in a graph.
        """
        indices = inputs.device("decodes", number, "indices")
        buffers = (
            (wrapper._paged_kv_indptr_buf, inputs.device("decodes", number, "indptr")),
            (
                wrapper._paged_kv_last_page_len_buf,
                inputs.device("decodes", number, "last_page_len"),
            ),
            (wrapper._paged_kv_indices_buf[: len(indices)], indices),
        )
        for buffer, values in buffers:
            buffer.copy_(values, non_blocking=True)
        rows, shape = inputs.plan.decodes, self._shape
        wrapper._plan_info = wrapper._cached_module.plan(
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            wrapper._pin_memory_int_workspace_buffer,
            self._begins,
            inputs.host("decodes", number, "indptr"),
            inputs.host("decodes", number, "lengths"),
            rows,  # new tokens
            rows,
            shape["num_qo_heads"],
            shape["num_kv_heads"],
            shape["page_size"],
            True,  # in a graph
            self._head_dim,
            self._head_dim,
            False,  # not causal: one token sees all
            left,
            -1,  # no fixed size of parts
            False,  # parts are allowed
            0,  # no blocks of other kernels next to it
        )


class FlashInferOperators:
    """The operators by FlashInfer (see `operators.Operators`)."""

    def __init__(self, library: Any, epsilon: float, tokens: int, device: torch.device) -> None:
        """Prepare for steps of up to `tokens` tokens; larger steps extend the buffers."""
        self._library = library
        self._epsilon = epsilon
        self._device = device
        self._numbers = self._ones = torch.empty(0, dtype=torch.int32, device=device)
        self._extend(tokens)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = self._library.rmsnorm(x, weight, self._epsilon)
        return out

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """Add to the residual; return its norm, in `x`."""
        self._library.fused_add_rmsnorm(x, residual, weight, self._epsilon)
        return x

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
        self._library.rmsnorm(heads, weight, self._epsilon, out=out)
        return out

    def rotate_and_append(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        cache: Tensor,
        pages: Tensor,
        offsets: Tensor,
    ) -> None:
        self.rotate(queries, keys, tables)
        self.append(keys, values, cache, pages, offsets)

    def rotate(self, queries: Tensor, keys: Tensor, tables: Tensor) -> None:
        """Rotate heads in place. The tables belong to the step: token i has row i."""
        count, _, head_dim = queries.shape
        self._extend(count)
        self._library.apply_rope_with_cos_sin_cache_inplace(
            self._numbers[:count],
            queries.view(count, -1),
            keys.view(count, -1),
            head_dim,
            tables,
            is_neox=True,
        )

    def append(
        self, keys: Tensor, values: Tensor, cache: Tensor, pages: Tensor, offsets: Tensor
    ) -> None:
        """Write K and V into pages: to FlashInfer each token is a sequence of one page."""
        count = len(keys)
        self._extend(count)
        self._library.append_paged_kv_cache(
            keys,
            values,
            self._numbers[:count],
            offsets,
            cache,
            pages,
            self._numbers[: count + 1],
            self._ones[:count],
            kv_layout=_LAYOUT,
        )

    def gate(self, both: Tensor) -> Tensor:
        out: Tensor = self._library.silu_and_mul(both)
        return out

    def _extend(self, tokens: int) -> None:
        if tokens < len(self._ones):
            return
        room = 1 << tokens.bit_length()
        self._numbers = torch.arange(room + 1, dtype=torch.int32, device=self._device)
        self._ones = torch.ones(room, dtype=torch.int32, device=self._device)
