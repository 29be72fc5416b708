// Attention and the pool alone, for Python: management of the pool, tests, and measurements. A step
// of the whole network does not use them.
#include <exception>
#include <new>

#include "attention.h"
#include "exports.h"
#include "team.h"

using namespace symphony;

namespace {

struct Bench {
    Bench(const AttentionShape &shape, void *pool) : team(shape.threads), attention(shape, pool) {}

    Team team;
    Attention attention;
};

}  // namespace

SYMPHONY_EXPORT uint64_t symphony_pool_bytes(const AttentionShape *shape) {
    return pool_bytes(*shape);
}

SYMPHONY_EXPORT void *symphony_pool_allocate(uint64_t bytes) { return pool_allocate(bytes); }

SYMPHONY_EXPORT void symphony_pool_free(void *pool, uint64_t bytes) { pool_free(pool, bytes); }

// Returns 0, or 1 if there is no memory for the copies.
SYMPHONY_EXPORT int32_t symphony_pool_copy(const AttentionShape *shape, void *pool,
                                           const int64_t *sources, const int64_t *destinations,
                                           int64_t count) try {
    for (int32_t layer = 0; layer < shape->layers; ++layer)
        pool_copy(*shape, pool, layer, sources, destinations, count);
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

SYMPHONY_EXPORT void symphony_pool_poison(const AttentionShape *shape, void *pool,
                                          const int32_t *pages, int64_t count) {
    pool_poison(*shape, pool, pages, count);
}

SYMPHONY_EXPORT void symphony_pool_save(const AttentionShape *shape, const void *pool,
                                        const int32_t *frames, const int32_t *slots, int64_t count,
                                        void *host) {
    pool_save(*shape, pool, frames, slots, count, host);
}

SYMPHONY_EXPORT void symphony_pool_load(const AttentionShape *shape, void *pool,
                                        const int32_t *frames, const int32_t *slots, int64_t count,
                                        const void *host) {
    pool_load(*shape, pool, frames, slots, count, host);
}

SYMPHONY_EXPORT void symphony_pool_read(const AttentionShape *shape, const void *pool, int32_t layer,
                                        const int64_t *slots, int64_t count, void *plain) {
    pool_read(*shape, pool, layer, slots, count, plain);
}

SYMPHONY_EXPORT void symphony_pool_write(const AttentionShape *shape, void *pool, int32_t layer,
                                         const int64_t *slots, int64_t count, const void *plain) {
    pool_write(*shape, pool, layer, slots, count, plain);
}

// Null if there is no memory or no thread.
SYMPHONY_EXPORT void *symphony_attention_create(const AttentionShape *shape, void *pool) try {
    return new Bench(*shape, pool);
} catch (const std::exception &) {
    return nullptr;
}

SYMPHONY_EXPORT void symphony_attention_destroy(void *bench) { delete static_cast<Bench *>(bench); }

SYMPHONY_EXPORT int32_t symphony_attention_plan(void *bench, const StepRows *rows) try {
    static_cast<Bench *>(bench)->attention.plan(*rows);
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

// Computes `count` layers one after the other, as a step does.
SYMPHONY_EXPORT void symphony_attention_compute(void *bench, const AttentionLayer *layers,
                                                int32_t count) {
    Team &team = static_cast<Bench *>(bench)->team;
    Attention &attention = static_cast<Bench *>(bench)->attention;
    team.begin();
    for (int32_t i = 0; i < count; ++i) {
        const AttentionLayer &layer = layers[i];
        team.run(attention.enter_tasks(),
                 [&](int32_t task, int32_t thread) { attention.enter(layer, task, thread); });
        team.run(attention.attend_tasks(layer.layer),
                 [&](int32_t task, int32_t thread) { attention.attend(layer, task, thread); });
        team.run(attention.merge_tasks(layer.layer),
                 [&](int32_t task, int32_t thread) { attention.merge(layer, task, thread); });
    }
    team.end();
}
