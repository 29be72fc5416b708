// Matrix products with weights that are packed once.
//
// A matrix is cut into panels of 32 outputs. A panel is [units of depth][32 outputs], where a unit is
// 4 bytes: a pair of bfloat16 or one float32. It is read from its begin to its end, once for up to 14
// rows of inputs, whose sums stay in registers:
//
//     inputs  [rows][stride] words         one word, broadcast      14 rows
//     panel   [units][32]                  two registers         x  2 registers of sums
//
// A unit is multiplied with one word of the inputs, or two where pairs are widened (see
// attention_units.h).
//
// Each sum is added up in the order of the depth, for any number of rows and threads. So a row has
// the same bits alone and in any batch.
#pragma once

#include <algorithm>

#include <cstring>

#include "attention_units.h"
#include "team.h"
#include "types.h"

namespace symphony {

constexpr int PANEL = 2 * LANES;  // outputs
constexpr int ROWS_MAX = 14;      // of inputs that are multiplied with a panel together

// A packed matrix; it does not own its memory.
struct Matrix {
    uint32_t *panels;   // [count][units][PANEL]
    const float *bias;  // [count * PANEL], or null
    // Quantized: [count][units][PANEL][elements of a unit], then `panels` is null; and the scales.
    int8_t *bytes;
    const float *scales;  // [count * PANEL]
    int32_t count;
    int32_t units;

    size_t panel_units() const { return static_cast<size_t>(units) * PANEL; }
    const uint32_t *panel(int32_t index) const { return panels + panel_units() * index; }
    bool quantized() const { return bytes != nullptr; }
    template <class T>
    const int8_t *byte_panel(int32_t index) const {
        return bytes + panel_units() * T::PER_UNIT * static_cast<size_t>(index);
    }
};

// Packs `outputs` rows of `depth` elements of `element_bytes` (2 or 4) into a matrix. Row i becomes
// output place(i); other outputs stay unchanged.
template <class Place>
void pack(Matrix &matrix, const void *rows, int32_t outputs, int32_t depth, int32_t element_bytes,
          const Place &place) {
    const size_t row_bytes = static_cast<size_t>(depth) * element_bytes;
    const auto *bytes = static_cast<const unsigned char *>(rows);
    for (int32_t first = 0; first < outputs; first += LANES) {
        const int32_t end = std::min(first + LANES, outputs);
        // All rows of a line of the panel together, so that the line is written while it is in the
        // cache.
        for (int32_t unit = 0; unit < matrix.units; ++unit) {
            const size_t at = static_cast<size_t>(unit) * 4;
            const size_t size = std::min<size_t>(4, row_bytes - at);
            for (int32_t row = first; row < end; ++row) {
                uint32_t value = 0;
                std::memcpy(&value, bytes + row_bytes * row + at, size);
                const int32_t output = place(row);
                matrix.panels[matrix.panel_units() * (output / PANEL) +
                              static_cast<size_t>(unit) * PANEL + output % PANEL] = value;
            }
        }
    }
}

// The same for rows of int8, each with a scale.
template <class T, class Place>
void pack_bytes(Matrix &matrix, const int8_t *rows, const float *scales, int32_t outputs,
                int32_t depth, const Place &place) {
    for (int32_t row = 0; row < outputs; ++row) {
        const int32_t output = place(row);
        const_cast<float *>(matrix.scales)[output] = scales[row];
        int8_t *to = matrix.bytes + matrix.panel_units() * T::PER_UNIT * (output / PANEL) +
                     output % PANEL * T::PER_UNIT;
        const int8_t *from = rows + static_cast<size_t>(row) * depth;
        for (int32_t i = 0; i < depth; ++i) {
            to[static_cast<size_t>(i / T::PER_UNIT) * PANEL * T::PER_UNIT + i % T::PER_UNIT] =
                from[i];
        }
    }
}

// A panel, read unit by unit: the part of two registers of units that a word is multiplied with.
template <class T>
struct PlainPanel {
    const uint32_t *at;

