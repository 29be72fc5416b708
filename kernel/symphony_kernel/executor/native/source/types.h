// The base of all kernels: registers of sixteen floats, and aligned memory.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>
#define SYMPHONY_AVX512 1
#else
#include "avx2.h"
#define SYMPHONY_AVX512 0
#endif

#include <cstddef>
#include <cstdint>

namespace symphony {

// The size of a cache line and of a register.
constexpr size_t LINE_BYTES = 64;
constexpr int LANES = 16;  // float32 in a register
// Whether there are 32 registers of sixteen floats; else there are eight (16 halves of them).
constexpr bool MANY_REGISTERS = SYMPHONY_AVX512;

// Loads sixteen floats, or those of the set lanes and zeros; the same from bfloat16.
inline __m512 load(const float *from) { return _mm512_loadu_ps(from); }

inline __m512 load(const float *from, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, from);
}

inline __m512 load(const uint16_t *from, __mmask16 lanes) {
    __m256i bits = _mm256_maskz_loadu_epi16(lanes, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store(float *to, __m512 values) { _mm512_storeu_ps(to, values); }

inline void store(float *to, __m512 values, __mmask16 lanes) {
    _mm512_mask_storeu_ps(to, lanes, values);
}

// The first `count` lanes, at most all LANES.
inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
}

inline int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

}  // namespace symphony
