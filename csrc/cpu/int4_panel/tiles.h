// The loops that both paths share: panels, token blocks, tiles, chunks. `Path` (exact_body.h, fixed_body.h) brings
// the arithmetic of one chunk. Included after rows.h.
#pragma once

#include "rows.h"

namespace {

// One chunk of one panel, with the activations of a token block.
struct ChunkView {
  const uint32_t* codes;  // first row of the chunk, column 0 of the panel
  const void* values;     // first token of the block
  const float* scale;     // activation scales and sums of the block's tokens; null on the exact path
  const float* sum;
  const float* columns;   // the group's column scales as float, [kPanel], then its zero points, [kPanel]
  int width, length;
};

// Prefetching goes to L2 only. Measured on one core reading a cold stream: 10.7 GB/s without hints, 11.9 with hints
// to L1 at any distance, 13.5 to L2: an L1 hint occupies one of the few L1 miss buffers for the whole DRAM latency.
template <int NV>
inline void prefetch_row(const uint32_t* codes) {
  for (int v = 0; v < NV * Simd::kWidth; v += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + v) + 8192, _MM_HINT_T1);
  }
}

// The next chunk's codes, fetched at the pace of the multiplication: `turns` steps of the running tile cover its
// share of them. In one burst while decoding, they would hold up the loads of the decoder itself.
struct Ahead {
  const char* at;
  int step;
  void touch() {
    _mm_prefetch(at, _MM_HINT_T1);
    at += step;
  }
};

inline Ahead next_codes(const ChunkView& c, int tile, int tiles, int turns) {
  const int bytes = c.length / kWordCodes * c.width * 4;
  const int share = bytes / tiles;
  return {reinterpret_cast<const char*>(c.codes) + bytes + tile * share, share / turns};
}

// Widens the group's scales and zero points once for all token tiles. Metadata is a thin stream of its own that the
// hardware does not follow in time: without the hint each chunk waits for memory once.
inline void load_columns(const Problem& p, int64_t meta, int width, int origin, float* columns) {
  constexpr int kGroupsAhead = 8;
  const int64_t bytes = element_bytes(p.scale_type), ahead = meta + static_cast<int64_t>(kGroupsAhead) * width;
  for (int64_t at = ahead * bytes; at < (ahead + width) * bytes; at += 64) {
    _mm_prefetch(static_cast<const char*>(p.scales) + at, _MM_HINT_T0);
  }
  if (p.zeros) _mm_prefetch(reinterpret_cast<const char*>(p.zeros + ahead), _MM_HINT_T0);
  for (int j = 0; j < width; j += Simd::kWidth) {
    Simd::store(columns + j, load_as_float(p.scales, meta + j, p.scale_type));
    Simd::store(columns + kPanel + j, load_zero(p, meta + j, origin));
  }
}

template <class Path>
inline ChunkView view_chunk(const Problem& p, const Tokens& x, const PanelView& panel, int64_t c, int64_t token) {
  const int length = p.chunk_length(c);
  const auto* values = static_cast<const typename Path::Value*>(x.values) + c * p.chunk * x.count + token * length;
  return {panel.codes + c * p.chunk / kWordCodes * panel.width,
          values,
          x.scale ? x.scale + c * x.count + token : nullptr,
          x.sum ? x.sum + c * x.count + token : nullptr,
          nullptr,
          panel.width,
          length};
}

// One tile of tokens in one chunk.
struct TileView {
  int token;           // first token, counted from the block's
  float* sums;         // [token][kPanel], where the chunk's scaled sums are added
  const void* buffer;  // the decoded chunk, for the buffered loops
  Ahead ahead;         // this tile's share of the next chunk's codes, for the buffered loops
};