    template <int index>
    void part(__m512i &first, __m512i &second) const {
        first = T::template part<index>(_mm512_load_si512(at));
        second = T::template part<index>(_mm512_load_si512(at + LANES));
    }
    void next() { at += PANEL; }
};

// The same for a quantized panel: its integers, which are exact in every type.
template <class T>
struct BytePanel {
    const int8_t *at;

    static __m512 floats(const int8_t *from) {
        const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i *>(from));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen));
    }
    static __m512i units(const int8_t *from) {
        if constexpr (T::PER_UNIT == 1) {
            return _mm512_castps_si512(floats(from));
        } else {
#ifdef __AVX512BF16__
            return (__m512i)_mm512_cvtne2ps_pbh(floats(from + LANES), floats(from));
#else
            const __m512i low = _mm512_castsi256_si512(to_bfloat16(floats(from)));
            return _mm512_inserti64x4(low, to_bfloat16(floats(from + LANES)), 1);
#endif
        }
    }
    // The integers at one place of each of sixteen pairs, as floats.
    template <int index>
    static __m512i widened(const int8_t *from) {
        const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
        __m512i x = _mm512_cvtepi16_epi32(pairs);
        if constexpr (index == 0) x = _mm512_slli_epi32(x, 24);
        return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(x, index == 0 ? 24 : 8)));
    }
    template <int index>
    void part(__m512i &first, __m512i &second) const {
        if constexpr (T::WORDS == 2) {
            first = widened<index>(at);
            second = widened<index>(at + LANES * T::PER_UNIT);
        } else {
            first = units(at);
            second = units(at + LANES * T::PER_UNIT);
        }
    }
    void next() { at += PANEL * T::PER_UNIT; }
};

// Unpacks a quantized panel into a panel of its integers, and prefetches `next`.
template <class T>
void expand(const int8_t *bytes, const int8_t *next, int32_t units, uint32_t *panel) {
    BytePanel<T> from{bytes};
    for (int32_t unit = 0; unit < units; ++unit) {
        _mm_prefetch(reinterpret_cast<const char *>(next), _MM_HINT_T1);
        next += PANEL * T::PER_UNIT;
        _mm512_store_si512(panel, from.units(from.at));
        _mm512_store_si512(panel + LANES, from.units(from.at + LANES * T::PER_UNIT));
        from.next();
        panel += PANEL;
    }
}

// Multiplies ROWS rows of inputs by a panel into sums [ROWS][PANEL], and prefetches two lines at
// `ahead` for each unit, `step` bytes further each time.
template <class T, int ROWS, class Panel>
void multiply_rows(const uint32_t *inputs, int64_t stride, Panel panel, int32_t units,
                   const char *ahead, int64_t step, float *sums) {
    constexpr int GROUPS = (ROWS + 2) / 3;
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 14
    for (int row = 0; row < ROWS; ++row) left[row] = right[row] = _mm512_setzero_ps();
    // One pointer for each three rows: more would not fit into the processor's registers.
    const uint32_t *groups[GROUPS];
#pragma GCC unroll 5
    for (int group = 0; group < GROUPS; ++group) {
        groups[group] = inputs + 3 * group * stride;
        asm("" : "+r"(groups[group]));
    }
    for (int32_t unit = 0; unit < units; ++unit) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        _mm_prefetch(ahead + LINE_BYTES, _MM_HINT_T1);
        ahead += step;
        const auto add = [&](auto index) __attribute__((always_inline)) {
            __m512i first, second;
            panel.template part<index()>(first, second);
#pragma GCC unroll 14
            for (int row = 0; row < ROWS; ++row) {
                const __m512i input =
                    _mm512_set1_epi32(static_cast<int>(groups[row / 3][row % 3 * stride + index()]));
                left[row] = T::dot(left[row], input, first);
                right[row] = T::dot(right[row], input, second);
            }
        };
        add(std::integral_constant<int, 0>());
        if constexpr (T::WORDS == 2) add(std::integral_constant<int, 1>());
        panel.next();
#pragma GCC unroll 5
        for (int group = 0; group < GROUPS; ++group) groups[group] += T::WORDS;
    }
