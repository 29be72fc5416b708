// Matrix products with weights in 4 or 8 bits, which are multiplied as integers.
//
// The inputs are quantized to 8 bits in blocks of 32, each with a scale of its own, as llama.cpp's
// Q8_0. The sum of a block is an integer. It is multiplied with both scales and added in float32:
//
//     sum over blocks of  weight scale * input scale * (sum of q * x)
//
// Weights are unsigned in memory, q + ZERO. A block's sum begins with -ZERO * (sum of x), so that
// it is exact; or a minimum of the group times the sum of its inputs is added.
//
// A panel of 32 outputs is read once for up to 8 rows of inputs, a tile, whose sums stay in
// registers. A group of the depth has 1 or 4 blocks:
//
//     panel   [groups] { scales [32] float16, minimums [32] float16 if any, [blocks] block }
//     block   [2 halves of the outputs][4 or 8 lines], a line: 16 outputs x 4 bytes
//     tile    [blocks of the depth][8 rows] InputBlock
//
// In 8 bits line i of a block has inputs 4 i to 4 i + 3 of each output. In 4 bits it has inputs
// 8 i to 8 i + 3 in the lower halves of its bytes, and the next four in the upper halves.
//
// A row has the same bits alone and in any batch: its integers are exact, and its blocks are added
// up in the order of the depth.
#pragma once

#include <algorithm>
#include <cstring>

#include "memory.h"
#include "types.h"

namespace symphony {

constexpr int PANEL = 2 * LANES;  // outputs
constexpr int BLOCK = 32;         // of the depth
constexpr int TILE_ROWS = 8;

// How weights are quantized; `bits` is 0 if they are not.
struct QuantizedFormat {
    int32_t bits;      // 4 or 8
    int32_t group;     // 32 or 128
    int32_t minimums;  // whether groups have minimums: in 4 bits only

