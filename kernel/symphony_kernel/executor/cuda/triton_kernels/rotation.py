"""The rotation of queries and keys, with keys and values written to their pages."""

import triton
import triton.language as tl


@triton.jit
def rotate_and_append(
    queries, keys, values, tables, cache, pages, offsets,
    query_stride, key_stride, value_stride, page_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_tokens: tl.constexpr,
    block_heads: tl.constexpr, block_kv: tl.constexpr, half_dim: tl.constexpr,
):  # fmt: skip
    """Rotate a token's queries in place; write its rotated keys, and values: grid (n,).

    `tables` [n, head_dim] float32 are cosines, then sines. The strides are from one token to the
    next, and from one page of `cache` to the next. `half_dim` is half of `head_dim`, padded to a
    power of two.
    """
    half: tl.constexpr = head_dim // 2
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, half_dim)
    inside_dim = dims < half
    cosine = tl.load(tables + token * head_dim + dims, mask=inside_dim, other=0.0)[None, :]
    sine = tl.load(tables + token * head_dim + half + dims, mask=inside_dim, other=0.0)[None, :]

    head = tl.arange(0, block_heads)
    inside = (head < heads)[:, None] & inside_dim[None, :]
    at = queries + token * query_stride + head[:, None] * head_dim + dims[None, :]
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    kind = queries.dtype.element_ty
    tl.store(at, (left * cosine - right * sine).to(kind), mask=inside)
    tl.store(at + half, (right * cosine + left * sine).to(kind), mask=inside)

    kv_head = tl.arange(0, block_kv)
    inside = (kv_head < kv_heads)[:, None] & inside_dim[None, :]
    place = kv_head[:, None] * head_dim + dims[None, :]
    left = tl.load(keys + token * key_stride + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(keys + token * key_stride + half + place, mask=inside, other=0.0)
    right = right.to(tl.float32)
    size: tl.constexpr = kv_heads * head_dim
    there = cache + tl.load(pages + token).to(tl.int64) * page_stride
    there += tl.load(offsets + token) * size + place
    tl.store(there, (left * cosine - right * sine).to(kind), mask=inside)
    tl.store(there + half, (right * cosine + left * sine).to(kind), mask=inside)
    there += page_tokens * size
    for part in tl.static_range(2):
        value = tl.load(values + token * value_stride + place + part * half, mask=inside, other=0.0)
        tl.store(there + part * half, value, mask=inside)
