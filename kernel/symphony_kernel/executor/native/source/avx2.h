// Registers of sixteen floats for processors that have AVX2 and no AVX-512: two registers of eight.
//
// Each function here has the name and the meaning of the instruction of AVX-512 that it stands for
// (Intel's Intrinsics Guide), so that the kernels are written once. Only what they use is here.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace symphony::avx2 {

#define SYMPHONY_INLINE inline __attribute__((always_inline))

struct Floats {
    __m256 low, high;
};

struct Integers {
    __m256i low, high;
};

// All bits of the lanes that are set in a mask.
SYMPHONY_INLINE __m256i eight_lanes(uint32_t mask) {
    const __m256i bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bits), bits);
}

SYMPHONY_INLINE Integers lanes_of(__mmask16 mask) {
    return {eight_lanes(mask), eight_lanes(uint32_t(mask) >> 8)};
}

SYMPHONY_INLINE __mmask16 mask_of(Floats lanes) {
    return __mmask16(_mm256_movemask_ps(lanes.low) | _mm256_movemask_ps(lanes.high) << 8);
}

// An operation on both registers.
#define SYMPHONY_FLOATS_1(name) \
    SYMPHONY_INLINE Floats name(Floats a) { \
        return {_mm256_##name(a.low), _mm256_##name(a.high)}; \
    }
#define SYMPHONY_FLOATS_2(name) \
    SYMPHONY_INLINE Floats name(Floats a, Floats b) { \
        return {_mm256_##name(a.low, b.low), _mm256_##name(a.high, b.high)}; \
    }
#define SYMPHONY_FLOATS_3(name) \
    SYMPHONY_INLINE Floats name(Floats a, Floats b, Floats c) { \
        return {_mm256_##name(a.low, b.low, c.low), _mm256_##name(a.high, b.high, c.high)}; \
    }
#define SYMPHONY_INTEGERS_2(name) \
    SYMPHONY_INLINE Integers name(Integers a, Integers b) { \
        return {_mm256_##name(a.low, b.low), _mm256_##name(a.high, b.high)}; \
    }
#define SYMPHONY_SHIFT(name) \
    SYMPHONY_INLINE Integers name(Integers a, int by) { \
        return {_mm256_##name(a.low, by), _mm256_##name(a.high, by)}; \
    }

SYMPHONY_FLOATS_2(add_ps)
SYMPHONY_FLOATS_2(sub_ps)
SYMPHONY_FLOATS_2(mul_ps)
SYMPHONY_FLOATS_2(div_ps)
SYMPHONY_FLOATS_2(max_ps)
SYMPHONY_FLOATS_2(min_ps)
SYMPHONY_FLOATS_3(fmadd_ps)
SYMPHONY_FLOATS_3(fmsub_ps)
SYMPHONY_INTEGERS_2(add_epi32)
SYMPHONY_INTEGERS_2(mullo_epi32)
SYMPHONY_INTEGERS_2(max_epu32)
SYMPHONY_INTEGERS_2(madd_epi16)
SYMPHONY_INTEGERS_2(maddubs_epi16)
SYMPHONY_SHIFT(slli_epi32)
SYMPHONY_SHIFT(srli_epi32)
SYMPHONY_SHIFT(slli_epi16)
SYMPHONY_SHIFT(srli_epi16)
SYMPHONY_SHIFT(srai_epi16)

SYMPHONY_INLINE Floats set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SYMPHONY_INLINE Floats setzero_ps() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SYMPHONY_INLINE Integers set1_epi32(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SYMPHONY_INLINE Integers set1_epi16(short x) {
    return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)};
}
SYMPHONY_INLINE Integers set1_epi8(char x) { return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }
SYMPHONY_INLINE Integers setzero_si512() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
SYMPHONY_INLINE Integers set_epi32(int p, int o, int n, int m, int l, int k, int j, int i, int h,
                                   int g, int f, int e, int d, int c, int b, int a) {
    return {_mm256_set_epi32(h, g, f, e, d, c, b, a), _mm256_set_epi32(p, o, n, m, l, k, j, i)};
}

SYMPHONY_INLINE Floats castsi512_ps(Integers a) {
    return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}
SYMPHONY_INLINE Integers castps_si512(Floats a) {
    return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}
SYMPHONY_INLINE __m128i castsi512_si128(Integers a) { return _mm256_castsi256_si128(a.low); }

SYMPHONY_INLINE Integers and_si512(Integers a, Integers b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
SYMPHONY_INLINE Integers or_si512(Integers a, Integers b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
SYMPHONY_INLINE Integers xor_si512(Integers a, Integers b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
SYMPHONY_INLINE Floats abs_ps(Floats a) {
    return castsi512_ps(and_si512(castps_si512(a), set1_epi32(0x7FFFFFFF)));
}

// Loads and stores.
SYMPHONY_INLINE Floats loadu_ps(const void *from) {
    const auto *at = static_cast<const float *>(from);
    return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}
SYMPHONY_INLINE Floats load_ps(const void *from) {
    const auto *at = static_cast<const float *>(from);
    return {_mm256_load_ps(at), _mm256_load_ps(at + 8)};
}
SYMPHONY_INLINE void storeu_ps(void *to, Floats a) {
    auto *at = static_cast<float *>(to);
    _mm256_storeu_ps(at, a.low), _mm256_storeu_ps(at + 8, a.high);
}
SYMPHONY_INLINE void store_ps(void *to, Floats a) {
    auto *at = static_cast<float *>(to);
    _mm256_store_ps(at, a.low), _mm256_store_ps(at + 8, a.high);
}
SYMPHONY_INLINE Integers loadu_si512(const void *from) {
    const auto *at = static_cast<const __m256i *>(from);
    return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
SYMPHONY_INLINE Integers load_si512(const void *from) {
    const auto *at = static_cast<const __m256i *>(from);
    return {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
}
SYMPHONY_INLINE void storeu_si512(void *to, Integers a) {
    auto *at = static_cast<__m256i *>(to);
    _mm256_storeu_si256(at, a.low), _mm256_storeu_si256(at + 1, a.high);
}
SYMPHONY_INLINE Integers maskz_loadu_epi32(__mmask16 mask, const void *from) {
    const auto *at = static_cast<const int *>(from);
    const Integers lanes = lanes_of(mask);
    return {_mm256_maskload_epi32(at, lanes.low), _mm256_maskload_epi32(at + 8, lanes.high)};
}
SYMPHONY_INLINE Floats maskz_loadu_ps(__mmask16 mask, const void *from) {
    return castsi512_ps(maskz_loadu_epi32(mask, from));
}
SYMPHONY_INLINE void mask_store_epi32(void *to, __mmask16 mask, Integers a) {
    auto *at = static_cast<int *>(to);
    const Integers lanes = lanes_of(mask);
    _mm256_maskstore_epi32(at, lanes.low, a.low), _mm256_maskstore_epi32(at + 8, lanes.high, a.high);
}
SYMPHONY_INLINE void mask_storeu_ps(void *to, __mmask16 mask, Floats a) {
    mask_store_epi32(to, mask, castps_si512(a));
}
// Of two bytes there is no masked access: one by one, since others may write what lies between.
SYMPHONY_INLINE __m256i half_maskz_loadu_epi16(__mmask16 mask, const void *from) {
    if (mask == 0xFFFF) return _mm256_loadu_si256(static_cast<const __m256i *>(from));
    alignas(32) uint16_t values[16] = {};
    for (uint32_t left = mask; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        std::memcpy(values + lane, static_cast<const uint16_t *>(from) + lane, 2);
    }
    return _mm256_load_si256(reinterpret_cast<const __m256i *>(values));
}
SYMPHONY_INLINE void store_some(void *to, uint32_t mask, const uint16_t *values) {
    for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        std::memcpy(static_cast<uint16_t *>(to) + lane, values + lane, 2);
    }
}
SYMPHONY_INLINE void half_mask_storeu_epi16(void *to, __mmask16 mask, __m256i a) {
    if (mask == 0xFFFF) return _mm256_storeu_si256(static_cast<__m256i *>(to), a);
    alignas(32) uint16_t values[16];
    _mm256_store_si256(reinterpret_cast<__m256i *>(values), a);
    store_some(to, mask, values);
}
SYMPHONY_INLINE void mask_storeu_epi16(void *to, __mmask32 mask, Integers a) {
    if (mask == 0xFFFFFFFF) return storeu_si512(to, a);
    alignas(32) uint16_t values[32];
    storeu_si512(values, a);
    store_some(to, mask, values);
}

// Choices by a mask.
SYMPHONY_INLINE Floats mask_mov_ps(Floats otherwise, __mmask16 mask, Floats a) {
    const Floats lanes = castsi512_ps(lanes_of(mask));
    return {_mm256_blendv_ps(otherwise.low, a.low, lanes.low),
            _mm256_blendv_ps(otherwise.high, a.high, lanes.high)};
}
SYMPHONY_INLINE Floats maskz_mov_ps(__mmask16 mask, Floats a) {
    return castsi512_ps(and_si512(castps_si512(a), lanes_of(mask)));
}
SYMPHONY_INLINE Integers maskz_mov_epi16(__mmask32 mask, Integers a) {
    const __m256i bits = _mm256_set_epi16(int16_t(0x8000), 0x4000, 0x2000, 0x1000, 0x800, 0x400,
                                          0x200, 0x100, 128, 64, 32, 16, 8, 4, 2, 1);
    const auto lanes = [&](uint32_t half) __attribute__((always_inline)) {
        return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(short(half)), bits), bits);
    };
    return and_si512(a, {lanes(mask), lanes(mask >> 16)});
}
SYMPHONY_INLINE Integers mask_set1_epi32(Integers otherwise, __mmask16 mask, int x) {
    return castps_si512(mask_mov_ps(castsi512_ps(otherwise), mask, castsi512_ps(set1_epi32(x))));
}
SYMPHONY_INLINE Floats mask_loadu_ps(Floats otherwise, __mmask16 mask, const void *from) {
    return mask_mov_ps(otherwise, mask, maskz_loadu_ps(mask, from));
}
SYMPHONY_INLINE Floats mask_min_ps(Floats otherwise, __mmask16 mask, Floats a, Floats b) {
    return mask_mov_ps(otherwise, mask, min_ps(a, b));
}
SYMPHONY_INLINE Integers maskz_compress_epi32(__mmask16 mask, Integers a) {
    alignas(32) uint32_t from[16], to[16] = {};
    storeu_si512(from, a);
    uint32_t *at = to;
    for (uint32_t left = mask; left; left &= left - 1) *at++ = from[__builtin_ctz(left)];
    return loadu_si512(to);
}
SYMPHONY_INLINE Floats maskz_compress_ps(__mmask16 mask, Floats a) {
    return castsi512_ps(maskz_compress_epi32(mask, castps_si512(a)));
}

// Comparisons.
SYMPHONY_INLINE __mmask16 cmp_ps_mask(Floats a, Floats b, const int how) {
    return mask_of({_mm256_cmp_ps(a.low, b.low, how), _mm256_cmp_ps(a.high, b.high, how)});
}
SYMPHONY_INLINE __mmask16 mask_cmp_ps_mask(__mmask16 mask, Floats a, Floats b, const int how) {
    return mask & cmp_ps_mask(a, b, how);
}
SYMPHONY_INLINE __mmask16 mask_cmpeq_epi32_mask(__mmask16 mask, Integers a, Integers b) {
    return mask & mask_of(castsi512_ps(
                      {_mm256_cmpeq_epi32(a.low, b.low), _mm256_cmpeq_epi32(a.high, b.high)}));
}

// Conversions.
SYMPHONY_INLINE Floats cvtepi32_ps(Integers a) {
    return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
SYMPHONY_INLINE Integers cvtps_epi32(Floats a) {
    return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}
SYMPHONY_INLINE Integers cvttps_epi32(Floats a) {
    return {_mm256_cvttps_epi32(a.low), _mm256_cvttps_epi32(a.high)};
}
SYMPHONY_INLINE Floats cvtph_ps(__m256i a) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}
SYMPHONY_INLINE Integers cvtepu16_epi32(__m256i a) {
    return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
            _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
}
// The lower half of each lane.
SYMPHONY_INLINE __m256i cvtepi32_epi16(Integers a) {
    const __m256i low = _mm256_set1_epi32(0xFFFF);
    const __m256i mixed =
        _mm256_packus_epi32(_mm256_and_si256(a.low, low), _mm256_and_si256(a.high, low));
    return _mm256_permute4x64_epi64(mixed, 0b11011000);
}
SYMPHONY_INLINE __m128i cvtsepi32_epi8(Integers a) {
    const __m256i mixed = _mm256_packs_epi32(a.low, a.high);
    const __m256i halves = _mm256_permute4x64_epi64(mixed, 0b11011000);
    return _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}
SYMPHONY_INLINE Floats roundscale_ps(Floats a, const int how) {
    return {_mm256_round_ps(a.low, how), _mm256_round_ps(a.high, how)};
}
// a * 2^b for a whole b from -125 to 127 in the lanes of the mask, and 0 in others.
SYMPHONY_INLINE Floats maskz_scalef_ps(__mmask16 mask, Floats a, Floats b) {
    const Integers exponents = slli_epi32(add_epi32(cvtps_epi32(b), set1_epi32(127)), 23);
    return maskz_mov_ps(mask, mul_ps(a, castsi512_ps(exponents)));
}

// Reductions, by halves.
template <class Both, class Four>
SYMPHONY_INLINE float reduce(Floats a, Both both, Four four) {
    const __m256 eight = both(a.low, a.high);
    __m128 x = four(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    x = four(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(four(x, _mm_shuffle_ps(x, x, 1)));
}
#define SYMPHONY_REDUCTION(name) \
    SYMPHONY_INLINE float reduce_##name(Floats a) { \
        return reduce( \
            a, [](__m256 x, __m256 y) { return _mm256_##name(x, y); }, \
            [](__m128 x, __m128 y) { return _mm_##name(x, y); }); \
    }
SYMPHONY_REDUCTION(add_ps)
SYMPHONY_REDUCTION(max_ps)
SYMPHONY_REDUCTION(min_ps)
SYMPHONY_INLINE int reduce_add_epi32(Integers a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0b01001110));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0b10110001)));
}
SYMPHONY_INLINE uint32_t reduce_max_epu32(Integers a) {
    const __m256i eight = _mm256_max_epu32(a.low, a.high);
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0b01001110));
    return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(x, _mm_shuffle_epi32(x, 0b10110001))));
}

}  // namespace symphony::avx2