    bool operator==(const QuantizedFormat &other) const {
        return bits == other.bits && group == other.group && minimums == other.minimums;
    }
    int32_t group_blocks() const { return group / BLOCK; }
    int32_t zero() const { return bits == 8 ? 128 : minimums ? 0 : 8; }
    int64_t head_bytes() const { return PANEL * (minimums ? 4 : 2); }
    int64_t block_bytes() const { return PANEL * BLOCK * bits / 8; }
    int64_t panel_bytes(int32_t depth) const {
        const int64_t blocks = (depth + BLOCK - 1) / BLOCK;
        const int64_t groups = (blocks + group_blocks() - 1) / group_blocks();
        return groups * head_bytes() + blocks * block_bytes();
    }
};

// A matrix as a checkpoint has it: `QuantizedMatrix` of models/quantization.py.
struct QuantizedRows {
    const uint8_t *values;     // [outputs][depth], or [outputs][ceil(depth / 2)] in 4 bits
    const uint16_t *scales;    // float16 [outputs][groups]
    const uint16_t *minimums;  // like scales, or null
    QuantizedFormat format;
};

// 32 inputs of a row: x[i] * scale.
struct InputBlock {
    int8_t x[BLOCK];
    float scale;
    union {
        int32_t begin;  // -ZERO * sum of x
        float total;    // scale * sum of x, if the weights have minimums
    };
};
constexpr int64_t TILE_BLOCK_BYTES = TILE_ROWS * sizeof(InputBlock);

inline int64_t tile_bytes(int32_t depth) { return (depth + BLOCK - 1) / BLOCK * TILE_BLOCK_BYTES; }

// Packs row `row` of `given` to output `output` of panels at `to`.
inline void pack_quantized(const QuantizedRows &given, int32_t row, int32_t depth, char *to,
                           int32_t output) {
    const QuantizedFormat &format = given.format;
    const int32_t blocks = (depth + BLOCK - 1) / BLOCK;
    const int32_t groups = (blocks + format.group_blocks() - 1) / format.group_blocks();
    to += format.panel_bytes(depth) * (output / PANEL);
    const int32_t at = output % PANEL;
    const int32_t row_bytes = format.bits == 8 ? depth : (depth + 1) / 2;
    const uint8_t *values = given.values + static_cast<int64_t>(row) * row_bytes;
    const int64_t half = format.block_bytes() / 2;
    for (int32_t group = 0; group < groups; ++group) {
        const int64_t from = static_cast<int64_t>(row) * groups + group;
        std::memcpy(to + 2 * at, given.scales + from, 2);
        if (format.minimums) std::memcpy(to + 2 * (PANEL + at), given.minimums + from, 2);
        to += format.head_bytes();
        const int32_t end = std::min((group + 1) * format.group_blocks(), blocks);
        for (int32_t block = group * format.group_blocks(); block < end; ++block) {
            uint8_t bytes[BLOCK] = {};
            const int32_t size = BLOCK * format.bits / 8;
            std::memcpy(bytes, values + block * size, std::min(size, row_bytes - block * size));
            char *line = to + at / LANES * half + at % LANES * 4;
            for (int32_t i = 0; i < size; i += 4, line += LINE_BYTES) {
                const uint8_t *b = bytes + i;
                uint8_t word[4];
                for (int k = 0; k < 4; ++k) {
                    if (format.bits == 8) {
                        word[k] = static_cast<uint8_t>(b[k] + 128);
                    } else if (k % 2 == 0) {
                        word[k] = static_cast<uint8_t>((b[k / 2] & 15) | b[2 + k / 2] << 4);
                    } else {
                        word[k] = static_cast<uint8_t>(b[k / 2] >> 4 | (b[2 + k / 2] & 0xF0));
                    }
                }
                std::memcpy(line, word, 4);
            }
            to += format.block_bytes();
        }
    }
}

// Quantizes `depth` numbers of a row into its blocks of a tile. NaN and infinity stay: they make
// the block's scale so.
template <class Element>
void quantize_row(const Element *from, int32_t depth, const QuantizedFormat &format, char *tile) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (int32_t i = 0; i < depth; i += BLOCK, tile += TILE_BLOCK_BYTES) {
        auto *to = reinterpret_cast<InputBlock *>(tile);
        const __m512 left = load(from + i, first_lanes(depth - i));
        const __m512 right = load(from + i + LANES, first_lanes(std::max(0, depth - i - LANES)));
        // As integers, so that NaN is larger than all numbers.
        const __m512i sizes = _mm512_max_epu32(
            _mm512_and_si512(_mm512_castps_si512(left), magnitude),
            _mm512_and_si512(_mm512_castps_si512(right), magnitude));
        const uint32_t bits = _mm512_reduce_max_epu32(sizes);
        float largest;
        std::memcpy(&largest, &bits, sizeof largest);
        // Where the scale would be denormal, the block is zero.
        const bool tiny = largest < 1e-35f;
        const float scale = tiny ? 0.0f : largest * (1.0f / 127.0f);
        const __m512 times = _mm512_set1_ps(tiny ? 0.0f : 127.0f / largest);
        const __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(left, times));
        const __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(right, times));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to->x), _mm512_cvtsepi32_epi8(x));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to->x + LANES), _mm512_cvtsepi32_epi8(y));
        const int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(x, y));
        to->scale = scale;
        if (format.minimums) {
            to->total = scale * static_cast<float>(sum);
        } else {
            to->begin = -format.zero() * sum;
        }
    }
}

// sum + the products of four unsigned and four signed bytes in each lane, exactly.
inline __m512i dot_bytes(__m512i sum, __m512i weights, __m512i inputs) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, weights, inputs);
#else
    const __m512i low = _mm512_set1_epi16(0xFF);
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(weights, low),
                                           _mm512_srai_epi16(_mm512_slli_epi16(inputs, 8), 8));
    const __m512i odd =
        _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(inputs, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}

inline __m512 load_half(const char *from) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(from)));
}

