// From logits to results: every `get` of `pred`, place by place.
//
// The semantics and the noise are those of sampling.py, which documents them: a token is the argmax
// of logit / temperature + noise(seed, position, token) over the tokens that truncation keeps. The
// noise of a token costs two logarithms; a bound without logarithms rules out most tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace symphony {

class Team;

// `options.Get`.
enum class Get : int32_t { NONE, ARGMAX, SAMPLE, TOP, OF, LOGITS };

// What is wanted at one place, and where the result goes. Python has the same as a NumPy type.
struct Place {
    uint64_t seed;               // of the noise, with `position`
    const uint8_t *allow;        // a bit for each token, at least one set; null: all
    const uint32_t *bias_tokens;
    const float *bias_values;
    const uint32_t *seen;        // whose repetition is penalized
    const uint32_t *of;          // for OF
    uint8_t *out;
    double top_p, min_p;
    float temperature;           // 0: argmax
    int32_t top_k;               // 0: all
    int32_t get;
    int32_t count;               // of TOP or OF; of the best tokens that follow ARGMAX and SAMPLE
    int32_t bias_count;
    int32_t position;            // of the place's token
    int32_t seen_count;
    float repetition;            // divides the positive logits of `seen`, multiplies the others
    int32_t forbidden;           // whether `Forbidden` follows the record of a token
    int32_t unused;
};

// What a mask forbade at a place.
struct Forbidden {
    int32_t allowed;  // tokens
    float mass;       // the probability of all other tokens, without the mask
    uint32_t best;    // the best token without the mask
    float log;        // its log-probability
};

class Sampler {
  public:
    Sampler(int32_t vocab, int32_t threads);
    ~Sampler();
    Sampler(const Sampler &) = delete;
    Sampler &operator=(const Sampler &) = delete;

    // Computes the results at `count` places of [count][vocab] logits, which are overwritten.
    // Without a team, which must be awake, the caller computes alone. Not for two calls at once.
    void answer(Team *team, const Place *places, int32_t count, float *logits);

  private:
    struct Scratch;
    const int32_t vocab_;
    std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace symphony
