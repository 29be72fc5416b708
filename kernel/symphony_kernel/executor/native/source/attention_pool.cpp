#include "attention_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace symphony {

namespace {

// Slots to copy from one page to another: entries [first, last) of the given slots.
struct PageCopy {
    int64_t source, destination;
    int64_t first, last;
    bool same_lanes;
};

std::vector<PageCopy> page_copies(const int64_t *sources, const int64_t *destinations,
                                  int64_t count) {
    std::vector<PageCopy> copies;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t source = sources[i] / PAGE_TOKENS, destination = destinations[i] / PAGE_TOKENS;
        const bool same = sources[i] % PAGE_TOKENS == destinations[i] % PAGE_TOKENS;
        if (copies.empty() || copies.back().source != source ||
            copies.back().destination != destination || copies.back().same_lanes != same)
            copies.push_back({source, destination, i, i, same});
        copies.back().last = i + 1;
    }
    return copies;
}

template <class E>
struct Elements {
    static constexpr int PER_UNIT = 4 / sizeof(E);

    static E *key(const PoolLayout &layout, E *page, int lane, int d) {
        (void)layout;
        return page + (size_t(d / PER_UNIT) * PAGE_TOKENS + lane) * PER_UNIT + d % PER_UNIT;
    }
    static E *value(const PoolLayout &layout, E *page, int lane, int d) {
        return page + layout.values_at * PER_UNIT +
               (size_t(lane / PER_UNIT) * layout.width + d) * PER_UNIT + lane % PER_UNIT;
    }
};

// Copies the lanes of `mask` of one head's page.
void copy_lanes(const PoolLayout &layout, uint32_t *to, const uint32_t *from, uint16_t mask) {
    for (size_t at = 0; at < layout.values_at; at += LANES)
        _mm512_mask_store_epi32(to + at, mask, _mm512_load_si512(from + at));
    to += layout.values_at, from += layout.values_at;
    for (int row = 0; row < PAGE_TOKENS / layout.per_unit; ++row) {
        const unsigned tokens = mask >> (row * layout.per_unit) & (layout.per_unit == 2 ? 3u : 1u);
        const unsigned halves = layout.per_unit == 1 ? tokens * 3 : tokens;
        const __mmask32 wanted = (halves & 1 ? 0x55555555u : 0) | (halves & 2 ? 0xAAAAAAAAu : 0);
        for (int d = 0; wanted && d < layout.width; d += LANES)
            _mm512_mask_storeu_epi16(to + size_t(row) * layout.width + d, wanted,
                                     _mm512_load_si512(from + size_t(row) * layout.width + d));
    }
}

template <class E>
void move_lane(const PoolLayout &layout, uint32_t *to_page, int to, uint32_t *from_page, int from) {
    using At = Elements<E>;
    auto *target = reinterpret_cast<E *>(to_page);
    auto *source = reinterpret_cast<E *>(from_page);
    for (int d = 0; d < layout.head_dim; ++d) {
        *At::key(layout, target, to, d) = *At::key(layout, source, from, d);
        *At::value(layout, target, to, d) = *At::value(layout, source, from, d);
    }
}

void put_page(const PoolLayout &layout, uint32_t *to, uint32_t *from, const PageCopy &copy,
              const int64_t *sources, const int64_t *destinations) {
    uint16_t mask = 0;
    for (int64_t i = copy.first; i < copy.last; ++i)
        mask = uint16_t(mask | 1u << destinations[i] % PAGE_TOKENS);
    for (int head = 0; head < layout.kv_heads; ++head) {
        if (copy.same_lanes) copy_lanes(layout, to, from, mask);
        for (int64_t i = copy.first; i < copy.last && !copy.same_lanes; ++i) {
            const int target = int(destinations[i] % PAGE_TOKENS);
            const int source = int(sources[i] % PAGE_TOKENS);
            if (layout.per_unit == 2)
                move_lane<uint16_t>(layout, to, target, from, source);
            else
                move_lane<uint32_t>(layout, to, target, from, source);
        }
        to += layout.head_units, from += layout.head_units;
    }
}

template <class E, class Move>
void for_elements(const PoolLayout &layout, uint32_t *pool, int32_t layer, const int64_t *slots,
                  int64_t count, Move move) {
    for (int64_t i = 0; i < count; ++i)
        for (int head = 0; head < layout.kv_heads; ++head) {
            uint32_t *units = layout.page(pool, layer, slots[i] / PAGE_TOKENS, head);
            auto *page = reinterpret_cast<E *>(units);
            const int lane = int(slots[i] % PAGE_TOKENS);
            const size_t key = (size_t(i) * 2 * layout.kv_heads + head) * layout.head_dim;
            const size_t value = key + size_t(layout.kv_heads) * layout.head_dim;
            for (int d = 0; d < layout.head_dim; ++d) {
                move(Elements<E>::key(layout, page, lane, d), key + d);
                move(Elements<E>::value(layout, page, lane, d), value + d);
            }
        }
}

}  // namespace

