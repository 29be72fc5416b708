// Matrix products with weights that are packed once.
//
// A matrix is cut into panels of 32 outputs. A panel in the model's type is [units of depth][32
// outputs], where a unit is 4 bytes: a pair of bfloat16 or one float32. It is read from its begin to
// its end, once for up to 14 rows of inputs, whose sums stay in registers (of AVX-512; with AVX2 once
// for up to 3 rows, or one half after the other for up to 6):
//
//     inputs  [rows][stride] words         one word, broadcast      14 rows
//     panel   [units][32]                  two registers         x  2 registers of sums
//
// A unit is multiplied with one word of the inputs, or two where pairs are widened (see
// attention_units.h). Panels in 4 or 8 bits: see product_quantized.h.
//
// Each sum is added up in the order of the depth, for any number of rows and threads. So a row has
// the same bits alone and in any batch.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "attention_units.h"
#include "memory.h"
#include "product_quantized.h"
#include "team.h"
#include "types.h"

namespace symphony {

// Rows of inputs that are multiplied with a panel together.
constexpr int ROWS_MAX = MANY_REGISTERS ? 14 : 6;

// A packed matrix; it does not own its memory.
struct Matrix {
    uint32_t *panels;        // [count][units][PANEL], or null
    char *quantized_panels;  // [count] panels of the format, or null
    QuantizedFormat format;
    const float *bias;  // [count * PANEL], or null
    int32_t count;
    int32_t units;
    int32_t depth;

    size_t panel_units() const { return static_cast<size_t>(units) * PANEL; }
    const uint32_t *panel(int32_t index) const { return panels + panel_units() * index; }
    bool quantized() const { return quantized_panels != nullptr; }
    const char *quantized_panel(int32_t index) const {
        return quantized_panels + format.panel_bytes(depth) * index;
    }
    int32_t blocks() const { return (depth + BLOCK - 1) / BLOCK; }
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

// Multiplies ROWS rows of inputs by the left half of a panel, the right one or BOTH into sums
// [ROWS][PANEL], and prefetches two lines at `ahead` for each unit, `step` bytes further each time.
template <class T, int ROWS, bool BOTH>
inline __attribute__((always_inline)) void multiply_halves(
    const uint32_t *inputs, int64_t stride, const uint32_t *panel, int32_t units, const char *ahead,
    int64_t step, float *sums) {
    constexpr int GROUPS = (ROWS + 2) / 3;
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 14
    for (int row = 0; row < ROWS; ++row) {
        left[row] = _mm512_setzero_ps();
        if constexpr (BOTH) right[row] = _mm512_setzero_ps();
    }
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
            const __m512i first = T::template part<index()>(_mm512_load_si512(panel));
            __m512i second;
            if constexpr (BOTH) {
                second = T::template part<index()>(_mm512_load_si512(panel + LANES));
            }
#pragma GCC unroll 14
            for (int row = 0; row < ROWS; ++row) {
                const __m512i input =
                    _mm512_set1_epi32(static_cast<int>(groups[row / 3][row % 3 * stride + index()]));
                left[row] = T::dot(left[row], input, first);
                if constexpr (BOTH) right[row] = T::dot(right[row], input, second);
            }
        };
        add(std::integral_constant<int, 0>());
        if constexpr (T::WORDS == 2) add(std::integral_constant<int, 1>());
        panel += PANEL;
#pragma GCC unroll 5
        for (int group = 0; group < GROUPS; ++group) groups[group] += T::WORDS;
    }
#pragma GCC unroll 14
    for (int row = 0; row < ROWS; ++row) {
        _mm512_store_ps(sums + row * PANEL, left[row]);
        if constexpr (BOTH) _mm512_store_ps(sums + row * PANEL + LANES, right[row]);
    }
}

// Multiplies ROWS rows of inputs by a panel into sums [ROWS][PANEL]; prefetches as
// `multiply_halves`.
template <class T, int ROWS>
void multiply_rows(const uint32_t *inputs, int64_t stride, const uint32_t *panel, int32_t units,
                   const char *ahead, int64_t step, float *sums) {
    if constexpr (MANY_REGISTERS || ROWS <= 3) {
        multiply_halves<T, ROWS, true>(inputs, stride, panel, units, ahead, step, sums);
    } else {
        multiply_halves<T, ROWS, false>(inputs, stride, panel, units, ahead, step, sums);
        multiply_halves<T, ROWS, false>(inputs, stride, panel + LANES, units, ahead, 0,
                                        sums + LANES);
    }
}