#pragma GCC unroll 14
    for (int row = 0; row < ROWS; ++row) {
        _mm512_store_ps(sums + row * PANEL, left[row]);
        _mm512_store_ps(sums + row * PANEL + LANES, right[row]);
    }
}

template <class Panel>
using MultiplyRows = void (*)(const uint32_t *, int64_t, Panel, int32_t, const char *, int64_t,
                              float *);

template <class T, class Panel>
constexpr MultiplyRows<Panel> MULTIPLY_ROWS[ROWS_MAX + 1] = {
    nullptr,
    multiply_rows<T, 1, Panel>, multiply_rows<T, 2, Panel>, multiply_rows<T, 3, Panel>,
    multiply_rows<T, 4, Panel>, multiply_rows<T, 5, Panel>, multiply_rows<T, 6, Panel>,
    multiply_rows<T, 7, Panel>, multiply_rows<T, 8, Panel>, multiply_rows<T, 9, Panel>,
    multiply_rows<T, 10, Panel>, multiply_rows<T, 11, Panel>, multiply_rows<T, 12, Panel>,
    multiply_rows<T, 13, Panel>, multiply_rows<T, 14, Panel>,
};

struct Inputs {
    const void *data;  // [rows][stride]; past the depth, up to a whole unit, finite
    int64_t stride;    // words
    int32_t rows;
};

// Multiplies rows [row_begin, row_end) by one panel and passes each row's two registers of sums,
// with the bias, to out(row, panel index, left, right). `next` is the panel that comes after;
// `scratch` has space for a panel if the matrix is quantized.
template <class T, class Out>
void multiply_panel(const Matrix &matrix, int32_t index, int32_t next, const Inputs &inputs,
                    int32_t row_begin, int32_t row_end, uint32_t *scratch, const Out &out) {
    alignas(LINE_BYTES) float sums[ROWS_MAX * PANEL];
    const int32_t blocks = (row_end - row_begin + ROWS_MAX - 1) / ROWS_MAX;
    // A quantized panel that is used for several blocks of rows is unpacked once.
    const bool expanded = matrix.quantized() && blocks > 1;
    PlainPanel<T> plain{scratch};
    BytePanel<T> bytes{nullptr};
    const char *ahead = reinterpret_cast<const char *>(scratch);
    __m512 left_scale = _mm512_set1_ps(1.0f), right_scale = left_scale;
    if (matrix.quantized()) {
        bytes.at = matrix.byte_panel<T>(index);
        if (expanded) {
            expand<T>(bytes.at, matrix.byte_panel<T>(next), matrix.units, scratch);
        } else {
            ahead = reinterpret_cast<const char *>(matrix.byte_panel<T>(next));
        }
        left_scale = _mm512_loadu_ps(matrix.scales + index * PANEL);
        right_scale = _mm512_loadu_ps(matrix.scales + index * PANEL + LANES);
    } else {
        plain.at = matrix.panel(index);
        ahead = reinterpret_cast<const char *>(matrix.panel(next));
    }
    __m512 left_bias = _mm512_setzero_ps(), right_bias = _mm512_setzero_ps();
    if (matrix.bias) {
        left_bias = _mm512_loadu_ps(matrix.bias + index * PANEL);
        right_bias = _mm512_loadu_ps(matrix.bias + index * PANEL + LANES);
    }
    // Prefetches the next panel while the first rows use this one.
    const int64_t half = static_cast<int64_t>(matrix.panel_units() * 2 / LINE_BYTES * LINE_BYTES);
    int32_t row = row_begin;
    for (int32_t block = 0; block < blocks; ++block) {
        const int32_t count = (row_end - row + blocks - block - 1) / (blocks - block);
        const int64_t step = blocks == 1 ? 2 * LINE_BYTES : block < 2 ? LINE_BYTES : 0;
        const uint32_t *from =
            static_cast<const uint32_t *>(inputs.data) + row * inputs.stride;
        const char *fetched = block == 1 ? ahead + half : ahead;
        if (matrix.quantized() && !expanded) {
            MULTIPLY_ROWS<T, BytePanel<T>>[count](from, inputs.stride, bytes, matrix.units, ahead,
                                                  PANEL * T::PER_UNIT, sums);
        } else {
            MULTIPLY_ROWS<T, PlainPanel<T>>[count](from, inputs.stride, plain, matrix.units,
                                                   fetched, step, sums);
        }
        for (int32_t i = 0; i < count; ++i) {
            const float *mine = sums + i * PANEL;
            out(row + i, index, _mm512_fmadd_ps(_mm512_load_ps(mine), left_scale, left_bias),
                _mm512_fmadd_ps(_mm512_load_ps(mine + LANES), right_scale, right_bias));
        }
        row += count;
    }
}

