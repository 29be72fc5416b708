// LoRA adapters: what they add to the products of a step's rows.
//
//   shrink   inputs of the rows of one adapter  x  [depth][ranks]      before a product
//   expand   a row's ranks                      x  [ranks][outputs]    on the way out of the product
//
// A product is a whole matrix of the network: queries, keys and values, or gate and up, are one. The
// ranks of its parts lie behind one another. Half a panel (16 outputs) uses the ranks of its part
// only. Each row's sums are added up in the order of the depth and of the ranks, for any number of
// rows, so that a row has the same bits alone and in any batch.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"
#include "memory.h"
#include "product.h"
#include "team.h"

namespace symphony {

// The products of a layer to which an adapter can add, in Python's order.
enum class AdapterPart : int32_t { QKV, OUTPUT, GATE_UP, DOWN, COUNT };
constexpr int ADAPTER_PARTS = static_cast<int>(AdapterPart::COUNT);

// What half a panel of outputs reads.
struct AdapterHalf {
    int32_t at;            // the first of its registers in `expand`
    int32_t begin, count;  // units of ranks
};

// An adapter's part of one product, as Python packs it (executor/adapters/packing.py).
struct AdapterProduct {
    const uint32_t *shrink;     // [blocks][units][LANES]
    const uint32_t *expand;     // registers of LANES units
    const AdapterHalf *halves;  // [2 * panels of the product]
    int32_t blocks;             // of LANES ranks; 0: it adds nothing to this product
    int32_t units;              // of the depth
};
static_assert(sizeof(AdapterProduct) == 32, "as in Python");

// Of the rows of a step; see `StepTokens::adapters`.
struct AdapterTable {
    const AdapterProduct *products;  // [layers][ADAPTER_PARTS]
    int64_t blocks_max;              // of any product
};

// The rows of one matrix of inputs that have adapters. `U` are the units that inputs are stored in.
template <class U>
class AdaptedRows {
  public:
    // Plans for rows of inputs; table(row) is the row's adapter, or null.
    template <class Table>
    void plan(int32_t rows, const Table &table) {
        tables_.assign(static_cast<size_t>(rows), nullptr);
        leads_.assign(static_cast<size_t>(rows), 0);
        order_.clear();
        groups_.clear();
        blocks_ = 0;
        for (int32_t row = 0; row < rows; ++row) {
            tables_[row] = table(row);
            if (!tables_[row]) continue;
            order_.push_back(row);
            blocks_ = std::max(blocks_, tables_[row]->blocks_max);
        }
        std::stable_sort(order_.begin(), order_.end(),
                         [&](int32_t a, int32_t b) { return tables_[a] < tables_[b]; });
        for (size_t first = 0; first < order_.size();) {
            const AdapterTable *own = tables_[order_[first]];
            size_t end = first;
            leads_[order_[first]] = first == 0 || tables_[order_[first - 1]] != own;
            while (end < order_.size() && end < first + ROWS && tables_[order_[end]] == own) ++end;
            groups_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(end - first)});
            first = end;
        }
        const size_t words = order_.empty() ? 0 : static_cast<size_t>(blocks_) * WORDS_A_BLOCK;
        if (words > stride_ || static_cast<size_t>(rows) > rows_) {
            stride_ = std::max(stride_, words);
            rows_ = std::max(rows_, static_cast<size_t>(rows));
            shrunk_.assign(rows_ * stride_, 0);
        }
    }
    void clear() {
        order_.clear();
        groups_.clear();
    }
    bool empty() const { return order_.empty(); }

    // Computes the ranks of all rows for one product of a layer, of which `matrix` is multiplied
    // next.
    void shrink(Team &team, int32_t layer, AdapterPart part, const Matrix &matrix,
                const Inputs &inputs) {
        if (empty()) return;
        index_ = layer * ADAPTER_PARTS + static_cast<int32_t>(part);
        panels_ = matrix.count;
        const Cut cut = cut_product(matrix, inputs.rows, team.threads());
        // Which panel a thread probably takes next: see `multiply`.
        ahead_ = cut.panels == 1 && cut.row_tasks == 1 ? team.threads() : 1;
        const auto blocks = static_cast<int32_t>(blocks_);
        team.run(static_cast<int32_t>(groups_.size()) * blocks, [&](int32_t task, int32_t) {
            const Group &group = groups_[task / blocks];
            const AdapterProduct &product = tables_[order_[group.first]]->products[index_];
            if (task % blocks < product.blocks) {
                SHRINK[group.count](*this, group.first, product, task % blocks, inputs);
            }
        });
    }

    // Adds to a row's sums of a panel, for the product of the last `shrink`.
    void expand(int32_t row, int32_t panel, __m512 &left, __m512 &right) const {
        if (empty() || !tables_[row]) return;
        const AdapterProduct &product = tables_[row]->products[index_];
        if (!product.blocks) return;
        // Eight adapters are too many streams for the processor to see that they are some.
        if (leads_[row] && panel + ahead_ < panels_) fetch(product, panel + ahead_);
        const uint32_t *ranks = shrunk_.data() + static_cast<size_t>(row) * stride_;
        left = expand_half(product, product.halves[2 * panel], ranks, left);
        right = expand_half(product, product.halves[2 * panel + 1], ranks, right);
    }

  private:
    static constexpr int ROWS = 8;    // of one adapter that are multiplied together
    static constexpr int AHEAD = 24;  // units that are fetched in advance
    static constexpr size_t WORDS_A_BLOCK = LANES / U::PER_UNIT;

    struct Group {
        int32_t first, count;  // in `order_`
    };

    static void fetch(const AdapterProduct &product, int32_t panel) {
        const AdapterHalf &left = product.halves[2 * panel], &right = product.halves[2 * panel + 1];
        const char *from = reinterpret_cast<const char *>(product.expand) + left.at * LINE_BYTES;
        for (int32_t line = 0; line < left.count + right.count; ++line) {
            _mm_prefetch(from + line * LINE_BYTES, _MM_HINT_T0);
        }
    }

    static __m512 expand_half(const AdapterProduct &product, const AdapterHalf &half,
                              const uint32_t *ranks, __m512 sum) {
        const uint32_t *from = product.expand + static_cast<size_t>(half.at) * LANES;
        ranks += half.begin;
        for (int32_t unit = 0; unit < half.count; ++unit, from += LANES) {
            const __m512i rank = _mm512_set1_epi32(static_cast<int>(ranks[unit]));
            sum = U::dot(sum, rank, _mm512_loadu_si512(from));
        }
        return sum;
    }

    template <int COUNT>
    static void shrink_rows(AdaptedRows &self, int32_t first, const AdapterProduct &product,
                            int32_t block, const Inputs &inputs) {
        const uint32_t *from[COUNT];
        __m512 sums[COUNT];
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; ++i) {
            from[i] = static_cast<const uint32_t *>(inputs.data) +
                      self.order_[first + i] * inputs.stride;
            sums[i] = _mm512_setzero_ps();
        }
        const uint32_t *weights =
            product.shrink + static_cast<size_t>(block) * product.units * LANES;
        for (int32_t unit = 0; unit < product.units; ++unit, weights += LANES) {
            _mm_prefetch(reinterpret_cast<const char *>(weights + AHEAD * LANES), _MM_HINT_T0);
            const __m512i weight = _mm512_loadu_si512(weights);
#pragma GCC unroll 8
            for (int i = 0; i < COUNT; ++i) {
                const __m512i input = _mm512_set1_epi32(static_cast<int>(from[i][unit]));
                sums[i] = U::dot(sums[i], input, weight);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; ++i) {
            uint32_t *to = self.shrunk_.data() +
                           static_cast<size_t>(self.order_[first + i]) * self.stride_ +
                           static_cast<size_t>(block) * WORDS_A_BLOCK;
            U::store(to, sums[i]);
        }
    }

    using Shrink = void (*)(AdaptedRows &, int32_t, const AdapterProduct &, int32_t,
                            const Inputs &);
    static constexpr Shrink SHRINK[ROWS + 1] = {
        nullptr,         shrink_rows<1>, shrink_rows<2>, shrink_rows<3>, shrink_rows<4>,
        shrink_rows<5>, shrink_rows<6>, shrink_rows<7>, shrink_rows<8>,
    };

    std::vector<const AdapterTable *> tables_;  // by row
    std::vector<uint8_t> leads_;                // by row: the first one of its adapter
    std::vector<int32_t> order_;                // the rows with an adapter, by adapter
    std::vector<Group> groups_;
    std::vector<uint32_t> shrunk_;  // [rows][stride]: each row's ranks
    size_t rows_ = 0, stride_ = 0;
    int64_t blocks_ = 0;  // of any product of any adapter in the step
    int32_t index_ = 0;  // of the product, among all of the network
    int32_t panels_ = 0, ahead_ = 1;
};

}  // namespace symphony
