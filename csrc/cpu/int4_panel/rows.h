// Shared by the bodies: reading metadata and activations of any float type, and the epilogue.
// Included after a simd_*.h file. Everything is in an unnamed namespace on purpose: two instruction-set files must
// never share a function, or the linker may keep the one that the host can not run.
#pragma once

#include <cstring>

#include "problem.h"

// Arrays of accumulators live in registers only if every loop over them is unrolled whole. Each chunk function is
// kept a function of its own: inlined into one body, the allocator spills what the inner loops need.
#define QUANTFARM_UNROLL _Pragma("GCC unroll 8")
#define QUANTFARM_NOINLINE __attribute__((noinline))
#define QUANTFARM_INLINE __attribute__((always_inline)) inline

namespace {

using namespace quantfarm::int4_panel;

inline int64_t element_bytes(FloatType type) { return type == kFloat ? 4 : 2; }

inline Simd::F load_as_float(const void* base, int64_t index, FloatType type) {
  const char* at = static_cast<const char*>(base) + index * element_bytes(type);
  if (type == kHalf) return Simd::from_half(reinterpret_cast<const uint16_t*>(at));
  if (type == kBfloat16) return Simd::from_bfloat16(reinterpret_cast<const uint16_t*>(at));
  return Simd::load(reinterpret_cast<const float*>(at));
}

// `count` elements (fewer than a vector) without touching memory behind them.
inline Simd::F load_partial(const void* base, int64_t index, FloatType type, int count) {
  alignas(64) char lanes[Simd::kWidth * 4] = {};
  std::memcpy(lanes, static_cast<const char*>(base) + index * element_bytes(type), count * element_bytes(type));
  return load_as_float(lanes, 0, type);
}

// One row of x as floats in the packed order. Returns x itself where it already is that.
inline const float* row_as_float(const Problem& p, const Source& s, int64_t row) {
  const int64_t first = row * p.k, whole = p.k / Simd::kWidth * Simd::kWidth;
  const float* plain = static_cast<const float*>(s.x) + first;
  if (s.type != kFloat) {
    for (int64_t i = 0; i < whole; i += Simd::kWidth) {
      Simd::store(s.scratch + i, load_as_float(s.x, first + i, s.type));
    }
    if (whole < p.k) {
      alignas(64) float rest[Simd::kWidth];
      Simd::store(rest, load_partial(s.x, first + whole, s.type, static_cast<int>(p.k - whole)));
      std::memcpy(s.scratch + whole, rest, (p.k - whole) * sizeof(float));
    }
    plain = s.scratch;
  }
  if (!p.perm) return plain;
  float* sorted = s.scratch + p.k;
  for (int64_t i = 0; i < whole; i += Simd::kWidth) Simd::store(sorted + i, Simd::gather(plain, p.perm + i));
  for (int64_t i = whole; i < p.k; ++i) sorted[i] = plain[p.perm[i]];
  return sorted;
}

// Where a panel's words and metadata begin.
struct PanelView {
  const uint32_t* codes;
  int64_t meta;  // element index of group 0 in scales and zeros
  int width;
};

inline PanelView view_panel(const Problem& p, int64_t panel) {
  const int64_t first = panel * kPanel;
  return {p.codes + first * (p.k / kWordCodes), first * p.groups(), p.panel_width(panel)};
}

// Zero points of one vector of columns, counted from `origin` (the value that decoding has already taken off).
inline Simd::F load_zero(const Problem& p, int64_t index, int origin) {
  if (!p.zeros) return Simd::broadcast(static_cast<float>(kMidpoint - origin));
  return Simd::sub(Simd::from_u8(p.zeros + index), Simd::broadcast(static_cast<float>(origin)));
}

inline void store_vector(const Problem& p, int64_t index, Simd::F v, int count) {
  alignas(64) char lanes[Simd::kWidth * 4];
  char* at = static_cast<char*>(p.out) + index * element_bytes(p.out_type);
  // A whole vector goes straight to memory, the last columns through a buffer.
  char* to = count == Simd::kWidth ? at : lanes;
  if (p.out_type == kHalf) Simd::to_half(reinterpret_cast<uint16_t*>(to), v);
  else if (p.out_type == kBfloat16) Simd::to_bfloat16(reinterpret_cast<uint16_t*>(to), v);
  else Simd::store(reinterpret_cast<float*>(to), v);
  if (to == lanes) std::memcpy(at, lanes, count * element_bytes(p.out_type));
}

// Adds the bias to `count` rows of the fp32 tile, rounds once, stores the columns that exist.
inline void finish_rows(const Problem& p, const Tokens& x, int64_t first_token, int count, int64_t panel,
                        const float* tile) {
  const int64_t first = panel * kPanel;
  for (int64_t j = 0; j < kPanel && first + j < p.n; j += Simd::kWidth) {
    const int lanes = static_cast<int>(p.n - first - j < Simd::kWidth ? p.n - first - j : Simd::kWidth);
    Simd::F bias = Simd::zero();
    if (p.bias) bias = lanes == Simd::kWidth ? load_as_float(p.bias, first + j, p.bias_type)
                                             : load_partial(p.bias, first + j, p.bias_type, lanes);
    for (int t = 0; t < count; ++t) {
      const int64_t token = first_token + t, row = x.out_row ? x.out_row[token] : token;
      Simd::F v = Simd::load(tile + t * kPanel + j);
      if (p.bias) v = Simd::add(v, bias);  // without one, -0 must stay -0
      store_vector(p, row * p.n + first + j, v, lanes);
    }
  }
}

}  // namespace
