// Scans of all logits of a place: maximum, sum, the best tokens, the noisy best.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "attention_units.h"

namespace symphony {

// Keys that sort as floats do, -0 next to 0; among equals the lower token has the higher key.
inline uint64_t order_key(float value, uint32_t token) {
    uint32_t bits;
    value += 0.0f;
    std::memcpy(&bits, &value, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(bits) << 32 | (0xFFFFFFFFu - token);
}

inline uint32_t token_of(uint64_t key) { return 0xFFFFFFFFu - uint32_t(key); }

// Calls work(first token, its lanes, 16 logits); lanes past the end hold -inf.
template <class Work>
inline void for_lanes(const float *logits, int32_t count, Work work) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) work(i, __mmask16(0xFFFF), load(logits + i));
    if (i == count) return;
    const __mmask16 lanes = first_lanes(count - i);
    const __m512 none = _mm512_set1_ps(-INFINITE);
    work(i, lanes, _mm512_mask_loadu_ps(none, lanes, logits + i));
}

inline float maximum(const float *logits, int32_t count) {
    const __m512 none = _mm512_set1_ps(-INFINITE);
    __m512 a = none, b = none, c = none, d = none;
    int32_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        a = _mm512_max_ps(load(logits + i), a);
        b = _mm512_max_ps(load(logits + i + LANES), b);
        c = _mm512_max_ps(load(logits + i + 2 * LANES), c);
        d = _mm512_max_ps(load(logits + i + 3 * LANES), d);
    }
    for_lanes(logits + i, count - i, [&](int32_t, __mmask16, __m512 x) { a = _mm512_max_ps(x, a); });
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

// The least of the finite logits.
inline float least_finite(const float *logits, int32_t count) {
    const __m512 none = _mm512_set1_ps(-INFINITE);
    __m512 least = _mm512_set1_ps(INFINITE);
    for_lanes(logits, count, [&](int32_t, __mmask16, __m512 x) {
        const __mmask16 finite = _mm512_cmp_ps_mask(x, none, _CMP_GT_OQ);
        least = _mm512_mask_min_ps(least, finite, x, least);
    });
    return _mm512_reduce_min_ps(least);
}

// The first token with this value; 0 if there is none.
inline uint32_t find(const float *logits, int32_t count, float value) {
    const __m512 wanted = _mm512_set1_ps(value);
    for (int32_t i = 0; i < count; i += LANES) {
        const __mmask16 lanes = first_lanes(std::min(count - i, LANES));
        const __mmask16 equal = _mm512_mask_cmp_ps_mask(lanes, load(logits + i, lanes), wanted,
                                                        _CMP_EQ_OQ);
        if (equal) return uint32_t(i + __builtin_ctz(equal));
    }
    return 0;
}

inline __m512 exp_negative(__m512 x) {
    return exp2_negative<6>(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)));
}

// The logarithm of the sum of exp(logit - maximum).
inline float log_sum(const float *logits, int32_t count, float best) {
    constexpr int32_t PART = 64 * LANES;  // summed in float32, the parts in float64
    const __m512 base = _mm512_set1_ps(best);
    double sum = 0.0;
    for (int32_t begin = 0; begin < count; begin += PART) {
        __m512 part = _mm512_setzero_ps();
        for_lanes(logits + begin, std::min(count - begin, PART), [&](int32_t, __mmask16, __m512 x) {
            part = _mm512_add_ps(part, exp_negative(_mm512_sub_ps(x, base)));
        });
        sum += double(_mm512_reduce_add_ps(part));
    }
    return float(std::log(sum));
}

// The logarithms of the probabilities of a place's tokens.
struct Logs {
    float best, sum;
    float of(float logit) const { return logit - best - sum; }
};

// Finds the best tokens of a place in one pass. It keeps logits that are better than the worst of
// the best at the time when the buffer was last full.
class Best {
  public:
    // The keys of the `count` best tokens, best first; valid until the next call.
    const std::vector<uint64_t> &find(const float *logits, int32_t vocab, int32_t count) {
        keys_.clear();
        count_ = size_t(count);
        room_ = std::max<size_t>(4 * count_, 512);
        if (keys_.capacity() < room_ + LANES) keys_.reserve(room_ + LANES);
        worst_ = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
        for_lanes(logits, vocab, [&](int32_t i, __mmask16 lanes, __m512 x) {
            const __mmask16 better = _mm512_mask_cmp_ps_mask(lanes, x, worst_, _CMP_NLE_UQ);
            if (__builtin_expect(better != 0, 0)) add(i, better, x);
        });
        keep_best();
        std::sort(keys_.begin(), keys_.end(), std::greater<uint64_t>());
        return keys_;
    }

  private:
    void add(int32_t first, __mmask16 lanes, __m512 x) {
        float values[LANES];
        _mm512_storeu_ps(values, x);
        for (uint32_t left = lanes; left; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            keys_.push_back(order_key(values[lane], uint32_t(first + lane)));
        }
        if (keys_.size() < room_) return;
        keep_best();
        const uint32_t bits = uint32_t(keys_.back() >> 32);
        const uint32_t plain = bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits;
        worst_ = _mm512_castsi512_ps(_mm512_set1_epi32(int(plain)));
    }

    // The last one is the worst.
    void keep_best() {
        if (keys_.size() > count_) {
            std::nth_element(keys_.begin(), keys_.begin() + ptrdiff_t(count_) - 1, keys_.end(),
                             std::greater<uint64_t>());
            keys_.resize(count_);
        }
    }

    std::vector<uint64_t> keys_;
    size_t count_ = 0, room_ = 0;
    __m512 worst_;
};

// ---- Noise ------------------------------------------------------------------------------------

// splitmix64's finaliser.
inline uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

inline uint64_t key_of_noise(uint64_t seed, int32_t position) {
    return mixed(mixed(seed) + uint64_t(position) * 0xD1342543DE82EF95u);
}

// 31 bits of the hash of a place's key and 16 tokens.
inline __m512i noise_bits(__m512i tokens, uint64_t key) {
    const __m512i low = _mm512_set1_epi32(int(uint32_t(key)));
    const __m512i high = _mm512_set1_epi32(int(uint32_t(key >> 32)));
    auto times = [](__m512i x, uint32_t by) {
        return _mm512_mullo_epi32(x, _mm512_set1_epi32(int(by)));
    };
    __m512i x = _mm512_add_epi32(times(tokens, 2654435769u), low);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = times(x, 2246822507u);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
    x = times(_mm512_xor_si512(x, high), 3266489909u);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = times(x, 668265261u);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    return _mm512_srli_epi32(x, 1);
}

inline float noise(uint32_t bits) {
    const float uniform = (float(int32_t(bits)) + 0.5f) * 0x1p-31f;
    const float log = float(std::log1p(-double(uniform)));
    return -float(std::log(-double(log)));
}

// An upper bound of the noise: -log(-log(1 - u)) <= -log(u), whose logarithm is bounded by straight
// lines.
inline __m512 noise_bound(__m512i bits) {
    const __m512 u = _mm512_add_ps(_mm512_cvtepi32_ps(bits), _mm512_set1_ps(0.5f));
    const __m512 log2 = _mm512_cvtepi32_ps(_mm512_castps_si512(u));  // (127 + log2 u) * 2^23, nearly
    return _mm512_fmadd_ps(log2, _mm512_set1_ps(-0.693147181f * 0x1p-23f),
                           _mm512_set1_ps(0.693147181f * 158.0f + 5e-5f));
}

}  // namespace symphony
