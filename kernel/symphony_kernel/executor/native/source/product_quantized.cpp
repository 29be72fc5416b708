#include "product_quantized.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace symphony {

namespace {

// Four bytes of a line of an output: of four inputs, or of eight in 4 bits.
uint32_t packed_word(const uint8_t *from, int32_t bits) {
    uint8_t word[4];
    for (int i = 0; i < 4; ++i) {
        const uint8_t low = from[i / 2], high = from[2 + i / 2];  // with the inputs i and 4 + i
        if (bits == 8) {
            word[i] = static_cast<uint8_t>(from[i] + 128);
        } else if (i % 2 == 0) {
            word[i] = static_cast<uint8_t>((low & 15) | high << 4);
        } else {
            word[i] = static_cast<uint8_t>(low >> 4 | (high & 0xF0));
        }
    }
    uint32_t packed;
    std::memcpy(&packed, word, sizeof packed);
    return packed;
}

// The largest magnitude. Compared as integers, NaN is larger than all numbers.
template <class Element>
float largest_of(const Element *from, int32_t count) {
    __m512i largest = _mm512_setzero_si512();
    for (int32_t i = 0; i < count; i += LANES) {
        const __m512 x = load(from + i, first_lanes(count - i));
        largest = _mm512_max_epu32(
            largest, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)));
    }
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// Quantizes up to 16 numbers to 16 bytes at `to`, with zeros past them.
template <class Element>
__m512i quantize_lanes(const Element *from, int32_t count, __m512 times, int8_t *to) {
    const __m512 x = load(from, first_lanes(std::max(0, count)));
    const __m512i integers = _mm512_cvtps_epi32(_mm512_mul_ps(x, times));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_cvtsepi32_epi8(integers));
    return integers;
}

template <class Element>
void quantize(const Element *from, int32_t depth, const QuantizedFormat &format, char *tile) {
    for (int32_t group = 0; group < depth; group += format.group) {
        auto *first = reinterpret_cast<InputBlock *>(tile);
        const int32_t end = std::min(group + format.group, depth);
        const float largest = largest_of(from + group, end - group);
        // Where the scale would be denormal, the group is zero.
        const bool tiny = largest < 1e-35f;
        const float scale = tiny ? 0.0f : largest * (1.0f / 127.0f);
        const __m512 times = _mm512_set1_ps(tiny ? 0.0f : 127.0f / largest);
        __m512i sums = _mm512_setzero_si512();
        for (int32_t i = group; i < end; i += BLOCK, tile += TILE_BLOCK_BYTES) {
            int8_t *to = reinterpret_cast<InputBlock *>(tile)->x;
            sums = _mm512_add_epi32(sums, quantize_lanes(from + i, end - i, times, to));
            sums = _mm512_add_epi32(
                sums, quantize_lanes(from + i + LANES, end - i - LANES, times, to + LANES));
        }
        const int32_t sum = _mm512_reduce_add_epi32(sums);
        first->scale = scale;
        if (format.minimums) {
            first->total = scale * static_cast<float>(sum);
        } else {
            first->begin = -format.zero() * sum;
        }
    }
}

// sum + the products of four unsigned and four signed bytes in each lane, exactly. Unsigned ones of
// 4 BITS are at most 15.
template <int BITS>
inline __m512i dot_bytes(__m512i sum, __m512i weights, __m512i inputs) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sum, weights, inputs);
#elif defined(__AVXVNNI__)
    return {_mm256_dpbusd_avx_epi32(sum.low, weights.low, inputs.low),
            _mm256_dpbusd_avx_epi32(sum.high, weights.high, inputs.high)};
#else
    if constexpr (BITS == 4) {  // the sum of two products fits into 16 bits
        const __m512i pairs = _mm512_maddubs_epi16(weights, inputs);
        return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    const __m512i low = _mm512_set1_epi16(0xFF);
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(weights, low),
                                           _mm512_srai_epi16(_mm512_slli_epi16(inputs, 8), 8));
    const __m512i odd =
        _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(inputs, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}

inline __m512 load_halves(const char *from) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(from)));
}

// Adds the products of one block of 16 outputs to each row's integers.
template <int BITS, int ROWS>
inline __attribute__((always_inline)) void add_block(const char *tile, const char *lines,
                                                     __m512i *integers) {
    const auto dot = [&](__m512i weights, int word) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            int32_t four;
            std::memcpy(&four, reinterpret_cast<const InputBlock *>(tile)[row].x + 4 * word, 4);
            integers[row] = dot_bytes<BITS>(integers[row], weights, _mm512_set1_epi32(four));
        }
    };
#pragma GCC unroll 8
    for (int line = 0; line < BITS; ++line) {
        const __m512i bytes = _mm512_load_si512(lines + line * LINE_BYTES);
        if constexpr (BITS == 8) {
            dot(bytes, line);
        } else {
            const __m512i low = _mm512_set1_epi8(15);
            dot(_mm512_and_si512(bytes, low), 2 * line);
            dot(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), low), 2 * line + 1);
        }
    }
}