// How a product is cut into tasks: the panels and rows of each.
struct Cut {
    int32_t panels, rows;
    int32_t panel_tasks, row_tasks;
};

inline Cut cut_product(const Matrix &matrix, int32_t rows, int32_t threads) {
    constexpr int64_t TASK_DOTS = 1 << 16;  // products of registers; some 8 microseconds
    constexpr int64_t TASK_UNITS = 1 << 15; // of a matrix, 128 KB: some 5 microseconds of reading
    Cut cut{1, rows, 0, 0};
    const int64_t dots = static_cast<int64_t>(matrix.units) * 2 * rows;
    if (dots > TASK_DOTS) {
        const int64_t parts = std::min<int64_t>((dots + TASK_DOTS - 1) / TASK_DOTS,
                                                (rows + 4 * ROWS_MAX - 1) / (4 * ROWS_MAX));
        cut.rows = static_cast<int32_t>(rounded_up((rows + parts - 1) / parts, ROWS_MAX));
    } else {
        const int64_t fits = std::min(TASK_DOTS / std::max<int64_t>(dots, 1),
                                      TASK_UNITS / static_cast<int64_t>(matrix.panel_units()));
        cut.panels = static_cast<int32_t>(
            std::max<int64_t>(1, std::min<int64_t>(fits, matrix.count / (threads * 4))));
    }
    cut.panel_tasks = (matrix.count + cut.panels - 1) / cut.panels;
    cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
    return cut;
}

// Multiplies all rows by the whole matrix on the team's threads; see `multiply_panel`.
// `scratch(thread)` is as above.
template <class T, class Scratch, class Out>
void multiply(Team &team, const Matrix &matrix, const Inputs &inputs, const Scratch &scratch,
              const Out &out) {
    if (inputs.rows == 0) return;
    const Cut cut = cut_product(matrix, inputs.rows, team.threads());
    // The task after the next is probably this thread's.
    const int32_t others = cut.row_tasks == 1 ? team.threads() - 1 : 0;
    team.run(cut.panel_tasks * cut.row_tasks, [&](int32_t task, int32_t thread) {
        const int32_t row = task % cut.row_tasks * cut.rows;
        const int32_t row_end = std::min(row + cut.rows, inputs.rows);
        const int32_t begin = task / cut.row_tasks * cut.panels;
        const int32_t end = std::min(begin + cut.panels, matrix.count);
        for (int32_t index = begin; index < end; ++index) {
            const int32_t after = index + 1 < end ? index + 1 : end + others * cut.panels;
            const int32_t next = std::min(after, matrix.count - 1);
            multiply_panel<T>(matrix, index, next, inputs, row, row_end, scratch(thread), out);
        }
    });
}

}  // namespace symphony