size_t pool_bytes(const AttentionShape &shape) {
    const PoolLayout layout(shape);
    return layout.page_at(layout.layers, 0) * sizeof(uint32_t);
}

void *pool_allocate(size_t bytes) {
    void *pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) return nullptr;
    madvise(pool, bytes, MADV_HUGEPAGE);  // optional: without it page tables take more time
    return pool;
}

void pool_free(void *pool, size_t bytes) { munmap(pool, bytes); }

void pool_copy(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *sources,
               const int64_t *destinations, int64_t count) {
    const PoolLayout layout(shape);
    const std::vector<PageCopy> copies = page_copies(sources, destinations, count);
    const Aligned<uint32_t> read(std::max<size_t>(copies.size(), 1) * layout.page_units());
    const size_t bytes = layout.page_units() * sizeof(uint32_t);
    auto *units = static_cast<uint32_t *>(pool);
    uint32_t *at = read.data();
    for (const PageCopy &copy : copies) {
        std::memcpy(at, units + layout.page_at(layer, copy.source), bytes);
        at += layout.page_units();
    }
    at = read.data();
    for (const PageCopy &copy : copies) {
        uint32_t *to = units + layout.page_at(layer, copy.destination);
        put_page(layout, to, at, copy, sources, destinations);
        at += layout.page_units();
    }
}

void pool_save(const AttentionShape &shape, const void *pool, const int32_t *frames,
               const int32_t *slots, int64_t count, void *host) {
    const PoolLayout layout(shape);
    const size_t units = layout.page_units(), layers = size_t(layout.layers);
    for (size_t layer = 0; layer < layers; ++layer)
        for (int64_t i = 0; i < count; ++i)
            std::memcpy(static_cast<uint32_t *>(host) + (size_t(slots[i]) * layers + layer) * units,
                        static_cast<const uint32_t *>(pool) + layout.page_at(int(layer), frames[i]),
                        units * sizeof(uint32_t));
}

void pool_load(const AttentionShape &shape, void *pool, const int32_t *frames, const int32_t *slots,
               int64_t count, const void *host) {
    const PoolLayout layout(shape);
    const size_t units = layout.page_units(), layers = size_t(layout.layers);
    for (size_t layer = 0; layer < layers; ++layer)
        for (int64_t i = 0; i < count; ++i)
            std::memcpy(
                static_cast<uint32_t *>(pool) + layout.page_at(int(layer), frames[i]),
                static_cast<const uint32_t *>(host) + (size_t(slots[i]) * layers + layer) * units,
                units * sizeof(uint32_t));
}

void pool_poison(const AttentionShape &shape, void *pool, const int32_t *pages, int64_t count) {
    const PoolLayout layout(shape);
    for (int layer = 0; layer < layout.layers; ++layer)
        for (int64_t i = 0; i < count; ++i)  // all ones is NaN in both element types
            std::memset(static_cast<uint32_t *>(pool) + layout.page_at(layer, pages[i]), 0xFF,
                        layout.page_units() * sizeof(uint32_t));
}

void pool_read(const AttentionShape &shape, const void *pool, int32_t layer, const int64_t *slots,
               int64_t count, void *plain) {
    const PoolLayout layout(shape);
    auto *units = const_cast<uint32_t *>(static_cast<const uint32_t *>(pool));
    auto read = [&](auto element) {
        using E = decltype(element);
        auto *to = static_cast<E *>(plain);
        for_elements<E>(layout, units, layer, slots, count, [&](E *at, size_t i) { to[i] = *at; });
    };
    layout.per_unit == 2 ? read(uint16_t()) : read(uint32_t());
}

void pool_write(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *slots,
                int64_t count, const void *plain) {
    const PoolLayout layout(shape);
    auto *units = static_cast<uint32_t *>(pool);
    auto write = [&](auto element) {
        using E = decltype(element);
        auto *from = static_cast<const E *>(plain);
        for_elements<E>(layout, units, layer, slots, count, [&](E *at, size_t i) { *at = from[i]; });
    };
    layout.per_unit == 2 ? write(uint16_t()) : write(uint32_t());
}

}  // namespace symphony
