"""Attention of rows of any kind to pages: one kernel, and one that merges a row's parts.

A program computes a tile: some queries of one row, with all heads that share a head of K and V. So
a tile's rows are pairs of a query and a head, and each page is read once for the group. Rows are
found by a search in `q_indptr`, so that the host makes no list of tiles. Where tiles are few, a
row's entries are divided into parts, each of which is a program (flash decoding). How many parts
there may be is fixed; how long they are follows from the row's length on the device. So a CUDA
graph holds for all lengths.

Tiles of rows with more than one token come as in vLLM's unified attention: row r has its first tile
at `q_indptr[r] * group // block_m + r`, which leaves room for all its tiles.
"""

import triton
import triton.language as tl

_PART_MIN = tl.constexpr(128)  # entries: shorter parts cost more to merge than they gain


@triton.jit
def _row_at(q_indptr, rows, place, group: tl.constexpr, block_m: tl.constexpr, gaps: tl.constexpr):
    """Return the last row that begins at or before a tile (with gaps) or a token (without)."""
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(q_indptr + middle) * group // block_m + middle * gaps <= place:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _tile_at(
    q_indptr, rows, tile, group: tl.constexpr, block_m: tl.constexpr, single: tl.constexpr
):
    """Return a tile's row, the row's first token and their number, and the tile's first pair."""
    row = tile
    token = tile
    count = 1
    first = 0
    if not single:
        row = _row_at(q_indptr, rows, tile, group, block_m, 1)
        token = tl.load(q_indptr + row)
        count = tl.load(q_indptr + row + 1) - token
        first = (tile - (token * group // block_m + row)) * block_m
    return row, token, count, first


@triton.jit
def _length_of(indptr, last_page_len, row, page_tokens: tl.constexpr):
    pages = tl.load(indptr + row + 1) - tl.load(indptr + row)
    return (pages - 1) * page_tokens + tl.load(last_page_len + row)


@triton.jit
def _part_of(length, parts, block_n: tl.constexpr):
    """Return how many entries each part of a row has, a multiple of `block_n`."""
    part = tl.maximum((length + parts - 1) // parts, _PART_MIN)
    return (part + block_n - 1) // block_n * block_n


@triton.jit
def _attend_entries(
    q, cache, indices, mask, query, mine, real, kv_head, low, high, length, window, scale,
    page_stride,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, dim: tl.constexpr, page_tokens: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, windowed: tl.constexpr, masked: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Return a tile's weighted sums of values, largest scores and sums of weights.

    `indices` and `mask` begin with the row's, `mine` are the entries of the queries' own tokens.
    """
    dims = tl.arange(0, dim)
    inside_dim = dims < head_dim
    best = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    sums = tl.zeros([block_m, dim], tl.float32)
    for start in tl.range(low, high, block_n):
        entry = start + tl.arange(0, block_n)
        inside = entry < high
        page = tl.load(indices + entry // page_tokens, mask=inside, other=0)
        at = page.to(tl.int64) * page_stride
        at += (entry % page_tokens) * (kv_heads * head_dim) + kv_head * head_dim
        keys = tl.load(
            cache + at[None, :] + dims[:, None],
            mask=inside[None, :] & inside_dim[:, None], other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, keys, input_precision=precision) * scale
        visible = inside[None, :] & real[:, None]
        if masked:
            bit = query[:, None] * length + entry[None, :]
            byte = tl.load(mask + bit // 8, mask=visible, other=0)
            visible = visible & ((byte.to(tl.int32) >> (bit % 8) & 1) != 0)
        else:
            visible = visible & (entry[None, :] <= mine[:, None])
        if windowed:
            visible = visible & (entry[None, :] > mine[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        newest = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf minus -inf is no number.
        base = tl.where(newest == float("-inf"), 0.0, newest)
        weights = tl.exp2(scores - base[:, None])
        fading = tl.exp2(best - base)
        total = total * fading + tl.sum(weights, 1)
        values = tl.load(
            cache + page_tokens * kv_heads * head_dim + at[:, None] + dims[None, :],
            mask=inside[:, None] & inside_dim[None, :], other=0.0,
        )  # fmt: skip
        added = tl.dot(weights.to(values.dtype), values, input_precision=precision)
        sums = sums * fading[:, None] + added
        best = newest
    return sums, best, total


@triton.jit(do_not_specialize=["rows", "window", "parts", "tokens"])
def attend_tiles(
    queries, cache, out, partial, logs, q_indptr, indptr, indices, last_page_len, mask,
    mask_indptr, rows, window, parts, tokens, scale, query_stride, page_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, dim: tl.constexpr,
    page_tokens: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    single: tl.constexpr, windowed: tl.constexpr, masked: tl.constexpr, split: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Attend one tile, one head of K and V, one part: grid (tiles, kv_heads, parts).

    `single`: each row has one token. `windowed`: a token sees the last `window` entries. `masked`:
    what it sees is in the bits of `mask`. `split`: write to `partial` [parts, tokens, heads,
    head_dim] and `logs` [parts, tokens, heads], float32, instead of `out`. `scale` is log2(e) over
    the square root of `head_dim`; all of it is in powers of two.
    """
    group: tl.constexpr = heads // kv_heads
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    row, token, count, first = _tile_at(q_indptr, rows, tile, group, block_m, single)
    if first < count * group:
        length = _length_of(indptr, last_page_len, row, page_tokens)
        low = 0
        high = length
        if split:
            size = _part_of(length, parts, block_n)
            low = part * size
            high = tl.minimum(length, low + size)
        # Later parts than the row has write nothing, and are not merged.
        if low < length:
            flat = first + tl.arange(0, block_m)
            query = flat // group
            head = kv_head * group + flat % group
            real = flat < count * group
            dims = tl.arange(0, dim)
            inside_dim = dims < head_dim
            whole = real[:, None] & inside_dim[None, :]
            place = (token + query).to(tl.int64)
            q = tl.load(
                queries + (place * query_stride + head * head_dim)[:, None] + dims[None, :],
                mask=whole, other=0.0,
            )  # fmt: skip
            mine = length - count + query  # the entry of each query's own token
            if not masked:
                last = tl.minimum(first + block_m, count * group) - 1
                high = tl.minimum(high, length - count + last // group + 1)
            if windowed:
                seen = length - count + first // group - window + 1
                low = tl.maximum(low, tl.maximum(seen, 0) // block_n * block_n)
            bits = tl.load(mask_indptr + row) if masked else 0
            sums, best, total = _attend_entries(
                q, cache, indices + tl.load(indptr + row), mask + bits, query, mine, real, kv_head,
                low, high, length, window, scale, page_stride, kv_heads, head_dim, dim,
                page_tokens, block_m, block_n, windowed, masked, precision,
            )  # fmt: skip
            total = tl.where(total > 0.0, total, 1.0)  # of a query that sees nothing of this part
            sums = sums / total[:, None]
            if split:
                place = (part * tokens + token + query).to(tl.int64) * heads + head
                tl.store(logs + place, best + tl.log2(total), mask=real)
                tl.store(partial + place[:, None] * head_dim + dims[None, :], sums, mask=whole)
            else:
                place = place * heads + head
                tl.store(
                    out + place[:, None] * head_dim + dims[None, :],
                    sums.to(out.dtype.element_ty), mask=whole,
                )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "parts", "tokens"])
def merge_parts(
    partial, logs, out, q_indptr, indptr, last_page_len, rows, parts, tokens,
    heads: tl.constexpr, head_dim: tl.constexpr, dim: tl.constexpr, page_tokens: tl.constexpr,
    block_n: tl.constexpr, single: tl.constexpr, parts_max: tl.constexpr,
):  # fmt: skip
    """Write the weighted mean of a token's parts to `out`: grid (tokens, heads)."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    row = token if single else _row_at(q_indptr, rows, token, 1, 1, 0)
    length = _length_of(indptr, last_page_len, row, page_tokens)
    size = _part_of(length, parts, block_n)
    used = (length + size - 1) // size
    part = tl.arange(0, parts_max)
    dims = tl.arange(0, dim)
    place = (part * tokens + token).to(tl.int64) * heads + head
    log = tl.load(logs + place, mask=part < used, other=float("-inf"))
    weights = tl.exp2(log - tl.max(log, 0))
    values = tl.load(
        partial + place[:, None] * head_dim + dims[None, :],
        mask=(part < used)[:, None] & (dims < head_dim)[None, :], other=0.0,
    )  # fmt: skip
    mean = tl.sum(values * weights[:, None], 0) / tl.sum(weights, 0)
    at = (token.to(tl.int64) * heads + head) * head_dim
    tl.store(out + at + dims, mean.to(out.dtype.element_ty), mask=dims < head_dim)
