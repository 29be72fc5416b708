// The network, for Python.
#include <exception>
#include <new>

#include "decoder.h"
#include "exports.h"

using namespace symphony;

// Null if there is no memory or no thread.
SYMPHONY_EXPORT void *symphony_decoder_create(const DecoderShape *shape, void *pool) try {
    return Decoder::make(*shape, pool).release();
} catch (const std::exception &) {
    return nullptr;
}

SYMPHONY_EXPORT void symphony_decoder_destroy(void *decoder) {
    delete static_cast<Decoder *>(decoder);
}

SYMPHONY_EXPORT void symphony_decoder_set_matrix(void *decoder, int32_t part, int32_t layer,
                                                 const void *values) {
    static_cast<Decoder *>(decoder)->set_matrix(static_cast<Part>(part), layer, values);
}

SYMPHONY_EXPORT void symphony_decoder_set_quantized(void *decoder, int32_t part, int32_t layer,
                                                    const QuantizedRows *values) {
    static_cast<Decoder *>(decoder)->set_quantized(static_cast<Part>(part), layer, *values);
}

SYMPHONY_EXPORT void symphony_decoder_set_bias(void *decoder, int32_t part, int32_t layer,
                                               const float *values) {
    static_cast<Decoder *>(decoder)->set_bias(static_cast<Part>(part), layer, values);
}

SYMPHONY_EXPORT void symphony_decoder_set_norm(void *decoder, int32_t part, int32_t layer,
                                               const float *values) {
    static_cast<Decoder *>(decoder)->set_norm(static_cast<Part>(part), layer, values);
}

SYMPHONY_EXPORT void symphony_decoder_set_embedding(void *decoder, const void *values) {
    static_cast<Decoder *>(decoder)->set_embedding(values);
}

SYMPHONY_EXPORT void symphony_decoder_set_rotation(void *decoder, const float *cosines,
                                                   const float *sines, int32_t positions) {
    static_cast<Decoder *>(decoder)->set_rotation(cosines, sines, positions);
}

// Makes the next step write to an eventfd; see `Team::ring`.
SYMPHONY_EXPORT void symphony_decoder_ring(void *decoder, int32_t bell) {
    static_cast<Decoder *>(decoder)->team().ring(bell);
}

SYMPHONY_EXPORT void symphony_decoder_set_profile(void *decoder, double *seconds) {
    static_cast<Decoder *>(decoder)->set_profile(seconds);
}

// Returns a Fault. Unless it is MEMORY or UNANSWERED, a fault means that nothing was computed.
SYMPHONY_EXPORT int32_t symphony_decoder_step(void *decoder, const StepRows *rows,
                                              const StepTokens *tokens, float *logits,
                                              int32_t count, void *sampler, const Place *places,
                                              int32_t place_count, const int32_t *allowed) try {
    const StepAnswers answers{static_cast<Sampler *>(sampler), places, place_count, allowed};
    Fault fault = static_cast<Decoder *>(decoder)->check(*rows, *tokens);
    if (fault == Fault::NONE) {
        fault = static_cast<Decoder *>(decoder)->step(*rows, *tokens, logits, count, answers);
    }
    return static_cast<int32_t>(fault);
} catch (const std::bad_alloc &) {
    return static_cast<int32_t>(Fault::MEMORY);
}

SYMPHONY_EXPORT void symphony_decoder_logits(void *decoder, int32_t first, int32_t count,
                                             float *logits) {
    static_cast<Decoder *>(decoder)->logits(first, count, logits);
}

SYMPHONY_EXPORT void symphony_decoder_hidden(void *decoder, int32_t first, int32_t count,
                                             float *values) {
    static_cast<Decoder *>(decoder)->hidden(first, count, values);
}