using MultiplyRows = void (*)(const uint32_t *, int64_t, const uint32_t *, int32_t, const char *,
                              int64_t, float *);

template <class T, int... ROWS>
constexpr std::array<MultiplyRows, sizeof...(ROWS) + 1> rows_kernels(
    std::integer_sequence<int, ROWS...>) {
    return {nullptr, multiply_rows<T, ROWS + 1>...};
}

// By the number of rows.
template <class T>
constexpr auto MULTIPLY_ROWS = rows_kernels<T>(std::make_integer_sequence<int, ROWS_MAX>());

struct Inputs {
    const void *data;  // [rows][stride]; past the depth, up to a whole unit, finite
    int64_t stride;    // words
    int32_t rows;
};

// Adds the bias to sums [rows][PANEL], and passes each row's two registers to
// out(row, panel index, left, right).
template <class Out>
void pass_sums(const Matrix &matrix, int32_t index, const float *sums, int32_t first_row,
               int32_t rows, const Out &out) {
    __m512 left_bias = _mm512_setzero_ps(), right_bias = _mm512_setzero_ps();
    if (matrix.bias) {
        left_bias = _mm512_loadu_ps(matrix.bias + index * PANEL);
        right_bias = _mm512_loadu_ps(matrix.bias + index * PANEL + LANES);
    }
    for (int32_t row = 0; row < rows; ++row, sums += PANEL) {
        out(first_row + row, index, _mm512_add_ps(_mm512_load_ps(sums), left_bias),
            _mm512_add_ps(_mm512_load_ps(sums + LANES), right_bias));
    }
}

// Multiplies rows [row, row_end) by one panel and passes their sums (see `pass_sums`). `next` is
// the panel that comes after.
template <class T, class Out>
void multiply_panel(const Matrix &matrix, int32_t index, int32_t next, const Inputs &inputs,
                    int32_t row, int32_t row_end, const Out &out) {
    alignas(LINE_BYTES) float sums[ROWS_MAX * PANEL];
    const int32_t blocks = (row_end - row + ROWS_MAX - 1) / ROWS_MAX;
    const char *ahead = reinterpret_cast<const char *>(matrix.panel(next));
    // Prefetches the next panel while the first rows use this one.
    const int64_t half = static_cast<int64_t>(matrix.panel_units() * 2 / LINE_BYTES * LINE_BYTES);
    for (int32_t block = 0; block < blocks; ++block) {
        const int32_t count = (row_end - row + blocks - block - 1) / (blocks - block);
        const int64_t step = blocks == 1 ? 2 * LINE_BYTES : block < 2 ? LINE_BYTES : 0;
        const uint32_t *from =
            static_cast<const uint32_t *>(inputs.data) + row * inputs.stride;
        MULTIPLY_ROWS<T>[count](from, inputs.stride, matrix.panel(index), matrix.units,
                                block == 1 ? ahead + half : ahead, step, sums);
        pass_sums(matrix, index, sums, row, count, out);
        row += count;
    }
}

// The same for a quantized matrix, with rows as tiles: `row` is the first of one.
template <class Out>
void multiply_quantized_panel(const Matrix &matrix, int32_t index, int32_t next,
                              const Rows<char> &tiles, int32_t row, int32_t row_end,
                              const Out &out) {
    alignas(LINE_BYTES) float sums[TILE_ROWS * PANEL];
    int64_t step = LINE_BYTES;  // the first tile prefetches the next panel
    for (; row < row_end; row += TILE_ROWS, step = 0) {
        const int32_t count = std::min(TILE_ROWS, row_end - row);
        tile_kernel(matrix.format, count)(
            tiles.row(row / TILE_ROWS), matrix.quantized_panel(index), matrix.blocks(),
            matrix.quantized_panel(next), step, sums);
        pass_sums(matrix, index, sums, row, count, out);
    }
}

// How a product is cut into tasks: the panels and rows of each.
struct Cut {
    int32_t panels, rows;
    int32_t panel_tasks, row_tasks;
};

