#include "sampling.h"

#include <cstring>

#include "sampling_scan.h"
#include "team.h"

namespace symphony {

namespace {

// top_p looks at this many of the most likely tokens, then at more, then at all.
constexpr int32_t HEADS[] = {64, 1024};
// For at most so many tokens the noise is computed without a bound.
constexpr size_t FEW = 32;
// If at most one in so many tokens is allowed, their logits are moved together.
constexpr int32_t SPARSE = 2;

// Logits by their distance from the best one.
struct Buckets {
    static constexpr int32_t COUNT = 2048;
    static constexpr float SPAN_MAX = 32.0f;  // logits below e^-32 of the best share a bucket

    Buckets(float best, float least) : best(best) {
        const float span = std::min(best - least, SPAN_MAX);
        per_unit = span > 0.0f ? float(COUNT - 1) / span : 0.0f;
    }
    __m512i of(__m512 x) const {
        const __m512 at = _mm512_mul_ps(_mm512_sub_ps(_mm512_set1_ps(best), x),
                                        _mm512_set1_ps(per_unit));
        return _mm512_cvttps_epi32(_mm512_min_ps(at, _mm512_set1_ps(float(COUNT - 1))));
    }

    float best, per_unit;
};

// The tokens that a truncation keeps: those with keys from `key` on and logarithms from `log` on.
struct Cut {
    uint64_t key = 0;
    float log = -INFINITE;
    // Filled when the tokens are few: their keys, best first.
    std::vector<uint64_t> few;
};

// The best token by score; of equals the first, by key (best first) or by token.
struct Winner {
    bool by_key;
    float score = -INFINITE;
    uint32_t token = 0;
    uint64_t key = 0;
    bool any = false;

    void meet(float met_score, uint32_t met_token, uint64_t met_key) {
        const bool earlier = by_key ? met_key > key : met_token < token;
        if (any && !(met_score > score) && !(met_score == score && earlier)) return;
        any = true, score = met_score, token = met_token, key = met_key;
    }
};

inline uint32_t noise_bits_of(uint32_t token, uint64_t key) {
    const __m512i bits = noise_bits(_mm512_set1_epi32(int(token)), key);
    return uint32_t(_mm_cvtsi128_si32(_mm512_castsi512_si128(bits)));
}

inline __m512i sixteen_from(int32_t first) {
    const __m512i steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(steps, _mm512_set1_epi32(first));
}

// Bits of up to 64 tokens from `first`, which is a multiple of 64.
inline uint64_t bits_at(const uint8_t *bits, int32_t first, int32_t vocab) {
    uint64_t found = 0;
    const int32_t left = vocab - first;
    if (left >= 64) {
        std::memcpy(&found, bits + first / 8, sizeof found);
        return found;
    }
    std::memcpy(&found, bits + first / 8, size_t(left + 7) / 8);
    return found & ((uint64_t(1) << left) - 1);
}

// The smallest float32 that is no less than x.
inline float rounded_up_float(double x) {
    const float near = float(x);
    return double(near) < x ? std::nextafterf(near, INFINITE) : near;
}

}  // namespace

struct Sampler::Scratch {
    explicit Scratch(int32_t vocab) : vocab(vocab), count(vocab) {}

    const int32_t vocab;
    // The logits of the place that are scanned, and their tokens, in order; null: all.
    int32_t count;
    const uint32_t *tokens = nullptr;
    std::vector<float> moved;
    std::vector<uint32_t> moved_tokens;
    Best best;
    std::vector<float> scaled;
    std::vector<double> masses;
    std::vector<uint64_t> bucket;
    Cut cut;
    uint64_t noise_key = 0;  // of the place

    void answer(const Place &place, float *logits) {
        if (Get(place.get) == Get::NONE) return;
        noise_key = key_of_noise(place.seed, place.position);
        logits = shape(place, logits);
        if (Get(place.get) == Get::LOGITS) {
            std::memcpy(place.out, logits, size_t(vocab) * sizeof(float));
            return;
        }
        const float top = maximum(logits, count);
        const Logs logs{top, log_sum(logits, count, top)};
        if (Get(place.get) == Get::OF) {
            for (int32_t i = 0; i < place.count; ++i) {
                const float log = logs.of(logits[place.of[i]]);
                std::memcpy(place.out + size_t(i) * sizeof log, &log, sizeof log);
            }
            return;
        }
        uint8_t *out = place.out;
        if (Get(place.get) != Get::TOP) {
            const uint32_t at = choose(place, logits, logs);
            put(out, token_at(at), logs.of(logits[at]));
            out += 8;
        }
        if (place.count) out = put_best(place, logits, logs, out);
        if (place.forbidden && Get(place.get) != Get::TOP) {
            const float kept = std::exp(logs.best + logs.sum - unmasked.best - unmasked.sum);
            forbidden.mass = std::max(1.0f - kept, 0.0f);
            std::memcpy(out, &forbidden, sizeof forbidden);
        }
    }

