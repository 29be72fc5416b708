// The pool's layout, and the conversion of numbers into it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "attention.h"
#include "attention_units.h"

namespace symphony {

// Memory for registers: aligned to a cache line, not initialised, of fixed size.
template <class E>
class Aligned {
  public:
    explicit Aligned(size_t count)
        : memory_(static_cast<E *>(std::aligned_alloc(
              LINE_BYTES, (count * sizeof(E) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES))) {
        if (!memory_) throw std::bad_alloc();
    }
    E *data() const { return memory_.get(); }

  private:
    struct Free {
        void operator()(E *memory) const { std::free(memory); }
    };
    std::unique_ptr<E, Free> memory_;
};

struct PoolLayout {
    explicit PoolLayout(const AttentionShape &shape)
        : heads(shape.heads),
          kv_heads(shape.kv_heads),
          shared(shape.heads / shape.kv_heads),
          head_dim(shape.head_dim),
          per_unit(4 / shape.element_bytes),
          wide(shape.wide || !COMPUTES_BF16),
          width((shape.head_dim + LANES - 1) / LANES * LANES),
          key_units(shape.head_dim / per_unit),
          query_words(key_units * (wide ? per_unit : 1)),
          values_at(size_t(key_units) * PAGE_TOKENS),
          head_units(values_at + size_t(PAGE_TOKENS / per_unit) * width),
          layers(shape.layers),
          pages(shape.pages) {}

    int heads, kv_heads, shared, head_dim;
    int per_unit;       // elements in a unit
    bool wide;          // pairs are widened for products
    int width;          // units of a row of V
    int key_units;      // of one key
    int query_words;    // of the query words that match it
    size_t values_at;   // units before V
    size_t head_units;  // of one head's page
    int layers;
    int64_t pages;

    size_t page_units() const { return head_units * size_t(kv_heads); }
    size_t page_at(int layer, int64_t page) const {
        return (size_t(layer) * size_t(pages) + size_t(page)) * page_units();
    }
    template <class Unit>
    Unit *page(Unit *pool, int layer, int64_t page, int kv_head) const {
        return pool + page_at(layer, page) + head_units * size_t(kv_head);
    }
};

// Writes up to 16 dimensions of a token's key, from the even `d` on, into its lane of a head's page.
template <class T>
inline void write_key(const PoolLayout &layout, uint32_t *page, int lane, int d, __m512 x) {
    alignas(LINE_BYTES) uint32_t units[LANES];
    T::store(units, x);
    uint32_t *place = page + size_t(d / T::PER_UNIT) * PAGE_TOKENS + lane;
    const int left = layout.head_dim - d;
    if (left >= LANES) {
#pragma GCC unroll 16
        for (int u = 0; u < LANES / T::PER_UNIT; ++u) place[size_t(u) * PAGE_TOKENS] = units[u];
    } else {
        for (int u = 0; u < left / T::PER_UNIT; ++u) place[size_t(u) * PAGE_TOKENS] = units[u];
    }
}

// Writes a token's value, head_dim floats.
template <class T>
inline void write_value(const PoolLayout &layout, uint32_t *page, int lane, const float *value) {
    uint32_t *row = page + layout.values_at + size_t(lane / T::PER_UNIT) * layout.width;
    for (int d = 0; d < layout.head_dim; d += LANES) {
        const __mmask16 lanes = first_lanes(std::min(layout.head_dim - d, LANES));
        T::store_value(row + d, lane, load(value + d, lanes), lanes);
    }
}

}  // namespace symphony