// Groups of NV vectors across the panel, then what is left of a narrow last panel one vector at a time.
template <class Path, int MT>
inline void direct_tile(const Problem& p, const ChunkView& c, const TileView& t) {
  constexpr int NV = Path::template direct_vectors<MT>();
  int j = 0;
  for (; j + NV * Simd::kWidth <= c.width; j += NV * Simd::kWidth) Path::template direct_chunk<MT, NV>(p, c, t, j);
  for (; j < c.width; j += Simd::kWidth) Path::template direct_chunk<MT, 1>(p, c, t, j);
}

template <class Path, int MT>
inline void buffered_tile(const Problem& p, const ChunkView& c, const TileView& t) {
  constexpr int NV = Simd::kTileVectors;
  int j = 0;
  for (; j + NV * Simd::kWidth <= c.width; j += NV * Simd::kWidth) Path::template buffered_chunk<MT, NV>(p, c, t, j);
  for (; j < c.width; j += Simd::kWidth) Path::template buffered_chunk<MT, 1>(p, c, t, j);
}

// The tile size is a template argument, so that accumulators stay in registers; this turns a number into it.
template <class Path, int MT>
inline void direct_tokens(int tokens, const Problem& p, const ChunkView& c, const TileView& t) {
  if (tokens == MT) return direct_tile<Path, MT>(p, c, t);
  if constexpr (MT > 1) direct_tokens<Path, MT - 1>(tokens, p, c, t);
}

template <class Path, int MT>
inline void buffered_tokens(int tokens, const Problem& p, const ChunkView& c, const TileView& t) {
  if (tokens == MT) return buffered_tile<Path, MT>(p, c, t);
  if constexpr (MT > 1) buffered_tokens<Path, MT - 1>(tokens, p, c, t);
}

// One panel for one block of at most kTokenBlock tokens. Tiles are as equal as possible: 16 tokens are 6 + 5 + 5,
// not 6 + 6 + 4, because a small tile can not hide the latency of its few accumulators.
template <class Path>
inline void compute_block(const Problem& p, const Tokens& x, const PanelView& panel, int64_t first, int count,
                          float* sums) {
  alignas(64) char buffer[Path::kBufferBytes];
  alignas(64) float columns[2 * kPanel];
  const bool direct = x.count <= Path::kDirectTokens;
  const int largest = direct ? Path::kDirectTile : Simd::kTileTokens;
  const int tiles = (count + largest - 1) / largest;
  for (int64_t c = 0; c < p.chunks(); ++c) {
    ChunkView chunk = view_chunk<Path>(p, x, panel, c, first);
    load_columns(p, panel.meta + p.group_of_chunk(c) * panel.width, panel.width, Path::kOrigin, columns);
    chunk.columns = columns;
    if (!direct) Path::decode_chunk(p, chunk, buffer);
    for (int i = 0, token = 0; i < tiles; ++i) {
      const int tokens = (count - token + tiles - i - 1) / (tiles - i);
      const Ahead ahead = next_codes(chunk, i, tiles, Path::turns(chunk.length));
      const TileView tile{token, sums + token * kPanel, buffer, ahead};
      if (direct) direct_tokens<Path, Path::kDirectTile>(tokens, p, chunk, tile);
      else buffered_tokens<Path, Simd::kTileTokens>(tokens, p, chunk, tile);
      token += tokens;
    }
  }
}

template <class Path>
inline void compute_panels(const Problem& p, const Tokens& x, int64_t begin, int64_t end) {
  alignas(64) float sums[kTokenBlock * kPanel];
  for (int64_t panel = begin; panel < end; ++panel) {
    const PanelView view = view_panel(p, panel);
    for (int64_t first = 0; first < x.count; first += kTokenBlock) {
      const int count = static_cast<int>(x.count - first < kTokenBlock ? x.count - first : kTokenBlock);
      std::memset(sums, 0, sizeof(float) * count * kPanel);
      compute_block<Path>(p, x, view, first, count, sums);
      finish_rows(p, x, first, count, panel, sums);
    }
  }
}

}  // namespace
