// The vector operations that the bodies need, for AVX512 F/BW/VL/DQ. Included only by files compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
  using F = __m512;
  using I = __m512i;
  static constexpr int kWidth = 16;    // fp32 lanes
  static constexpr int kDirectTokens = 4, kDirectVectors = 4;
  static constexpr int kTileTokens = 6, kTileVectors = 4;  // 24 accumulators of 32 registers

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F broadcast(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F gather(const float* base, const int32_t* index) {
    return _mm512_i32gather_ps(_mm512_loadu_si512(index), base, 4);
  }

  static F from_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static F from_bfloat16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static F from_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  static void to_half(uint16_t* p, F v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Round to nearest even by integer arithmetic: VCVTNEPS2BF16 would flush denormals and needs another extension.
  static void to_bfloat16(uint16_t* p, F v) {
    const I bits = _mm512_castps_si512(v);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    I rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(rounded));
  }

  // Decoding for the exact path: VPERMPS looks at the low four bits of each lane only, so a code needs one
  // permute and the word one shift, and any 16-entry table of floats costs the same. The table holds
  // q - 8, which leaves nothing to subtract for symmetric codes.
  static constexpr int kOrigin = 8;
  struct Table {
    F values;
  };
  static Table table() {
    return {_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)};
  }
  static I load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static I next_code(I words) { return _mm512_srli_epi32(words, 4); }
  static F decode(I words, const Table& table) { return _mm512_permutexvar_ps(words, table.values); }
};

}  // namespace
