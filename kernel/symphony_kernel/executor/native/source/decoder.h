// A decoder-only transformer of the Llama family, and a step of it from tokens to logits.
//
// The residual stream, the sums of all products and the logits are float32. Inputs of products have
// the model's type, or float32 where bfloat16 is multiplied as float32. A row's arithmetic does not
// depend on other rows.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "adapters.h"
#include "attention.h"
#include "memory.h"
#include "product.h"
#include "sampling.h"
#include "team.h"

namespace symphony {

struct DecoderShape : AttentionShape {
    int32_t hidden, middle, vocab;
    int32_t qkv_bias, output_bias, mlp_bias, qk_norm;  // whether the model has them
};
// As in Python: seven numbers, and four bytes of padding.
static_assert(sizeof(DecoderShape) == sizeof(AttentionShape) + 8 * sizeof(int32_t));

// The tensors of a checkpoint. Those from HEAD on belong to no layer.
enum class Part : int32_t { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, INPUT_NORM, QUERY_NORM,
                            KEY_NORM, MIDDLE_NORM, HEAD, LAST_NORM, COUNT };

// The phases of a step whose time is measured.
enum class Phase : int32_t { PLAN, NORM, QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, ANSWERS,
                             COUNT };

struct StepTokens {
    const uint32_t *tokens;  // [rows.tokens]
    const int32_t *wanted;   // [wanted_count] tokens whose logits may be wanted
    int32_t wanted_count;
    // [rows.rows] the adapter of each row, or null. Null: no row has one.
    const AdapterTable *const *adapters;
};

// The wanted results at the first wanted tokens of a step, all of which have logits.
struct StepAnswers {
    Sampler *sampler;
    const Place *places;  // [count]
    int32_t count;
    // Not 0 once the masks of the places are ready. Null: they are ready.
    const int32_t *allowed;
};

// UNANSWERED: all is computed but the results, since the masks of the places are not ready.
enum class Fault : int32_t { NONE, MEMORY, TOKEN, PAGE, POSITION, UNANSWERED };

// Not for two calls at once. Pointers marked "kept" must stay valid.
class Decoder {
  public:
    static std::unique_ptr<Decoder> make(const DecoderShape &shape, void *pool);
    virtual ~Decoder() = default;

    // Packs a matrix [outputs][inputs] in the model's type, or quantized, or copies a vector in
    // float32. Parts of one matrix (query, key and value; gate and up) have one format.
    virtual void set_matrix(Part part, int32_t layer, const void *values) = 0;
    virtual void set_quantized(Part part, int32_t layer, const QuantizedRows &values) = 0;
    virtual void set_bias(Part part, int32_t layer, const float *values) = 0;
    virtual void set_norm(Part part, int32_t layer, const float *values) = 0;
    // Kept: [vocab][hidden] in the model's type.
    virtual void set_embedding(const void *values) = 0;
    // Kept: [positions][head_dim / 2] each.
    virtual void set_rotation(const float *cosines, const float *sines, int32_t positions) = 0;
    // Kept: [Phase::COUNT] seconds, accumulated; null: nothing is measured.
    virtual void set_profile(double *seconds) = 0;
    // Its threads, for work after the logits.
    virtual Team &team() = 0;

    // Returns a fault if a step names anything outside of the vocabulary, the pool or the
    // rotations.
    virtual Fault check(const StepRows &rows, const StepTokens &tokens) const = 0;
    // Computes a step without a fault (see `check`): the logits of the first `count` wanted tokens
    // into [count][vocab], and the results, which may overwrite the logits. Returns NONE or
    // UNANSWERED.
    virtual Fault step(const StepRows &rows, const StepTokens &tokens, float *logits, int32_t count,
                       const StepAnswers &answers) = 0;
    // Logits of wanted tokens [first, first + count) of the last step.
    virtual void logits(int32_t first, int32_t count, float *logits) = 0;
    // What the head multiplies for them, [count][hidden]: after the last norm.
    virtual void hidden(int32_t first, int32_t count, float *values) = 0;
};

}  // namespace symphony
