// The fixed-point path for 16-bit activations: each token's chunk becomes int16 times one float, codes become
// small int16 values, and pairs are multiplied and summed exactly in int32. Included after simd_*.h with the
// operations of FixedSimd.
//
// Data layout: problem.h; values are int16, [chunk][token][input], the eight inputs of a word in the order
// 0 4 1 5 2 6 3 7: shifting a word right by 4i brings codes i and i+4 to the low bits of its two halves, so the
// pair of inputs that belongs to them must be one 32-bit value. For few tokens the same 16 bytes hold the high and
// low bytes of the eight values instead (FixedSimd::split_bytes).
// Thread mapping: the caller's range of panels.
// Phases: as exact_body.h. Per chunk: int32 sums -> float, minus (z - 8) times the token's sum, times both scales.
//
// Error: |x - int16 * scale| <= max / 65024 per value, at most 1.0e-4 of the chunk's norm (one dominating value)
// and about 2.4e-5 for normal data: a tenth of what rounding the output to float16 costs. int32 holds
// 128 * 32512 * 8 with 6 bits to spare, so tables with values up to +-127 fit the same code.
#pragma once

#include "rows.h"
#include "tiles.h"

namespace {

// A chunk is left to the exact path when more than half of its non-zero values lie below this part of the
// maximum: their own rounding (max * 2^-16) would pass half a per cent. Stricter than the 2^-12 that the caps need.
constexpr float kSmallPart = 1.f / 512;
// The largest value: its high byte is 127 also after rounding up (see split_bytes).
constexpr float kLargest = 127 * 256.f;
// Below this maximum the reciprocal of the scale would overflow or the scale itself be denormal.
constexpr float kTiniest = 1e-30f;

struct Fixed {
  static constexpr int kOrigin = kMidpoint;
  static constexpr int turns(int length) { return length / 2; }  // of the buffered loop

  template <int MT, int NV, bool kZeros>
  QUANTFARM_INLINE static void finish(const ChunkView& c, const TileView& t, int j, const Simd::I (&acc)[MT][NV]) {
QUANTFARM_UNROLL
    for (int v = 0; v < NV; ++v) {
      const Simd::F scale = Simd::load(c.columns + j + v * Simd::kWidth);
      const Simd::F zero = kZeros ? Simd::load(c.columns + kPanel + j + v * Simd::kWidth) : Simd::zero();
QUANTFARM_UNROLL
      for (int m = 0; m < MT; ++m) {
        Simd::F sum = FixedSimd::to_float(acc[m][v]);
        if (kZeros) sum = Simd::fnma(zero, Simd::broadcast(c.sum[t.token + m]), sum);
        float* at = t.sums + m * kPanel + j + v * Simd::kWidth;
        const Simd::F both = Simd::mul(scale, Simd::broadcast(c.scale[t.token + m]));
        Simd::store(at, Simd::fma(sum, both, Simd::load(at)));
      }
    }
  }

  template <int MT, int NV>
  QUANTFARM_INLINE static void finish(const Problem& p, const ChunkView& c, const TileView& t, int j,
                                      const Simd::I (&acc)[MT][NV]) {
    if (p.zeros) finish<MT, NV, true>(c, t, j, acc);
    else finish<MT, NV, false>(c, t, j, acc);
  }

  template <int NV>
  QUANTFARM_INLINE static void multiply_plane(Simd::I (&sum)[NV], const Simd::I (&codes)[NV], int32_t four) {
    const Simd::I value = FixedSimd::broadcast(four);
QUANTFARM_UNROLL
    for (int v = 0; v < NV; ++v) sum[v] = FixedSimd::dot_bytes(sum[v], codes[v], value);
  }

