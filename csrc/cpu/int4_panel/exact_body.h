// The exact path: codes as floats, fp32 FMA. For fp32 activations, for rows that int16 can not carry, and for
// processors without the fixed-point instructions. Included after simd_*.h.
//
// Data layout: problem.h; values are float, [chunk][token][input].
// Thread mapping: the caller's range of panels.
// Phases per panel and token block: few tokens -> decode in registers, multiply at once (direct); more tokens ->
// decode a chunk of the panel to an L1 buffer once, then tiles of tokens run over it (buffered). Both add the same
// products in the same order, so a token's result does not depend on how many others there are.
#pragma once

#include "rows.h"
#include "tiles.h"

namespace {

struct Exact {
  static constexpr int kOrigin = Simd::kOrigin;
  static constexpr int turns(int length) { return length; }  // of the buffered loop

  // Scales one chunk's sums of MT tokens and NV vectors and adds them to the fp32 tile.
  template <int MT, int NV>
  QUANTFARM_INLINE static void finish(const ChunkView& c, const TileView& t, int j, const Simd::F (&acc)[MT][NV]) {
QUANTFARM_UNROLL
    for (int v = 0; v < NV; ++v) {
      const Simd::F scale = Simd::load(c.columns + j + v * Simd::kWidth);
QUANTFARM_UNROLL
      for (int m = 0; m < MT; ++m) {
        float* at = t.sums + m * kPanel + j + v * Simd::kWidth;
        Simd::store(at, Simd::fma(acc[m][v], scale, Simd::load(at)));
      }
    }
  }

  template <int MT, int NV, bool kZeros>
  QUANTFARM_NOINLINE static void direct(const ChunkView& c, const TileView& t, int j) {
    const Simd::Table table = Simd::table();
    const uint32_t* codes = c.codes + j;
    const float* x = static_cast<const float*>(c.values) + static_cast<int64_t>(t.token) * c.length;
    Simd::F acc[MT][NV], zero[NV];
QUANTFARM_UNROLL
    for (int m = 0; m < MT; ++m) {
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) acc[m][v] = Simd::zero();
    }
QUANTFARM_UNROLL
    for (int v = 0; kZeros && v < NV; ++v) zero[v] = Simd::load(c.columns + kPanel + j + v * Simd::kWidth);
    for (int r = 0; r < c.length; r += kWordCodes, codes += c.width) {
      Simd::I words[NV];
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) words[v] = Simd::load_words(codes + v * Simd::kWidth);
      prefetch_row<NV>(codes);
QUANTFARM_UNROLL
      for (int i = 0; i < kWordCodes; ++i) {
QUANTFARM_UNROLL
        for (int v = 0; v < NV; ++v) {
          Simd::F weight = Simd::decode(words[v], table);
          if (kZeros) weight = Simd::sub(weight, zero[v]);
          words[v] = Simd::next_code(words[v]);
QUANTFARM_UNROLL
          for (int m = 0; m < MT; ++m) {
            acc[m][v] = Simd::fma(weight, Simd::broadcast(x[m * c.length + r + i]), acc[m][v]);
          }
        }
      }
    }
    finish<MT, NV>(c, t, j, acc);
  }

  template <int MT, int NV>
  static void direct_chunk(const Problem& p, const ChunkView& c, const TileView& t, int j) {
    if (p.zeros || Simd::kOrigin != kMidpoint) direct<MT, NV, true>(c, t, j);
    else direct<MT, NV, false>(c, t, j);
  }

  // Decodes one chunk of a panel to floats, [input][column].
  static void decode_chunk(const Problem& p, const ChunkView& c, void* buffer) {
    const Simd::Table table = Simd::table();
    const bool zeros = p.zeros || Simd::kOrigin != kMidpoint;
    for (int j = 0; j < c.width; j += Simd::kWidth) {
      const Simd::F zero = Simd::load(c.columns + kPanel + j);
      const uint32_t* codes = c.codes + j;
      float* to = static_cast<float*>(buffer) + j;
      for (int r = 0; r < c.length; r += kWordCodes, codes += c.width) {
        Simd::I words = Simd::load_words(codes);
QUANTFARM_UNROLL
        for (int i = 0; i < kWordCodes; ++i, to += kPanel) {
          Simd::F weight = Simd::decode(words, table);
          if (zeros) weight = Simd::sub(weight, zero);
          words = Simd::next_code(words);
          Simd::store(to, weight);
        }
      }
    }
  }

  template <int MT, int NV>
  QUANTFARM_NOINLINE static void buffered_chunk(const Problem&, const ChunkView& c, const TileView& t, int j) {
    Ahead ahead = t.ahead;
    const float* weights = static_cast<const float*>(t.buffer) + j;
    const float* x = static_cast<const float*>(c.values) + static_cast<int64_t>(t.token) * c.length;
    Simd::F acc[MT][NV];
QUANTFARM_UNROLL
    for (int m = 0; m < MT; ++m) {
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) acc[m][v] = Simd::zero();
    }
    for (int i = 0; i < c.length; ++i, weights += kPanel) {
      ahead.touch();
      Simd::F weight[NV];
QUANTFARM_UNROLL
      for (int v = 0; v < NV; ++v) weight[v] = Simd::load(weights + v * Simd::kWidth);
QUANTFARM_UNROLL
      for (int m = 0; m < MT; ++m) {
        const Simd::F value = Simd::broadcast(x[m * c.length + i]);
QUANTFARM_UNROLL
        for (int v = 0; v < NV; ++v) acc[m][v] = Simd::fma(weight[v], value, acc[m][v]);
      }
    }
    finish<MT, NV>(c, t, j, acc);
  }

  static constexpr int kDirectTokens = Simd::kDirectTokens, kDirectTile = Simd::kDirectTokens;
  template <int MT>
  static constexpr int direct_vectors() {
    return Simd::kDirectVectors;
  }

  using Value = float;
  static constexpr int kBufferBytes = kMaxChunk * kPanel * 4;
};

// Phase 1: widen, permute, lay out by chunk.
void prepare_exact(const Problem& p, const Source& s, const Tokens& x, int64_t begin, int64_t end) {
  float* values = static_cast<float*>(x.values);
  for (int64_t t = begin; t < end; ++t) {
    const float* row = row_as_float(p, s, s.row ? s.row[t] : t);
    for (int64_t c = 0; c < p.chunks(); ++c) {
      const int length = p.chunk_length(c);
      std::memcpy(values + c * p.chunk * x.count + t * length, row + c * p.chunk, length * sizeof(float));
    }
  }
}

void compute_exact(const Problem& p, const Tokens& x, int64_t begin, int64_t end) {
  compute_panels<Exact>(p, x, begin, end);
}

}  // namespace
