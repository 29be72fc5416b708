// The numbers that the kernels compute with, and how they go in and out of registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace symphony {

// As wide as the cache line and the register.
constexpr size_t LINE_BYTES = 64;
constexpr int LANES = 16;  // float32 in a register

struct Bf16 {
    uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(Bf16 value) {
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

// Sixteen numbers as float32.
inline __m512 load(const float *from) { return _mm512_loadu_ps(from); }

inline __m512 load(const Bf16 *from) {
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 load(const float *from, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, from);
}

inline __m512 load(const Bf16 *from, __mmask16 lanes) {
    __m256i bits = _mm256_maskz_loadu_epi16(lanes, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Sixteen float32 as bfloat16, rounded to the nearest, ties to even; NaN stays NaN. In integers, so
// that denormal numbers round as everywhere else.
inline __m256i rounded(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    up = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7FC00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

inline void store(float *to, __m512 values) { _mm512_storeu_ps(to, values); }

inline void store(Bf16 *to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), rounded(values));
}

inline void store(float *to, __m512 values, __mmask16 lanes) {
    _mm512_mask_storeu_ps(to, lanes, values);
}

inline void store(Bf16 *to, __m512 values, __mmask16 lanes) {
    _mm256_mask_storeu_epi16(to, lanes, rounded(values));
}

// The first `count` lanes, of which there are at most LANES.
inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
}

}  // namespace symphony