  private:
    Logs unmasked{0.0f, 0.0f};  // of the place, if `Forbidden` is wanted
    Forbidden forbidden;

    uint8_t *put_best(const Place &place, const float *logits, const Logs &logs, uint8_t *out) {
        for (uint64_t key : best.find(logits, count, place.count)) {
            put(out, token_at(token_of(key)), logs.of(logits[token_of(key)]));
            out += 8;
        }
        return out;
    }

    static void put(uint8_t *out, uint32_t token, float log) {
        std::memcpy(out, &token, sizeof token);
        std::memcpy(out + sizeof token, &log, sizeof log);
    }

    // The token of a scanned logit. All code below identifies logits by their index.
    uint32_t token_at(uint32_t at) const { return tokens ? tokens[at] : at; }

    // Penalizes repetition, adds the bias in place and rules out tokens that are not allowed. Returns the logits to scan.
    float *shape(const Place &place, float *logits) {
        const float inverse = 1.0f / place.repetition;
        for (int32_t i = 0; i < place.seen_count; ++i) {
            float &logit = logits[place.seen[i]];
            logit *= logit > 0.0f ? inverse : place.repetition;
        }
        for (int32_t i = 0; i < place.bias_count; ++i)
            logits[place.bias_tokens[i]] += place.bias_values[i];
        count = vocab;
        tokens = nullptr;
        if (place.forbidden) {
            const float best_logit = maximum(logits, vocab);
            unmasked = Logs{best_logit, log_sum(logits, vocab, best_logit)};
            const uint32_t first = find(logits, vocab, best_logit);
            forbidden = Forbidden{vocab, 0.0f, first, unmasked.of(logits[first])};
        }
        if (!place.allow) return logits;
        const int32_t allowed = forbidden.allowed = count_allowed(place.allow);
        const bool by_token = Get(place.get) == Get::OF || Get(place.get) == Get::LOGITS;
        if (by_token || allowed > vocab / SPARSE || allowed < std::max(place.count, 1)) {
            rule_out(place.allow, logits);
            return logits;
        }
        move_together(place.allow, logits, allowed);
        return moved.data();
    }

    int32_t count_allowed(const uint8_t *allow) const {
        int32_t found = 0;
        for (int32_t i = 0; i < vocab; i += 64) {
            found += __builtin_popcountll(bits_at(allow, i, vocab));
        }
        return found;
    }

    // The remaining logits keep their order, so that the first of equals has the lowest token.
    void move_together(const uint8_t *allow, const float *logits, int32_t allowed) {
        const size_t room = size_t(allowed) + LANES;  // whole registers are stored
        if (moved.size() < room) moved.resize(room), moved_tokens.resize(room);
        int32_t at = 0;
        for (int32_t i = 0; i < vocab; i += 64) {
            uint64_t left = bits_at(allow, i, vocab);
            for (int32_t first = i; left; left >>= LANES, first += LANES) {
                const __mmask16 lanes = __mmask16(left);
                if (!lanes) continue;
                const __m512 found = _mm512_maskz_compress_ps(lanes, load(logits + first, lanes));
                const __m512i ids = _mm512_maskz_compress_epi32(lanes, sixteen_from(first));
                store(moved.data() + at, found);
                _mm512_storeu_si512(moved_tokens.data() + at, ids);
                at += __builtin_popcount(lanes);
            }
        }
        count = at;
        tokens = moved_tokens.data();
    }

    void rule_out(const uint8_t *allow, float *logits) const {
        const __m512 ruled_out = _mm512_set1_ps(-INFINITE);
        for (int32_t i = 0; i < vocab; i += LANES) {
            const __mmask16 lanes = first_lanes(std::min(vocab - i, LANES));
            uint16_t allowed = allow[i / 8];
            if (vocab - i > 8) allowed = uint16_t(allowed | allow[i / 8 + 1] << 8);
            _mm512_mask_storeu_ps(logits + i, lanes & __mmask16(~allowed), ruled_out);
        }
    }