// Multiplies the first ROWS rows of a tile by a panel into sums [ROWS][PANEL], and prefetches
// `ahead`, a panel too, line by line; with `step` 0 only its first line.
template <int BITS, bool MINIMUMS, int ROWS>
void multiply_tile(const char *tile, const char *panel, int32_t blocks, int32_t group_blocks,
                   const char *ahead, int64_t step, float *sums) {
    constexpr int HALF_BYTES = LANES * BLOCK * BITS / 8;
    constexpr int HEAD_BYTES = PANEL * (MINIMUMS ? 4 : 2);
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) left[row] = right[row] = _mm512_setzero_ps();
    const auto inputs = [&](int row) __attribute__((always_inline)) {
        return reinterpret_cast<const InputBlock *>(tile) + row;
    };
    for (int32_t block = 0; block < blocks;) {
        const int32_t end = std::min(block + group_blocks, blocks);
        const char *head = panel;
        panel += HEAD_BYTES;
        for (int line = 0; line < HEAD_BYTES / 64; ++line, ahead += step) {
            _mm_prefetch(ahead, _MM_HINT_T1);
        }
        for (; block < end; ++block) {
            const auto add = [&](__m512 *to, int half) __attribute__((always_inline)) {
                // The second half loads the inputs again: they would not fit into registers.
                asm("" : "+r"(tile));
                __m512i integers[ROWS];
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row) {
                    integers[row] =
                        MINIMUMS ? _mm512_setzero_si512() : _mm512_set1_epi32(inputs(row)->begin);
                }
#pragma GCC unroll 8
                for (int line = 0; line < HALF_BYTES / 64; ++line) {
                    _mm_prefetch(ahead, _MM_HINT_T1);
                    ahead += step;
                    const __m512i bytes = _mm512_load_si512(panel + line * 64);
                    const auto dot = [&](__m512i weights, int word) __attribute__((always_inline)) {
#pragma GCC unroll 8
                        for (int row = 0; row < ROWS; ++row) {
                            int32_t four;
                            std::memcpy(&four, inputs(row)->x + 4 * word, 4);
                            integers[row] =
                                dot_bytes(integers[row], weights, _mm512_set1_epi32(four));
                        }
                    };
                    if constexpr (BITS == 8) {
                        dot(bytes, line);
                    } else {
                        const __m512i low = _mm512_set1_epi8(15);
                        dot(_mm512_and_si512(bytes, low), 2 * line);
                        dot(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), low), 2 * line + 1);
                    }
                }
                panel += HALF_BYTES;
                const __m512 scale = load_half(head + half * 2 * LANES);
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row) {
                    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(inputs(row)->scale));
                    to[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[row]), both, to[row]);
                }
                if constexpr (MINIMUMS) {
                    const __m512 minimum = load_half(head + (PANEL + half * LANES) * 2);
#pragma GCC unroll 8
                    for (int row = 0; row < ROWS; ++row) {
                        to[row] =
                            _mm512_fmadd_ps(minimum, _mm512_set1_ps(inputs(row)->total), to[row]);
                    }
                }
            };
            add(left, 0);
            add(right, 1);
            tile += TILE_BLOCK_BYTES;
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) {
        _mm512_store_ps(sums + row * PANEL, left[row]);
        _mm512_store_ps(sums + row * PANEL + LANES, right[row]);
    }
}

using MultiplyTile = void (*)(const char *, const char *, int32_t, int32_t, const char *, int64_t,
                              float *);

template <int BITS, bool MINIMUMS>
constexpr MultiplyTile MULTIPLY_TILE[TILE_ROWS + 1] = {
    nullptr,
    multiply_tile<BITS, MINIMUMS, 1>, multiply_tile<BITS, MINIMUMS, 2>,
    multiply_tile<BITS, MINIMUMS, 3>, multiply_tile<BITS, MINIMUMS, 4>,
    multiply_tile<BITS, MINIMUMS, 5>, multiply_tile<BITS, MINIMUMS, 6>,
    multiply_tile<BITS, MINIMUMS, 7>, multiply_tile<BITS, MINIMUMS, 8>,
};

inline MultiplyTile tile_kernel(const QuantizedFormat &format, int32_t rows) {
    if (format.bits == 8) return MULTIPLY_TILE<8, false>[rows];
    return format.minimums ? MULTIPLY_TILE<4, true>[rows] : MULTIPLY_TILE<4, false>[rows];
}

}  // namespace symphony
