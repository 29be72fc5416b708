// The arithmetic of attention on the pool's units of 4 bytes: a pair of bfloat16 or one float32.
#pragma once

#include <algorithm>
#include <limits>

#include "types.h"

namespace symphony {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

#ifdef __AVX512BF16__
constexpr bool COMPUTES_BF16 = true;
#else
constexpr bool COMPUTES_BF16 = false;
#endif

// 16 floats to 16 bfloat16, to nearest even.
inline __m256i to_bfloat16(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_set1_epi32(up, nan, 0x7FC00000);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#endif
}

// The numbers of a head's 16 from `d` on that exist; all of them if a head is `WHOLE`, a multiple
// of 16: masked accesses are slow.
template <bool WHOLE>
inline __m512 load_part(const float *from, int left) {
    return WHOLE ? load(from) : load(from, first_lanes(std::min(left, LANES)));
}

// Numbers of a type, as stored in units and as multiplied. Factors stores the numbers that are
// multiplied with a unit, in WORDS words of 4 bytes; each word is multiplied with a part of the
// unit.
struct PairUnits {
    using Element = uint16_t;
    using Factors = PairUnits;
    static constexpr int PER_UNIT = 2;
    static constexpr int WORDS = 1;
    static constexpr int EXP_DEGREE = 4;  // its error is far below the rounding of weights

    // The part of a register of units that is multiplied with word `index`.
    template <int index>
    static inline __m512i part(__m512i units) {
        return units;
    }
#ifdef __AVX512BF16__
    // sum + a.x * b.x + a.y * b.y in each lane.
    static inline __m512 dot(__m512 sum, __m512i a, __m512i b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
#endif

    static inline void store(void *elements, __m512 x, __mmask16 lanes) {
        _mm256_mask_storeu_epi16(elements, lanes, to_bfloat16(x));
    }
    static inline void store(void *elements, __m512 x) {
        _mm256_storeu_si256(static_cast<__m256i *>(elements), to_bfloat16(x));
    }

    // One token's 16 dimensions into its half of the pairs of V.
    static inline void store_value(uint32_t *units, int token, __m512 x, __mmask16 lanes) {
        const __m512i wide = _mm512_cvtepu16_epi32(to_bfloat16(x));
        const __m512i pairs = token % 2 ? _mm512_slli_epi32(wide, 16) : wide;
        uint32_t halves = _pdep_u32(lanes, 0x55555555u);
        _mm512_mask_storeu_epi16(units, halves << (token % 2), pairs);
    }
};

struct FloatUnits {
    using Element = float;
    using Factors = FloatUnits;
    static constexpr int PER_UNIT = 1;
    static constexpr int WORDS = 1;
    static constexpr int EXP_DEGREE = 6;

    template <int index>
    static inline __m512i part(__m512i units) {
        return units;
    }
    static inline __m512 dot(__m512 sum, __m512i a, __m512i b) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
    }

    static inline void store(void *elements, __m512 x, __mmask16 lanes) {
        _mm512_mask_storeu_ps(elements, lanes, x);
    }
    static inline void store(void *elements, __m512 x) { _mm512_storeu_ps(elements, x); }

    static inline void store_value(uint32_t *units, int, __m512 x, __mmask16 lanes) {
        _mm512_mask_storeu_ps(units, lanes, x);
    }
};

// Pairs of bfloat16 that are widened to float32 and multiplied by unrounded float32: for processors
// without products of bfloat16, or with slow ones. All rows of a tile use a register of pairs that
// is widened once.
struct WidePairUnits : PairUnits {
    using Factors = FloatUnits;
    static constexpr int WORDS = 2;

    template <int index>
    static inline __m512i part(__m512i units) {
        if constexpr (index == 0) return _mm512_slli_epi32(units, 16);
        return _mm512_maskz_mov_epi16(0xAAAAAAAA, units);
    }
    static inline __m512 dot(__m512 sum, __m512i a, __m512i b) {
        return FloatUnits::dot(sum, a, b);
    }
};

// Calls work with the units of elements of `bytes` bytes.
template <class Work>
inline auto with_units(int32_t element_bytes, [[maybe_unused]] bool wide, Work work) {
    if (element_bytes == 4) return work(FloatUnits());
#ifdef __AVX512BF16__
    if (!wide) return work(PairUnits());
#endif
    return work(WidePairUnits());
}

template <class T, bool WHOLE>
inline void store_part(void *elements, __m512 x, int left) {
    if (WHOLE)
        T::store(elements, x);
    else
        T::store(elements, x, first_lanes(std::min(left, LANES)));
}

// Minimax polynomials of 2^f on [-0.5, 0.5]. The one of degree 6 is exact to one unit in the last
// place, and 1 at 0; the one of degree 4 is exact to 3e-6.
constexpr float EXP2_4[] = {0.9999993f, 0.6931218f, 0.24024744f, 0.05591786f, 0.009570102f};
constexpr float EXP2_6[] = {1.0f,         0.6931472f,    0.24022646f,  0.055503286f,
                            0.009618489f, 0.0013399931f, 0.00015345812f};

// 2^x for x <= 0 and -inf.
template <int DEGREE>
inline __m512 exp2_negative(__m512 x) {
    static_assert(DEGREE == 4 || DEGREE == 6);
    // 0 where the result would be denormal: a product with a denormal number costs a hundred times
    // as much. NaN stays NaN.
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, whole);
    const float *c = DEGREE == 4 ? EXP2_4 : EXP2_6;
    __m512 sum = _mm512_set1_ps(c[DEGREE]);
#pragma GCC unroll 8
    for (int i = DEGREE - 1; i >= 0; --i) sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(c[i]));
    return _mm512_maskz_scalef_ps(normal, sum, whole);
}

// cap tanh(x / cap). Its absolute error is below 1e-7 of the cap.
inline __m512 capped(__m512 x, float cap) {
    const __m512 ratio = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.88539008f / cap));
    const __m512 e = exp2_negative<6>(ratio);  // exp(-2 |x| / cap)
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 size = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
    const __m512 signed_size = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), sign));
    return _mm512_mul_ps(signed_size, _mm512_set1_ps(cap));
}

}  // namespace symphony
