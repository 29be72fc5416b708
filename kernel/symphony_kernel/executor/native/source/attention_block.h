// One block of entries against some queries of one kv head: scores, weights, weighted values.
//
// Every sum runs over units in order, in one accumulator per result, for any size of the tile that
// computes it. So a result depends on its own query and entries only.
#pragma once

#include <algorithm>

#include "attention.h"
#include "attention_units.h"

namespace symphony {

constexpr int BLOCK_PAGES = BLOCK_TOKENS / PAGE_TOKENS;
constexpr int QUERIES_MAX = 30;  // rows of a block: queries times heads that share K and V
constexpr int TILE_QUERIES = 6;
// A row's scores, in floats; the odd page keeps rows in different cache sets.
constexpr int SCORES_STRIDE = BLOCK_TOKENS + PAGE_TOKENS;

// Entries [begin, end) of a block that some query of the task sees, and where they lie.
struct Block {
    const uint32_t *keys[BLOCK_PAGES];
    const uint32_t *values[BLOCK_PAGES];
    int first_page;  // the computed pages, [first_page, last_page)
    int last_page;
    int entries;     // from the block's begin that any query sees
};

// The tokens of a block that a query sees: a bit for each token of each page.
struct Visible {
    bool all;
    uint16_t pages[BLOCK_PAGES];
};

// Registers of a tile of R queries: as many sums as fit.
template <int R>
constexpr int wide() {
    if (MANY_REGISTERS) return R <= 3 ? 8 : 4;
    return R == 1 ? 4 : R <= 3 ? 2 : 1;
}

// COLD: the entries come from memory, so V, which lies behind K, is prefetched.
template <class T, int R, int C, bool COLD>
inline void score_tile(int units, const uint32_t *queries, const uint32_t *const *keys,
                       float *scores) {
    __m512 sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[r][c] = _mm512_setzero_ps();
    for (int u = 0; u < units; ++u) {
        const auto add = [&](auto index) __attribute__((always_inline)) {
            __m512i k[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                k[c] = T::template part<index()>(_mm512_load_si512(keys[c] + size_t(u) * LANES));
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const uint32_t *words = queries + (size_t(r) * units + u) * T::WORDS;
                const __m512i q = _mm512_set1_epi32(int(words[index()]));
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) sums[r][c] = T::dot(sums[r][c], q, k[c]);
            }
        };
        if (COLD)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                _mm_prefetch(keys[c] + size_t(units + u) * LANES, _MM_HINT_T1);
        add(std::integral_constant<int, 0>());
        if constexpr (T::WORDS == 2) add(std::integral_constant<int, 1>());
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            _mm512_store_ps(scores + size_t(r) * SCORES_STRIDE + c * LANES, sums[r][c]);
}

template <class T, int R, bool COLD>
inline void score_rows(int units, const uint32_t *queries, const Block &block, float *scores) {
    constexpr int WIDE = wide<R>();
    int page = block.first_page;
    const int end = block.last_page;
    for (; page + WIDE <= end; page += WIDE)
        score_tile<T, R, WIDE, COLD>(units, queries, block.keys + page, scores + page * LANES);
    if constexpr (WIDE == 8)
        if (page + 4 <= end) {
            score_tile<T, R, 4, COLD>(units, queries, block.keys + page, scores + page * LANES);
            page += 4;
        }
    if (WIDE > 2 && page + 2 <= end) {
        score_tile<T, R, 2, COLD>(units, queries, block.keys + page, scores + page * LANES);
        page += 2;
    }
    if (WIDE > 1 && page < end)
        score_tile<T, R, 1, COLD>(units, queries, block.keys + page, scores + page * LANES);
}

// Turns a row of scores (in powers of two) into weights relative to their maximum, in place, as units
// over tokens. Returns the maximum; the sum goes to `total`.
template <class T>
inline float weigh(float *scores, const Block &block, const Visible &visible, float *total) {
    const __m512 hidden = _mm512_set1_ps(-INFINITE);
    __m512 best = hidden;
    if (visible.all) {
        for (int page = block.first_page; page < block.last_page; ++page)
            best = _mm512_max_ps(_mm512_load_ps(scores + page * LANES), best);
    } else {
        for (int page = block.first_page; page < block.last_page; ++page) {
            const __m512 x = _mm512_load_ps(scores + page * LANES);
            const __m512 seen = _mm512_mask_mov_ps(hidden, visible.pages[page], x);
            _mm512_store_ps(scores + page * LANES, seen);
            best = _mm512_max_ps(seen, best);
        }
    }
    const float maximum = _mm512_reduce_max_ps(best);
    const __m512 base = _mm512_set1_ps(maximum == -INFINITE ? 0.0f : maximum);
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    auto *weights = reinterpret_cast<typename T::Factors::Element *>(scores);
    for (int page = block.first_page; page < block.last_page; ++page) {
        const __m512 x = _mm512_load_ps(scores + page * LANES);
        const __m512 weight = exp2_negative<T::EXP_DEGREE>(_mm512_sub_ps(x, base));
        sums[page % 2] = _mm512_add_ps(sums[page % 2], weight);
        T::Factors::store(weights + page * PAGE_TOKENS, weight);
    }
    *total = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
    return maximum;
}

// Per row: the maximum and the total of a block, or of all blocks so far, and the factors that join
// a block's sums with those so far: so_far * keep + sums * take.
constexpr int ROWS_MAX = (QUERIES_MAX + LANES - 1) / LANES * LANES;

struct alignas(LINE_BYTES) Totals {
    float maxima[ROWS_MAX];
    float totals[ROWS_MAX];

