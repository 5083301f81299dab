// The vector operations that the bodies need, for AVX2 with FMA and F16C. Included only by files compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
  using F = __m256;
  using I = __m256i;
  static constexpr int kWidth = 8;     // fp32 lanes
  static constexpr int kDirectTokens = 2, kDirectVectors = 4;
  static constexpr int kTileTokens = 6, kTileVectors = 2;  // 12 accumulators of 16 registers

  static F zero() { return _mm256_setzero_ps(); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F broadcast(float v) { return _mm256_set1_ps(v); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F gather(const float* base, const int32_t* index) {
    return _mm256_i32gather_ps(base, _mm256_loadu_si256((const __m256i*)index), 4);
  }

  static F from_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static F from_bfloat16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  static F from_u8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
  }
  static void to_half(uint16_t* p, F v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Round to nearest even by integer arithmetic; a NaN keeps being one.
  static void to_bfloat16(uint16_t* p, F v) {
    const I bits = _mm256_castps_si256(v);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    I rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const I nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(low, high));
  }

  // Decoding for the exact path: a 16-entry table would need two permutes and a blend here, mask and convert is
  // cheaper. Decoded values are q itself, so the midpoint is subtracted like any zero point.
  static constexpr int kOrigin = 0;
  struct Table {};
  static Table table() { return {}; }
  static I load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static I next_code(I words) { return _mm256_srli_epi32(words, 4); }
  static F decode(I words, const Table&) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
  }
};

}  // namespace
