// Matrix products with weights in 4 or 8 bits, which are multiplied as integers.
//
// The inputs are quantized to 8 bits, in groups as the weights are: 32 or 128 of the depth, each
// with a scale, as llama.cpp's Q8_0 and Q8_K. The sum of a group is an integer. It is multiplied
// with both scales and added in float32:
//
//     sum over groups of  weight scale * input scale * (sum of q * x)
//
// Weights are unsigned in memory, q + ZERO. A group's sum begins with -ZERO * (sum of x), so that
// it is exact; or the minimum of the group times the sum of its inputs is added.
//
// A panel of 32 outputs is read once for up to 8 rows of inputs (4 with AVX2), a tile, whose sums
// stay in registers:
//
//     panel   [groups] { scales [32] float16, minimums [32] float16 if any, [2] half }
//     half    [1 or 4 blocks][4 or 8 lines], a line: 16 outputs x 4 bytes
//     tile    [blocks of 32 of the depth][TILE_ROWS] InputBlock
//
// In 8 bits line i of a block has inputs 4 i to 4 i + 3 of each output. In 4 bits it has inputs
// 8 i to 8 i + 3 in the lower halves of its bytes, and the next four in the upper halves.
//
// A row has the same bits alone and in any batch: its integers are exact, and its groups are added
// up in the order of the depth.
#pragma once

#include "types.h"

namespace symphony {

constexpr int PANEL = 2 * LANES;  // outputs
constexpr int BLOCK = 32;         // of the depth
constexpr int TILE_ROWS = MANY_REGISTERS ? 8 : 4;

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

// 32 inputs of a row: x[i] * scale. The first block of a group has what is of the group.
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
void pack_quantized(const QuantizedRows &given, int32_t row, int32_t depth, char *to,
                    int32_t output);

// Quantizes `depth` numbers of a row into its blocks of a tile. NaN and infinity stay: they make
// the scale of their group so.
void quantize_row(const float *from, int32_t depth, const QuantizedFormat &format, char *tile);
// The same for bfloat16.
void quantize_row(const uint16_t *from, int32_t depth, const QuantizedFormat &format, char *tile);

// Multiplies the first rows of a tile by a panel into sums [rows][PANEL], and prefetches `ahead`, a
// panel too, line by line; with `step` 0 only its first line.
using MultiplyTile = void (*)(const char *tile, const char *panel, int32_t blocks,
                              const char *ahead, int64_t step, float *sums);

MultiplyTile tile_kernel(const QuantizedFormat &format, int32_t rows);

}  // namespace symphony