// The names that the kernels use.
#define __m512 symphony::avx2::Floats
#define __m512i symphony::avx2::Integers
#define _mm512_abs_ps symphony::avx2::abs_ps
#define _mm512_add_epi32 symphony::avx2::add_epi32
#define _mm512_add_ps symphony::avx2::add_ps
#define _mm512_and_si512 symphony::avx2::and_si512
#define _mm512_castps_si512 symphony::avx2::castps_si512
#define _mm512_castsi512_ps symphony::avx2::castsi512_ps
#define _mm512_castsi512_si128 symphony::avx2::castsi512_si128
#define _mm512_cmp_ps_mask symphony::avx2::cmp_ps_mask
#define _mm512_cvtepi32_epi16 symphony::avx2::cvtepi32_epi16
#define _mm512_cvtepi32_ps symphony::avx2::cvtepi32_ps
#define _mm512_cvtepu16_epi32 symphony::avx2::cvtepu16_epi32
#define _mm512_cvtph_ps symphony::avx2::cvtph_ps
#define _mm512_cvtps_epi32 symphony::avx2::cvtps_epi32
#define _mm512_cvtsepi32_epi8 symphony::avx2::cvtsepi32_epi8
#define _mm512_cvttps_epi32 symphony::avx2::cvttps_epi32
#define _mm512_div_ps symphony::avx2::div_ps
#define _mm512_fmadd_ps symphony::avx2::fmadd_ps
#define _mm512_fmsub_ps symphony::avx2::fmsub_ps
#define _mm512_load_ps symphony::avx2::load_ps
#define _mm512_load_si512 symphony::avx2::load_si512
#define _mm512_loadu_ps symphony::avx2::loadu_ps
#define _mm512_loadu_si512 symphony::avx2::loadu_si512
#define _mm512_maddubs_epi16 symphony::avx2::maddubs_epi16
#define _mm512_madd_epi16 symphony::avx2::madd_epi16
#define _mm512_mask_cmp_ps_mask symphony::avx2::mask_cmp_ps_mask
#define _mm512_mask_cmpeq_epi32_mask symphony::avx2::mask_cmpeq_epi32_mask
#define _mm512_mask_loadu_ps symphony::avx2::mask_loadu_ps
#define _mm512_mask_min_ps symphony::avx2::mask_min_ps
#define _mm512_mask_mov_ps symphony::avx2::mask_mov_ps
#define _mm512_mask_set1_epi32 symphony::avx2::mask_set1_epi32
#define _mm512_mask_store_epi32 symphony::avx2::mask_store_epi32
#define _mm512_mask_storeu_epi16 symphony::avx2::mask_storeu_epi16
#define _mm512_mask_storeu_ps symphony::avx2::mask_storeu_ps
#define _mm512_maskz_compress_epi32 symphony::avx2::maskz_compress_epi32
#define _mm512_maskz_compress_ps symphony::avx2::maskz_compress_ps
#define _mm512_maskz_loadu_epi32 symphony::avx2::maskz_loadu_epi32
#define _mm512_maskz_loadu_ps symphony::avx2::maskz_loadu_ps
#define _mm512_maskz_mov_epi16 symphony::avx2::maskz_mov_epi16
#define _mm512_maskz_mov_ps symphony::avx2::maskz_mov_ps
#define _mm512_maskz_scalef_ps symphony::avx2::maskz_scalef_ps
#define _mm512_max_epu32 symphony::avx2::max_epu32
#define _mm512_max_ps symphony::avx2::max_ps
#define _mm512_min_ps symphony::avx2::min_ps
#define _mm512_mul_ps symphony::avx2::mul_ps
#define _mm512_mullo_epi32 symphony::avx2::mullo_epi32
#define _mm512_or_si512 symphony::avx2::or_si512
#define _mm512_reduce_add_epi32 symphony::avx2::reduce_add_epi32
#define _mm512_reduce_add_ps symphony::avx2::reduce_add_ps
#define _mm512_reduce_max_epu32 symphony::avx2::reduce_max_epu32
#define _mm512_reduce_max_ps symphony::avx2::reduce_max_ps
#define _mm512_reduce_min_ps symphony::avx2::reduce_min_ps
#define _mm512_roundscale_ps symphony::avx2::roundscale_ps
#define _mm512_set1_epi16 symphony::avx2::set1_epi16
#define _mm512_set1_epi32 symphony::avx2::set1_epi32
#define _mm512_set1_epi8 symphony::avx2::set1_epi8
#define _mm512_set1_ps symphony::avx2::set1_ps
#define _mm512_set_epi32 symphony::avx2::set_epi32
#define _mm512_setzero_ps symphony::avx2::setzero_ps
#define _mm512_setzero_si512 symphony::avx2::setzero_si512
#define _mm512_slli_epi16 symphony::avx2::slli_epi16
#define _mm512_slli_epi32 symphony::avx2::slli_epi32
#define _mm512_srai_epi16 symphony::avx2::srai_epi16
#define _mm512_srli_epi16 symphony::avx2::srli_epi16
#define _mm512_srli_epi32 symphony::avx2::srli_epi32
#define _mm512_store_ps symphony::avx2::store_ps
#define _mm512_storeu_ps symphony::avx2::storeu_ps
#define _mm512_storeu_si512 symphony::avx2::storeu_si512
#define _mm512_sub_ps symphony::avx2::sub_ps
#define _mm512_xor_si512 symphony::avx2::xor_si512
#define _mm256_maskz_loadu_epi16 symphony::avx2::half_maskz_loadu_epi16
#define _mm256_mask_storeu_epi16 symphony::avx2::half_mask_storeu_epi16
