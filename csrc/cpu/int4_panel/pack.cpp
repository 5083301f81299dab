// Data layout: problem.h. Thread mapping: one panel a call. Phases: one pass over the rows of the target.
//
// Without a permutation a packed word *is* the canonical word, so rows are copied. With one, the eight codes of a
// packed word come from eight canonical words of the same column; both directions walk columns innermost, so
// that reads and writes stay inside a few cache lines however the inputs are scattered.
#include "pack.h"

#include <algorithm>
#include <cstring>

#include "problem.h"

namespace quantfarm::int4_panel {
namespace {

struct Panel {
  int64_t first, width, columns;  // first column, padded width, columns that really exist
};

Panel panel_of(int64_t n, int64_t p) {
  const int64_t padded = (n + kLine - 1) / kLine * kLine, first = p * kPanel;
  return {first, std::min<int64_t>(kPanel, padded - first), std::min<int64_t>(kPanel, n - first)};
}

}  // namespace

void pack_panel(const uint32_t* canonical, const int32_t* perm, int64_t k, int64_t n, int64_t p, uint32_t* packed) {
  const Panel panel = panel_of(n, p);
  const int64_t rows = k / kWordCodes;
  uint32_t* to = packed + panel.first * rows;
  for (int64_t r = 0; r < rows; ++r, to += panel.width) {
    // Padding columns hold code 0; their scale is 0 as well and they are never stored.
    std::memset(to, 0, panel.width * sizeof(uint32_t));
    if (!perm) {
      std::memcpy(to, canonical + r * n + panel.first, panel.columns * sizeof(uint32_t));
      continue;
    }
    for (int i = 0; i < kWordCodes; ++i) {
      const int64_t from_k = perm[r * kWordCodes + i];
      const uint32_t* from = canonical + from_k / kWordCodes * n + panel.first;
      const int shift = static_cast<int>(from_k % kWordCodes) * 4;
      for (int64_t j = 0; j < panel.columns; ++j) to[j] |= ((from[j] >> shift) & 15u) << (4 * i);
    }
  }
}

void unpack_panel(const uint32_t* packed, const int32_t* perm, int64_t k, int64_t n, int64_t p, uint32_t* canonical) {
  const Panel panel = panel_of(n, p);
  const int64_t rows = k / kWordCodes;
  const uint32_t* from = packed + panel.first * rows;
  // With a permutation every canonical word is assembled from several packed ones, so it starts at zero.
  for (int64_t r = 0; perm && r < rows; ++r) {
    std::memset(canonical + r * n + panel.first, 0, panel.columns * sizeof(uint32_t));
  }
  for (int64_t r = 0; r < rows; ++r, from += panel.width) {
    if (!perm) {
      std::memcpy(canonical + r * n + panel.first, from, panel.columns * sizeof(uint32_t));
      continue;
    }
    for (int i = 0; i < kWordCodes; ++i) {
      const int64_t to_k = perm[r * kWordCodes + i];
      uint32_t* to = canonical + to_k / kWordCodes * n + panel.first;
      const int shift = static_cast<int>(to_k % kWordCodes) * 4;
      for (int64_t j = 0; j < panel.columns; ++j) to[j] |= ((from[j] >> (4 * i)) & 15u) << shift;
    }
  }
}

}  // namespace quantfarm::int4_panel