    uint32_t choose(const Place &place, const float *logits, const Logs &logs) {
        if (Get(place.get) == Get::ARGMAX || place.temperature == 0.0f)
            return find(logits, count, logs.best);
        if (place.top_k <= 0 && place.top_p >= 1.0 && place.min_p <= 0.0) {
            const uint32_t first = token_at(find(logits, count, logs.best));
            const float at_best = noise(noise_bits_of(first, noise_key));
            return draw(place, logits, logs.best / place.temperature + at_best, nullptr, logs);
        }
        scale(place.temperature, logits);
        const float top = maximum(scaled.data(), count);
        Logs all{top, 0.0f};
        if (place.top_p < 1.0 || place.min_p > 0.0) all.sum = log_sum(scaled.data(), count, top);
        truncate(place, all);
        return cut.few.empty() ? draw_truncated(place, all) : draw_few();
    }

    void scale(float temperature, const float *logits) {
        scaled.resize(size_t(count));
        const __m512 by = _mm512_set1_ps(temperature);
        for_lanes(logits, count, [&](int32_t i, __mmask16 lanes, __m512 x) {
            store(scaled.data() + i, _mm512_div_ps(x, by), lanes);
        });
    }

    // ---- Truncation, the semantics of `sampling._kept` ----------------------------------------

    void truncate(const Place &place, const Logs &logs) {
        cut.key = 0;
        cut.log = -INFINITE;
        cut.few.clear();
        if (place.min_p > 0.0)
            cut.log = rounded_up_float(double(logs.of(logs.best)) + std::log(place.min_p));
        if (place.top_k > 0 && place.top_k < vocab)
            cut_at(best.find(scaled.data(), count, std::min(place.top_k, count)), place, logs,
                   Within::THESE);
        else if (place.top_p < 1.0)
            cut_mass(place, logs);
    }

    // Whether the best tokens, in which a cut is made, are all tokens, the only ones that may be
    // kept, or followed by more.
    enum class Within { ALL, THESE, MORE };

    // Cuts within the best tokens. If more tokens follow, returns whether the best suffice. Leaves
    // their probabilities in `masses`.
    bool cut_at(const std::vector<uint64_t> &keys, const Place &place, const Logs &logs,
                Within within) {
        size_t left = keys.size();
        if (place.top_p < 1.0) {
            masses.clear();
            double total = 0.0;
            for (uint64_t key : keys) {
                masses.push_back(std::exp(double(logs.of(scaled[token_of(key)]))));
                total += masses.back();
            }
            double sum = 0.0;
            const double bound = place.top_p * (within == Within::THESE ? total : 1.0);
            size_t kept = 0;
            while (kept < left && sum < bound) {
                sum += masses[kept];
                ++kept;
            }
            if (kept == left && within == Within::MORE) return false;
            left = std::max<size_t>(kept, 1);
        }
        cut.key = keys[left - 1];
        if (left <= FEW) {
            for (size_t i = 0; i < left; ++i)
                if (logs.of(scaled[token_of(keys[i])]) >= cut.log) cut.few.push_back(keys[i]);
        }
        return true;
    }

    void cut_mass(const Place &place, const Logs &logs) {
        if (count <= HEADS[1]) {
            cut_at(best.find(scaled.data(), count, count), place, logs, Within::ALL);
            return;
        }
        for (int32_t head : HEADS) {
            if (cut_at(best.find(scaled.data(), count, head), place, logs, Within::MORE)) return;
            double mass = 0.0;
            for (double each : masses) mass += each;
            if (mass < 0.5 * place.top_p) break;
        }
        cut_flat(place, logs);
    }