// `row_dots` are the products of registers of a panel and a row; rows are cut at multiples of
// `row_step`.
inline Cut cut_product(int32_t count, int64_t row_dots, int64_t panel_bytes, int32_t row_step,
                       int32_t rows, int32_t threads) {
    constexpr int64_t TASK_DOTS = 1 << 16;    // some 8 microseconds
    constexpr int64_t TASK_BYTES = 128 << 10; // some 5 microseconds of reading
    Cut cut{1, rows, 0, 0};
    const int64_t dots = row_dots * rows;
    if (dots > TASK_DOTS) {
        const int64_t parts = std::min<int64_t>((dots + TASK_DOTS - 1) / TASK_DOTS,
                                                (rows + 4 * row_step - 1) / (4 * row_step));
        cut.rows = static_cast<int32_t>(rounded_up((rows + parts - 1) / parts, row_step));
    } else {
        const int64_t fits = std::min(TASK_DOTS / std::max<int64_t>(dots, 1),
                                      TASK_BYTES / panel_bytes);
        cut.panels = static_cast<int32_t>(
            std::max<int64_t>(1, std::min<int64_t>(fits, count / (threads * 4))));
    }
    cut.panel_tasks = (count + cut.panels - 1) / cut.panels;
    cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
    return cut;
}

inline Cut cut_product(const Matrix &matrix, int32_t rows, int32_t threads) {
    if (matrix.quantized()) {
        constexpr int64_t BLOCK_DOTS = BLOCK * PANEL / LINE_BYTES;
        return cut_product(matrix.count, matrix.blocks() * BLOCK_DOTS,
                           matrix.format.panel_bytes(matrix.depth), TILE_ROWS, rows, threads);
    }
    return cut_product(matrix.count, static_cast<int64_t>(matrix.units) * 2,
                       static_cast<int64_t>(matrix.panel_units() * 4), ROWS_MAX, rows, threads);
}

// Calls work(panel, next panel, first row, end of rows) for all parts of a product, on the team's
// threads.
template <class Work>
void run_cut(Team &team, const Cut &cut, int32_t count, int32_t rows, const Work &work) {
    // The task after the next is probably this thread's.
    const int32_t others = cut.row_tasks == 1 ? team.threads() - 1 : 0;
    team.run(cut.panel_tasks * cut.row_tasks, [&](int32_t task, int32_t) {
        const int32_t row = task % cut.row_tasks * cut.rows;
        const int32_t begin = task / cut.row_tasks * cut.panels;
        const int32_t end = std::min(begin + cut.panels, count);
        for (int32_t index = begin; index < end; ++index) {
            const int32_t after = index + 1 < end ? index + 1 : end + others * cut.panels;
            work(index, std::min(after, count - 1), row, std::min(row + cut.rows, rows));
        }
    });
}

// Quantizes rows [row, end) into their tiles.
template <class T>
void quantize_tile(const Matrix &matrix, const Inputs &inputs, int32_t row, int32_t end,
                   const Rows<char> &tiles) {
    using Factor = typename T::Factors::Element;
    for (; row < end; ++row) {
        const uint32_t *from = static_cast<const uint32_t *>(inputs.data) + row * inputs.stride;
        quantize_row(reinterpret_cast<const Factor *>(from), matrix.depth, matrix.format,
                     tiles.row(row / TILE_ROWS) + row % TILE_ROWS * sizeof(InputBlock));
    }
}

// Quantizes all rows into tiles, on the team's threads if that is worth it.
template <class T>
void quantize_rows(Team &team, const Matrix &matrix, const Inputs &inputs, Rows<char> &tiles) {
    constexpr int32_t TASK_ELEMENTS = 1 << 13;
    tiles.reserve((inputs.rows + TILE_ROWS - 1) / TILE_ROWS);
    const int32_t task_rows = std::max(1, TASK_ELEMENTS / matrix.depth);
    team.run((inputs.rows + task_rows - 1) / task_rows, [&](int32_t task, int32_t) {
        const int32_t end = std::min(inputs.rows, (task + 1) * task_rows);
        quantize_tile<T>(matrix, inputs, task * task_rows, end, tiles);
    });
}

// Multiplies all rows by the whole matrix on the team's threads; see `pass_sums`. `tiles` has room
// for rows of the matrix's depth (`tile_bytes`) if it is quantized.
template <class T, class Out>
void multiply(Team &team, const Matrix &matrix, const Inputs &inputs, Rows<char> &tiles,
              const Out &out) {
    if (inputs.rows == 0) return;
    const Cut cut = cut_product(matrix, inputs.rows, team.threads());
    if (matrix.quantized()) {
        quantize_rows<T>(team, matrix, inputs, tiles);
        run_cut(team, cut, matrix.count, inputs.rows,
                [&](int32_t index, int32_t next, int32_t row, int32_t row_end) {
                    multiply_quantized_panel(matrix, index, next, tiles, row, row_end, out);
                });
        return;
    }
    run_cut(team, cut, matrix.count, inputs.rows,
            [&](int32_t index, int32_t next, int32_t row, int32_t row_end) {
                multiply_panel<T>(matrix, index, next, inputs, row, row_end, out);
            });
}

}  // namespace symphony
