// Fixed-point operations for AVX512 VNNI. Included after simd_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct FixedSimd {
  using I = __m512i;

  // VPERMW looks at five bits of each 16-bit lane: the code and one bit of its neighbour. The table is held twice,
  // so that bit does not matter and no mask is needed. Any 16-entry table of small integers costs the same.
  struct Table {
    I values;
  };
  static Table table() {
    const __m256i once = _mm256_setr_epi16(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm512_broadcast_i64x4(once)};
  }
  static I decode(I words, const Table& table) { return _mm512_permutexvar_epi16(words, table.values); }

  static I zero() { return _mm512_setzero_si512(); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(int32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static I broadcast(int32_t pair) { return _mm512_set1_epi32(pair); }
  // By hand: GCC 12 moves the accumulator of the intrinsic through a second register and spills it in every step,
  // which halves the speed of a tile.
  static I dot(I sum, I a, I b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
  static __m512 to_float(I v) { return _mm512_cvtepi32_ps(v); }

  // Inputs come in eights, so a last half vector is possible; lanes behind the end read as zero.
  static __mmask16 lanes(int left) { return left >= 16 ? 0xffff : 0x00ff; }

  // Largest absolute value, how many values are not zero, how many of these are below part * largest.
  // Returns false for an infinity or NaN: as integers, their absolute bits are the largest.
  static bool measure(const float* x, int length, float part, float* largest, int* nonzero, int* small) {
    const I magnitude = _mm512_set1_epi32(0x7fffffff);
    I most = zero();
    for (int i = 0; i < length; i += 16) {
      const I bits = _mm512_maskz_loadu_epi32(lanes(length - i), x + i);
      most = _mm512_max_epi32(most, _mm512_and_si512(bits, magnitude));
    }
    const int bits = _mm512_reduce_max_epi32(most);
    std::memcpy(largest, &bits, sizeof bits);
    if (bits >= 0x7f800000) return false;
    const __m512 limit = _mm512_set1_ps(*largest * part);
    *nonzero = *small = 0;
    for (int i = 0; i < length; i += 16) {
      const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes(length - i), x + i));
      const __mmask16 set = _mm512_test_epi32_mask(_mm512_castps_si512(v), magnitude);
      *nonzero += __builtin_popcount(set);
      *small += __builtin_popcount(_mm512_mask_cmp_ps_mask(set, v, limit, _CMP_LT_OQ));
    }
    return true;
  }

  // Rounds x * inverse to int16, stores it in word order (0 4 1 5 2 6 3 7) and returns the sum.
  static int quantize(const float* x, int length, float inverse, int16_t* to) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    I sum = zero();
    for (int i = 0; i < length; i += 16) {
      const __mmask16 mask = lanes(length - i);
      const I v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor));
      sum = _mm512_add_epi32(sum, v);
      _mm256_mask_storeu_epi16(to + i, mask, _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(v), order));
    }
    return _mm512_reduce_add_epi32(sum);
  }

  // Turns eight int16 in word order into bytes: high bytes of inputs 0 2 4 6, of 1 3 5 7, then the low bytes alike.
  // v = 256 * high + low with low from -128 to 127, so both planes are signed.
  static void split_bytes(int16_t* values, int length) {
    // Word order 0 4 1 5 2 6 3 7: input 0 is at position 0, 2 at 4, 4 at 1, 6 at 5; 1 at 2, 3 at 6, 5 at 3, 7 at 7.
    const __m128i order = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int i = 0; i < length; i += 8) {
      __m128i* at = (__m128i*)(values + i);
      const __m128i v = _mm_loadu_si128(at);
      const __m128i high = _mm_srai_epi16(_mm_add_epi16(v, _mm_set1_epi16(128)), 8);
      _mm_storeu_si128(at, _mm_unpacklo_epi64(_mm_shuffle_epi8(high, order), _mm_shuffle_epi8(v, order)));
    }
  }

  // Codes of even and odd inputs of eight as unsigned bytes.
  static I even_codes(I words) { return _mm512_and_si512(words, _mm512_set1_epi8(15)); }
  static I odd_codes(I words) { return _mm512_and_si512(_mm512_srli_epi32(words, 4), _mm512_set1_epi8(15)); }
  // sum + four unsigned bytes times four signed bytes, in each 32-bit lane.
  static I dot_bytes(I sum, I codes, I x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
    return sum;
  }
  static I join_bytes(I high, I low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
};

}  // namespace