    void clear() {
        std::fill_n(maxima, ROWS_MAX, -INFINITE);
        std::fill_n(totals, ROWS_MAX, 0.0f);
    }
};

struct alignas(LINE_BYTES) Factors {
    float keep[ROWS_MAX];
    float take[ROWS_MAX];
};

inline void join(const Totals &block, Totals &so_far, int rows, Factors &factors) {
    for (int row = 0; row < rows; row += LANES) {
        const __m512 mine = _mm512_load_ps(block.maxima + row);
        const __m512 before = _mm512_load_ps(so_far.maxima + row);
        const __m512 top = _mm512_max_ps(mine, before);
        // A row that has seen no entry so far has no maximum to subtract.
        const __mmask16 any = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITE), _CMP_NEQ_UQ);
        const __m512 base = _mm512_maskz_mov_ps(any, top);
        const __m512 keep = exp2_negative<6>(_mm512_sub_ps(before, base));
        const __m512 take = exp2_negative<6>(_mm512_sub_ps(mine, base));
        const __m512 kept = _mm512_mul_ps(_mm512_load_ps(so_far.totals + row), keep);
        const __m512 total = _mm512_load_ps(block.totals + row);
        _mm512_store_ps(so_far.maxima + row, top);
        _mm512_store_ps(so_far.totals + row, _mm512_fmadd_ps(total, take, kept));
        _mm512_store_ps(factors.keep + row, keep);
        _mm512_store_ps(factors.take + row, take);
    }
}

template <class T, int R, int C>
inline void value_tile(const Block &block, size_t width, int column, const uint32_t *last_pair,
                       const uint32_t *weights, const Factors &factors, int row, float *out) {
    constexpr int PAGE_UNITS = PAGE_TOKENS / T::PER_UNIT;
    __m512 sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[r][c] = _mm512_setzero_ps();
    const auto add_part = [&](const uint32_t *values, const uint32_t *weight, auto index)
                              __attribute__((always_inline)) {
        __m512i v[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
            v[c] = T::template part<index()>(_mm512_load_si512(values + column + c * LANES));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m512i w = _mm512_set1_epi32(int(weight[size_t(r) * SCORES_STRIDE + index()]));
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sums[r][c] = T::dot(sums[r][c], w, v[c]);
        }
    };
    const auto add = [&](const uint32_t *values, const uint32_t *weight)
                         __attribute__((always_inline)) {
        add_part(values, weight, std::integral_constant<int, 0>());
        if constexpr (T::WORDS == 2) add_part(values, weight, std::integral_constant<int, 1>());
    };
    for (int page = block.first_page; page < block.last_page; ++page) {
        const int units = std::min(PAGE_UNITS, block.entries / T::PER_UNIT - page * PAGE_UNITS);
        const uint32_t *values = block.values[page], *weight = weights + page * PAGE_UNITS * T::WORDS;
        for (int u = 0; u < units; ++u) add(values + size_t(u) * width, weight + u * T::WORDS);
    }
    if (block.entries % T::PER_UNIT)
        add(last_pair, weights + block.entries / T::PER_UNIT * T::WORDS);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float *place = out + size_t(r) * width + column + c * LANES;
            const __m512 kept = _mm512_mul_ps(_mm512_load_ps(place), _mm512_set1_ps(factors.keep[row + r]));
            _mm512_store_ps(place, _mm512_fmadd_ps(sums[r][c], _mm512_set1_ps(factors.take[row + r]), kept));
        }
}

template <class T, int R>
inline void value_rows(const Block &block, int width, const uint32_t *last_pair, const float *scores,
                       const Factors &factors, int row, float *out) {
    const auto *weights = reinterpret_cast<const uint32_t *>(scores);
    constexpr int WIDE = wide<R>();
    int column = 0;
    for (; column + WIDE * LANES <= width; column += WIDE * LANES)
        value_tile<T, R, WIDE>(block, width, column, last_pair, weights, factors, row, out);
    if constexpr (WIDE == 8)
        if (column + 4 * LANES <= width) {
            value_tile<T, R, 4>(block, width, column, last_pair, weights, factors, row, out);
            column += 4 * LANES;
        }
    if (WIDE > 2 && column + 2 * LANES <= width) {
        value_tile<T, R, 2>(block, width, column, last_pair, weights, factors, row, out);
        column += 2 * LANES;
    }
    if (WIDE > 1 && column < width)
        value_tile<T, R, 1>(block, width, column, last_pair, weights, factors, row, out);
}

// Calls `work` with each tile of rows: its first row, and its size as a constant.
template <class Work>
inline void for_tiles(int rows, Work work) {
    int row = 0;
    for (; row + TILE_QUERIES <= rows; row += TILE_QUERIES)
        work(row, std::integral_constant<int, TILE_QUERIES>());
    switch (rows - row) {
        case 1: work(row, std::integral_constant<int, 1>()); break;
        case 2: work(row, std::integral_constant<int, 2>()); break;
        case 3: work(row, std::integral_constant<int, 3>()); break;
        case 4: work(row, std::integral_constant<int, 4>()); break;
        case 5: work(row, std::integral_constant<int, 5>()); break;
        default: break;
    }
}

}  // namespace symphony