    // If most tokens are kept: instead of sorting them, sums up the masses of buckets, and sorts
    // the bucket in which the sum passes the bound.
    void cut_flat(const Place &place, const Logs &logs) {
        const Buckets buckets{logs.best, least_finite(scaled.data(), count)};
        masses.assign(Buckets::COUNT, 0.0);
        for_lanes(scaled.data(), count, [&](int32_t, __mmask16 lanes, __m512 x) {
            int32_t at[LANES];
            float terms[LANES];
            const __m512 log = _mm512_sub_ps(_mm512_sub_ps(x, _mm512_set1_ps(logs.best)),
                                             _mm512_set1_ps(logs.sum));
            _mm512_storeu_si512(at, buckets.of(x));
            _mm512_storeu_ps(terms, exp_negative(log));
            for (int32_t j = 0; j < LANES && lanes >> j; ++j) masses[size_t(at[j])] += terms[j];
        });
        double before = 0.0;
        int32_t crossing = 0;
        while (crossing < Buckets::COUNT && before + masses[size_t(crossing)] < place.top_p)
            before += masses[size_t(crossing++)];
        if (crossing == Buckets::COUNT) return;
        bucket.clear();
        const __m512i wanted = _mm512_set1_epi32(crossing);
        for_lanes(scaled.data(), count, [&](int32_t i, __mmask16 lanes, __m512 x) {
            uint32_t left = _mm512_mask_cmpeq_epi32_mask(lanes, buckets.of(x), wanted);
            for (; left; left &= left - 1) {
                const uint32_t token = uint32_t(i + __builtin_ctz(left));
                bucket.push_back(order_key(scaled[token], token));
            }
        });
        std::sort(bucket.begin(), bucket.end(), std::greater<uint64_t>());
        for (uint64_t key : bucket) {
            if (before >= place.top_p) break;
            cut.key = key;
            before += std::exp(double(logs.of(scaled[token_of(key)])));
        }
    }

    // ---- Draws --------------------------------------------------------------------------------

    uint32_t draw_few() const {
        Winner winner{true};
        for (uint64_t key : cut.few) {
            const uint32_t at = token_of(key);
            winner.meet(scaled[at] + noise(noise_bits_of(token_at(at), noise_key)), at, key);
        }
        return winner.token;
    }

    uint32_t draw_truncated(const Place &place, const Logs &logs) const {
        Place unscaled = place;
        unscaled.temperature = 1.0f;
        const uint32_t first = token_at(find(scaled.data(), count, logs.best));
        const float at_best = logs.best + noise(noise_bits_of(first, noise_key));
        return draw(unscaled, scaled.data(), at_best, &cut, logs);
    }

    // The noisy best of the tokens within the cut, if there is one. `reached` is the score of one
    // of them.
    uint32_t draw(const Place &place, const float *logits, float reached, const Cut *within,
                  const Logs &logs) const {
        Winner winner{within != nullptr};
        const float by = 1.0f / place.temperature;
        // The possible error of the bound and of the division by multiplication.
        const float slack = 1e-6f * (std::fabs(logs.best * by) + 64.0f);
        __m512 wanted = _mm512_set1_ps(reached - slack);
        for_lanes(logits, count, [&](int32_t i, __mmask16 lanes, __m512 x) {
            const __m512i ids = tokens ? _mm512_maskz_loadu_epi32(lanes, tokens + i)
                                       : sixteen_from(i);
            const __m512i bits = noise_bits(ids, noise_key);
            const __m512 bound = _mm512_fmadd_ps(x, _mm512_set1_ps(by), noise_bound(bits));
            uint32_t left = _mm512_mask_cmp_ps_mask(lanes, bound, wanted, _CMP_NLT_UQ);
            if (__builtin_expect(left == 0, 1)) return;
            uint32_t found[LANES];
            _mm512_storeu_si512(found, bits);
            for (; left; left &= left - 1) {
                const int lane = __builtin_ctz(left);
                const float logit = logits[i + lane];
                const uint32_t token = uint32_t(i + lane);
                const uint64_t key = within ? order_key(logit, token) : 0;
                if (within && (key < within->key || !(logs.of(logit) >= within->log))) continue;
                winner.meet(logit / place.temperature + noise(found[lane]), token, key);
            }
            if (winner.any) wanted = _mm512_max_ps(wanted, _mm512_set1_ps(winner.score - slack));
        });
        return winner.token;
    }
};

Sampler::Sampler(int32_t vocab, int32_t threads) : vocab_(vocab) {
    for (int32_t i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<Scratch>(vocab));
}

Sampler::~Sampler() = default;

void Sampler::answer(Team *team, const Place *places, int32_t count, float *logits) {
    auto answer_one = [&](int32_t place, int32_t thread) {
        scratch_[size_t(thread)]->answer(places[place], logits + size_t(place) * size_t(vocab_));
    };
    if (team) {
        team->run(count, answer_one);
    } else {
        for (int32_t place = 0; place < count; ++place) answer_one(place, 0);
    }
}

}  // namespace symphony