template <int BITS, bool MINIMUMS, int GROUP_BLOCKS, int ROWS>
void multiply_tile(const char *tile, const char *panel, int32_t blocks, const char *ahead,
                   int64_t step, float *sums) {
    constexpr int LINES = BITS;  // of a block of a half
    constexpr int HEAD_LINES = MINIMUMS ? 2 : 1;
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) left[row] = right[row] = _mm512_setzero_ps();
    const auto prefetch = [&](int lines) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int line = 0; line < lines; ++line, ahead += step) {
            _mm_prefetch(ahead, _MM_HINT_T1);
        }
    };
    for (int32_t block = 0; block < blocks; block += GROUP_BLOCKS) {
        const int32_t count = GROUP_BLOCKS == 1 ? 1 : std::min(GROUP_BLOCKS, blocks - block);
        const char *head = panel;
        panel += HEAD_LINES * LINE_BYTES;
        prefetch(HEAD_LINES);
        const auto add = [&](__m512 *to, int half) __attribute__((always_inline)) {
            // The second half loads the inputs again: they would not fit into registers.
            asm("" : "+r"(tile));
            const auto *inputs = reinterpret_cast<const InputBlock *>(tile);
            __m512i integers[ROWS];
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                integers[row] =
                    MINIMUMS ? _mm512_setzero_si512() : _mm512_set1_epi32(inputs[row].begin);
            }
            for (int32_t i = 0; i < count; ++i, panel += LINES * LINE_BYTES) {
                prefetch(LINES);
                add_block<BITS, ROWS>(tile + i * TILE_BLOCK_BYTES, panel, integers);
            }
            const __m512 scale = load_halves(head + half * 2 * LANES);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(inputs[row].scale));
                to[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[row]), both, to[row]);
            }
            if constexpr (MINIMUMS) {
                const __m512 minimum = load_halves(head + (PANEL + half * LANES) * 2);
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row) {
                    to[row] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(inputs[row].total), to[row]);
                }
            }
        };
        add(left, 0);
        add(right, 1);
        tile += count * TILE_BLOCK_BYTES;
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) {
        _mm512_store_ps(sums + row * PANEL, left[row]);
        _mm512_store_ps(sums + row * PANEL + LANES, right[row]);
    }
}

template <int BITS, bool MINIMUMS, int GROUP_BLOCKS, int... ROWS>
constexpr std::array<MultiplyTile, sizeof...(ROWS)> tile_kernels(
    std::integer_sequence<int, ROWS...>) {
    return {multiply_tile<BITS, MINIMUMS, GROUP_BLOCKS, ROWS + 1>...};
}

template <int BITS, bool MINIMUMS, int GROUP_BLOCKS>
MultiplyTile kernel_of(int32_t rows) {
    static constexpr auto KERNELS = tile_kernels<BITS, MINIMUMS, GROUP_BLOCKS>(
        std::make_integer_sequence<int, TILE_ROWS>());
    return KERNELS[rows - 1];
}

}  // namespace

void pack_quantized(const QuantizedRows &given, int32_t row, int32_t depth, char *to,
                    int32_t output) {
    const QuantizedFormat &format = given.format;
    const int32_t blocks = (depth + BLOCK - 1) / BLOCK, group_blocks = format.group_blocks();
    const int32_t groups = (blocks + group_blocks - 1) / group_blocks;
    const int32_t lane = output % LANES, half = output % PANEL / LANES;
    const int32_t block_bytes = BLOCK * format.bits / 8;  // of one output
    const int32_t row_bytes = format.bits == 8 ? depth : (depth + 1) / 2;
    const uint8_t *values = given.values + static_cast<int64_t>(row) * row_bytes;
    to += format.panel_bytes(depth) * (output / PANEL);
    for (int32_t group = 0; group < groups; ++group) {
        const int64_t from = static_cast<int64_t>(row) * groups + group;
        std::memcpy(to + 2 * (output % PANEL), given.scales + from, 2);
        if (format.minimums) {
            std::memcpy(to + 2 * (PANEL + output % PANEL), given.minimums + from, 2);
        }
        to += format.head_bytes();
        const int32_t first = group * group_blocks, count = std::min(group_blocks, blocks - first);
        char *line = to + half * count * format.block_bytes() / 2 + lane * 4;
        for (int32_t block = first; block < first + count; ++block) {
            uint8_t bytes[BLOCK] = {};
            const int32_t begin = block * block_bytes;
            std::memcpy(bytes, values + begin, std::min(block_bytes, row_bytes - begin));
            for (int32_t i = 0; i < block_bytes; i += 4, line += LINE_BYTES) {
                const uint32_t word = packed_word(bytes + i, format.bits);
                std::memcpy(line, &word, sizeof word);
            }
        }
        to += count * format.block_bytes();
    }
}

void quantize_row(const float *from, int32_t depth, const QuantizedFormat &format, char *tile) {
    quantize(from, depth, format, tile);
}

void quantize_row(const uint16_t *from, int32_t depth, const QuantizedFormat &format, char *tile) {
    quantize(from, depth, format, tile);
}

MultiplyTile tile_kernel(const QuantizedFormat &format, int32_t rows) {
    const bool small = format.group == BLOCK;
    if (format.bits == 8) {
        return small ? kernel_of<8, false, 1>(rows) : kernel_of<8, false, 4>(rows);
    }
    if (format.minimums) {
        return small ? kernel_of<4, true, 1>(rows) : kernel_of<4, true, 4>(rows);
    }
    return small ? kernel_of<4, false, 1>(rows) : kernel_of<4, false, 4>(rows);
}

}  // namespace symphony