  // Few tokens: two byte products instead of one of 16 bits. As many multiply-adds, but unsigned bytes need three
  // instructions of decoding a line where int16 values need seven, and at this size decoding is the work.
  template <int MT, int NV>
  QUANTFARM_NOINLINE static void direct_chunk(const Problem& p, const ChunkView& c, const TileView& t, int j) {
    const uint32_t* codes = c.codes + j;
    const int stride = c.length / 2;
    const int32_t* x = static_cast<const int32_t*>(c.values) + t.token * stride;
    Simd::I high[MT][NV], low[MT][NV];
QUANTFARM_UNROLL
    for (int m = 0; m < MT; ++m) {
      // The bytes are codes from 0; starting at -8 times the token's sum makes the total that of q - 8.
      const Simd::I start = FixedSimd::broadcast(static_cast<int32_t>(c.sum[t.token + m]) * -kMidpoint);
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) {
        high[m][v] = FixedSimd::zero();
        low[m][v] = start;
      }
    }
    for (int r = 0; r < stride; r += 4, codes += c.width) {
      Simd::I even[NV], odd[NV];
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) {
        const Simd::I words = Simd::load_words(codes + v * Simd::kWidth);
        even[v] = FixedSimd::even_codes(words);
        odd[v] = FixedSimd::odd_codes(words);
      }
      prefetch_row<NV>(codes);
QUANTFARM_UNROLL
      for (int m = 0; m < MT; ++m) {
        const int32_t* four = x + m * stride + r;
        // One broadcast at a time: with four alive, six tokens would not fit the registers.
        multiply_plane<NV>(high[m], even, four[0]);
        multiply_plane<NV>(high[m], odd, four[1]);
        multiply_plane<NV>(low[m], even, four[2]);
        multiply_plane<NV>(low[m], odd, four[3]);
      }
    }
QUANTFARM_UNROLL
    for (int m = 0; m < MT; ++m) {
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) high[m][v] = FixedSimd::join_bytes(high[m][v], low[m][v]);
    }
    finish<MT, NV>(p, c, t, j, high);
  }

  // Beyond two tiles, decoding once to a buffer is cheaper than decoding in registers for every tile.
  static constexpr int kDirectTokens = 12, kDirectTile = 6;
  // Two sums a token and vector: up to two tokens leave room for four vectors, up to six for two.
  template <int MT>
  static constexpr int direct_vectors() {
    return MT <= 2 ? 4 : 2;
  }

  // Decodes one chunk of a panel to int16 pairs, [pair of inputs][column].
  static void decode_chunk(const Problem&, const ChunkView& c, void* buffer) {
    const FixedSimd::Table table = FixedSimd::table();
    for (int j = 0; j < c.width; j += Simd::kWidth) {
      const uint32_t* codes = c.codes + j;
      int32_t* to = static_cast<int32_t*>(buffer) + j;
      for (int r = 0; r < c.length; r += kWordCodes, codes += c.width) {
        Simd::I words = Simd::load_words(codes);
QUANTFARM_UNROLL
        for (int i = 0; i < 4; ++i, to += kPanel) {
          FixedSimd::store(to, FixedSimd::decode(words, table));
          words = Simd::next_code(words);
        }
      }
    }
  }

  template <int MT, int NV>
  QUANTFARM_NOINLINE static void buffered_chunk(const Problem& p, const ChunkView& c, const TileView& t, int j) {
    Ahead ahead = t.ahead;
    const int32_t* weights = static_cast<const int32_t*>(t.buffer) + j;
    const int pairs = c.length / 2;
    const int32_t* x = static_cast<const int32_t*>(c.values) + static_cast<int64_t>(t.token) * pairs;
    Simd::I acc[MT][NV];
QUANTFARM_UNROLL
    for (int m = 0; m < MT; ++m) {
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) acc[m][v] = FixedSimd::zero();
    }
    for (int i = 0; i < pairs; ++i, weights += kPanel) {
      ahead.touch();
      Simd::I weight[NV];
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) weight[v] = FixedSimd::load(weights + v * Simd::kWidth);
QUANTFARM_UNROLL
      for (int m = 0; m < MT; ++m) {
        const Simd::I value = FixedSimd::broadcast(x[m * pairs + i]);
QUANTFARM_UNROLL
        for (int v = 0; v < NV; ++v) acc[m][v] = FixedSimd::dot(acc[m][v], weight[v], value);
      }
    }
    finish<MT, NV>(p, c, t, j, acc);
  }

  using Value = int16_t;
  static constexpr int kBufferBytes = kMaxChunk * kPanel * 2;
};

// Phase 1 for one chunk of one token. Returns false when int16 can not carry it.
inline bool quantize_chunk(const float* x, int length, bool bytes, int16_t* to, float* scale, float* sum) {
  float largest;
  int nonzero, small;
  if (!FixedSimd::measure(x, length, kSmallPart, &largest, &nonzero, &small)) return false;  // not finite
  if (largest == 0.f) {
    std::memset(to, 0, length * sizeof(int16_t));
    *scale = *sum = 0.f;
    return true;
  }
  if (largest < kTiniest || 2 * small > nonzero) return false;
  *scale = largest / kLargest;
  *sum = static_cast<float>(FixedSimd::quantize(x, length, kLargest / largest, to));
  if (bytes) FixedSimd::split_bytes(to, length);
  return true;
}

void prepare_fixed(const Problem& p, const Source& s, const Tokens& x, int64_t begin, int64_t end, uint8_t* suitable) {
  const bool bytes = x.count <= Fixed::kDirectTokens;
  for (int64_t t = begin; t < end; ++t) {
    const float* row = row_as_float(p, s, s.row ? s.row[t] : t);
    bool good = true;
    for (int64_t c = 0; c < p.chunks(); ++c) {
      const int length = p.chunk_length(c);
      int16_t* to = static_cast<int16_t*>(x.values) + c * p.chunk * x.count + t * length;
      const int64_t at = c * x.count + t;
      if (good && quantize_chunk(row + c * p.chunk, length, bytes, to, x.scale + at, x.sum + at)) continue;
      // The token is computed with the others and then overwritten, so it must hold something harmless.
      good = false;
      std::memset(to, 0, length * sizeof(int16_t));
      x.scale[at] = x.sum[at] = 0.f;
    }
    suitable[t] = good;
  }
}

void compute_fixed(const Problem& p, const Tokens& x, int64_t begin, int64_t end) {
  compute_panels<Fixed>(p, x, begin, end);
}

}  // namespace
