"""FlashInfer's interface as its documentation and source describe it, in plain float64 torch.

For machines without a GPU: it takes the arguments of flashinfer-python 0.6.13 by their names, is as
strict about them as that is (and stricter: what would be read out of bounds fails), and computes
what the kernels are documented to compute. It is written from their page table, mask and rotation
layouts, not from ours, so that an index of ours that is wrong shows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class _Plan:
    qo_indptr: Tensor
    kv_indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    window_left: int
    causal: bool
    mask: Tensor | None  # uint8, of bits
    q_type: torch.dtype
    kv_type: torch.dtype


def _check_table(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
    for array in (indptr, indices, last_page_len):
        assert array.dtype == torch.int32, array.dtype
        assert array.ndim == 1
    assert indptr[0] == 0
    assert (indptr.diff() >= 1).all(), "a row without a page"
    assert len(indices) == indptr[-1]
    assert len(last_page_len) == len(indptr) - 1
    assert ((last_page_len >= 1) & (last_page_len <= page_size)).all()


def _visible(plan: _Plan, qo_len: int, kv_len: int, mask_begin: int) -> Tensor:
    """`DefaultAttention`'s mask: variants.cuh and the prefill kernel's causal one."""
    qo_idx = torch.arange(qo_len)[:, None]
    kv_idx = torch.arange(kv_len)[None]
    visible = torch.ones(qo_len, kv_len, dtype=torch.bool)
    if plan.mask is not None:
        offset = qo_idx * kv_len + kv_idx
        visible &= (plan.mask[mask_begin + offset // 8] >> (offset % 8) & 1).bool()
    elif plan.causal:
        visible &= kv_idx + qo_len <= kv_len + qo_idx
    if plan.window_left >= 0:
        visible &= kv_idx + qo_len + plan.window_left >= kv_len + qo_idx
    return visible


def _attend(
    plan: _Plan, q: Tensor, cache: Tensor, out: Tensor, mask_indptr: Tensor | None = None
) -> None:
    assert q.dtype == plan.q_type
    assert cache.dtype == plan.kv_type
    assert q.shape == out.shape == (int(plan.qo_indptr[-1]), plan.heads, plan.head_dim)
    assert out.is_contiguous()
    assert q.stride(-1) == 1
    assert cache.shape[1:] == (2, plan.page_size, plan.kv_heads, plan.head_dim)
    group = plan.heads // plan.kv_heads
    for row in range(len(plan.last_page_len)):
        pages = plan.indices[plan.kv_indptr[row] : plan.kv_indptr[row + 1]].long()
        assert ((pages >= 0) & (pages < len(cache))).all(), "a page that there is not"
        length = (len(pages) - 1) * plan.page_size + int(plan.last_page_len[row])
        begin, end = int(plan.qo_indptr[row]), int(plan.qo_indptr[row + 1])
        keys, values = (
            cache[pages, part].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
            for part in (0, 1)
        )
        mask_begin = 0
        if plan.mask is not None:
            assert mask_indptr is not None
            assert mask_indptr.dtype == torch.int32
            mask_begin = int(mask_indptr[row])
            assert mask_begin + -(-(end - begin) * length // 8) <= len(plan.mask)
        visible = _visible(plan, end - begin, length, mask_begin)
        assert visible.any(dim=1).all(), "a token that sees nothing"
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].double(), keys)
        scores = scores / math.sqrt(plan.head_dim)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)


class _Module:
    """The compiled module that a decode wrapper plans with: its arguments as in 0.6.13."""

    def plan(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        pinned_workspace: Tensor,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_lengths: Tensor,
        total_rows: int,
        batch_size: int,
        heads: int,
        kv_heads: int,
        page_size: int,
        in_graph: bool,
        head_dim_qk: int,
        head_dim_vo: int,
        causal: bool,
        window_left: int,
        fixed_split_size: int,
        disable_split_kv: bool,
        colocated_blocks: int,
    ) -> list[int]:
        for workspace in (float_workspace, int_workspace, pinned_workspace):
            assert workspace.dtype == torch.uint8
        for array in (qo_indptr, kv_indptr, kv_lengths):
            assert array.dtype == torch.int32
            assert array.device.type == "cpu"
            assert array.is_contiguous()
        assert qo_indptr.tolist() == list(range(batch_size + 1))
        assert total_rows == batch_size == len(kv_lengths) == len(kv_indptr) - 1
        assert heads % kv_heads == 0
        assert head_dim_qk == head_dim_vo
        assert in_graph
        assert not causal
        assert window_left >= -1
        assert (fixed_split_size, disable_split_kv, colocated_blocks) == (-1, False, 0)
        pages = kv_indptr.diff()
        assert (-(-kv_lengths // page_size) == pages).all()
        return kv_lengths.tolist()


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "NHD"
        assert float_workspace_buffer.dtype == torch.uint8
        assert backend in ("auto", "fa2")
        self._tensor_cores = use_tensor_cores
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = torch.zeros(8, dtype=torch.uint8)
        self._pin_memory_int_workspace_buffer = torch.zeros(8, dtype=torch.uint8)
        self._plan_info: list[int] | None = None
        self.plans = 0  # calls of `plan`, for tests
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
            self._buffers = (
                paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
            )  # fmt: skip
            self._paged_kv_indptr_buf = paged_kv_indptr_buffer
            self._paged_kv_indices_buf = paged_kv_indices_buffer
            self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer
        self._plan: _Plan | None = None

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        assert pos_encoding_mode == "NONE"
        assert num_qo_heads % num_kv_heads == 0
        if not self._tensor_cores:
            assert num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        _check_table(indptr, indices, last_page_len, page_size)
        assert indptr.device.type == last_page_len.device.type == "cpu"
        if self._buffers is not None:
            fixed_indptr, fixed_indices, fixed_last = self._buffers
            assert len(last_page_len) == len(fixed_last), "the batch size of a graph is fixed"
            assert len(indices) <= len(fixed_indices)
            fixed_indptr.copy_(indptr)
            fixed_last.copy_(last_page_len)
            fixed_indices[: len(indices)].copy_(indices)
            if self._tensor_cores:
                self._cached_module = _Module()
            lengths = (indptr.diff() - 1) * page_size + last_page_len
            self._plan_info = lengths.tolist()
            indptr, last_page_len = fixed_indptr, fixed_last
            indices = fixed_indices
        self.plans += 1
        self._plan = _Plan(
            torch.arange(len(last_page_len) + 1), indptr, indices, last_page_len,
            num_qo_heads, num_kv_heads, head_dim, page_size, window_left, False, None,
            q_data_type, kv_data_type or q_data_type,
        )  # fmt: skip

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> Tensor:
        assert self._plan is not None
        if self._plan_info is not None:
            plan = self._plan
            lengths = (plan.kv_indptr.diff() - 1) * plan.page_size + plan.last_page_len
            assert lengths.tolist() == self._plan_info, "planned for another step"
        _attend(self._plan, q, paged_kv_cache, out)
        return out


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", backend: str = "auto"
    ) -> None:
        assert kv_layout == "NHD"
        self._backend = backend
        self._plan: _Plan | None = None
        self._mask_indptr_buf: Tensor | None = None

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        assert pos_encoding_mode == "NONE"
        assert num_qo_heads % num_kv_heads == 0
        _check_table(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        assert qo_indptr.dtype == torch.int32
        assert len(qo_indptr) == len(paged_kv_indptr)
        assert qo_indptr[0] == 0
        assert (qo_indptr.diff() >= 1).all()
        for array in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            assert array.device.type == "cpu", "else plan waits for the device"
        if packed_custom_mask is not None:
            assert self._backend == "fa2", "other kernels know no masks"
            assert packed_custom_mask.dtype == torch.uint8
            lengths = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
            # As there: in bits, which is wrong for all rows but the first.
            self._mask_indptr_buf = torch.zeros_like(qo_indptr)
            self._mask_indptr_buf[1:] = torch.cumsum(qo_indptr.diff() * lengths, 0)
        self._plan = _Plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
            num_qo_heads, num_kv_heads, head_dim_qk, page_size, window_left, causal,
            packed_custom_mask, q_data_type, kv_data_type or q_data_type,
        )  # fmt: skip

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> Tensor:
        assert self._plan is not None
        _attend(self._plan, q, paged_kv_cache, out, self._mask_indptr_buf)
        return out


def rmsnorm(
    input: Tensor,  # noqa: A002 - FlashInfer's name
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    assert input.ndim in (2, 3)
    assert len(input), "a kernel of no blocks: CUDA refuses it"
    assert input.stride(-1) == 1
    exact = input.double()
    normed = exact / (exact.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    out = torch.empty(input.shape, dtype=input.dtype) if out is None else out
    assert out.shape == input.shape
    return out.copy_(normed)


def fused_add_rmsnorm(
    input: Tensor,  # noqa: A002
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
) -> None:
    assert input.shape == residual.shape
    assert input.ndim == 2
    assert input.is_contiguous()
    residual.add_(input)
    rmsnorm(residual, weight, eps, out=input)


def silu_and_mul(input: Tensor) -> Tensor:  # noqa: A002
    assert len(input), "a kernel of no blocks: CUDA refuses it"
    assert input.shape[-1] * input.dtype.itemsize % 16 == 0
    gate, up = input.double().chunk(2, -1)
    return (gate / (1 + (-gate).exp()) * up).to(input.dtype)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    assert cos_sin_cache.dtype == torch.float32
    assert cos_sin_cache.is_contiguous()
    assert positions.dtype in (torch.int32, torch.int64)
    assert is_neox
    half = cos_sin_cache.shape[1] // 2
    rows = cos_sin_cache[positions.long()].double()[:, None]
    cosine, sine = rows[..., :half], rows[..., half:]
    for tensor in (query, key):
        assert tensor.ndim == 2
        heads = tensor.view(tensor.shape[0], -1, head_size)
        first, second = heads[..., :half].double(), heads[..., half : 2 * half].double()
        heads[..., :half] = (first * cosine - second * sine).to(heads.dtype)
        heads[..., half : 2 * half] = (second * cosine + first * sine).to(heads.dtype)


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    assert kv_layout == "NHD"
    count = len(append_key)
    assert append_key.ndim == append_value.ndim == 3
    assert len(append_value) == len(batch_indices) == len(positions) == count
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    for array in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert array.is_contiguous()
        assert array.dtype == torch.int32
    page_size = paged_kv_cache.shape[2]
    for i in range(count):
        at = int(kv_indptr[batch_indices[i]]) * page_size + int(positions[i])
        page = int(kv_indices[at // page_size])
        paged_kv_cache[page, 0, at % page_size] = append_key[i]
        paged_kv_cache[page, 1, at % page_size] = append_value[i]
