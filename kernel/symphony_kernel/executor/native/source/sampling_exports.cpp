// Results at the places of a step, for Python.
#include <exception>
#include <new>

#include "decoder.h"
#include "exports.h"
#include "sampling.h"

using namespace symphony;

// Null if there is no memory.
SYMPHONY_EXPORT void *symphony_sampler_create(int32_t vocab, int32_t threads) try {
    return new Sampler(vocab, threads);
} catch (const std::exception &) {
    return nullptr;
}

SYMPHONY_EXPORT void symphony_sampler_destroy(void *sampler) {
    delete static_cast<Sampler *>(sampler);
}

// With a decoder, its threads share the places. Returns 0, or 1 if there is no memory.
SYMPHONY_EXPORT int32_t symphony_sampler_answer(void *sampler, void *decoder, const Place *places,
                                                int32_t count, float *logits) try {
    Team *team = decoder ? &static_cast<Decoder *>(decoder)->team() : nullptr;
    if (!team) {
        static_cast<Sampler *>(sampler)->answer(nullptr, places, count, logits);
    } else {
        const Awake awake(*team);
        static_cast<Sampler *>(sampler)->answer(team, places, count, logits);
    }
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}
