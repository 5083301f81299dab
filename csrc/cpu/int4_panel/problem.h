// The private layout and the plain records that cross from the generic code to the instruction-set files.
//
// Data layout of the codes. Columns are cut into panels of 64; the last panel is as narrow as N padded to 16
// allows (16, 32, 48 or 64). A panel holds K/8 rows of `width` 32-bit words: word (r, j) carries the eight codes
// k = 8r .. 8r+7 of column j, nibble i = code 8r+i, exactly the canonical word. So 16 columns x 8 inputs are one
// 64-byte line, a thread reads one sequential stream, and packing moves words without touching bits.
//
//   panel p starts at word 64 * p * (K/8); row r of it at + r * width; column j of it at + j
//
// Scales and zero points use the same panel order with groups in place of rows: element 64 * p * G + g * width + j.
//
// Thread mapping: panels are dealt to threads in contiguous ranges; one thread owns a column for the whole of K,
// so there is no reduction between threads and the result does not depend on their number.
//
// Phases of a call: (1) rows of x are widened, permuted and, on the fixed-point path, scaled to int16, chunk by
// chunk; (2) per panel and token block: codes are decoded and multiplied, each chunk's sum is scaled and added
// to an fp32 tile; (3) bias, one rounding, store.
#pragma once

#include <cstdint>

namespace quantfarm::int4_panel {

constexpr int kPanel = 64;       // columns of a full panel
constexpr int kLine = 16;        // columns of one 64-byte line; N is padded to this
constexpr int kWordCodes = 8;    // codes in a 32-bit word
constexpr int kMaxChunk = 128;   // inputs that share one activation scale and one partial sum
constexpr int kTokenBlock = 64;  // tokens that share one decoding of a panel; their fp32 tile is 16 KB
constexpr int kMidpoint = 8;     // zero point of symmetric codes

enum FloatType : int { kHalf = 0, kBfloat16 = 1, kFloat = 2 };

// One matrix and where its result goes.
struct Problem {
  const uint32_t* codes;
  const void* scales;     // panel order, scale_type
  const uint8_t* zeros;   // panel order; null when every zero point is the midpoint
  const void* bias;       // [n], bias_type; may be null
  void* out;              // [tokens, n], out_type
  const int32_t* perm;    // [k] or null: input k of the packed order is column perm[k] of x
  FloatType scale_type, bias_type, out_type;
  int64_t k, n;
  int64_t group;          // inputs per scale
  int chunk;              // inputs per partial sum: divides group, except that a last one may be short

  int64_t chunks() const { return (k + chunk - 1) / chunk; }
  int chunk_length(int64_t c) const { return static_cast<int>(k - c * chunk < chunk ? k - c * chunk : chunk); }
  int64_t groups() const { return k / group; }
  int64_t group_of_chunk(int64_t c) const { return c * chunk / group; }
  int64_t padded_n() const { return (n + kLine - 1) / kLine * kLine; }
  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int panel_width(int64_t p) const {
    const int64_t left = padded_n() - p * kPanel;
    return static_cast<int>(left < kPanel ? left : kPanel);
  }
};

// Prepared activations. Chunk-major ([chunk][token][input]) so that the tokens of one chunk are contiguous: rows
// of x that lie a power of two apart would otherwise fall into the same few cache sets.
struct Tokens {
  void* values;            // float (exact path) or int16 (fixed-point path); chunk c starts at c * chunk * count
  float* scale;            // fixed-point path: [chunk][token], value = int16 * scale
  float* sum;              // fixed-point path: [chunk][token], sum of the int16 values
  const int32_t* out_row;  // row of `out` for each token; null when token t is row t
  int64_t count;
};

// Rows of x to prepare.
struct Source {
  const void* x;         // [rows, k], type
  FloatType type;
  const int32_t* row;    // which row of x token t is; null when token t is row t
  float* scratch;        // 2 * k floats for this thread
};

// What one instruction-set file offers. A null prepare_fixed means: exact path only.
struct Kernel {
  int isa;
  void (*prepare_exact)(const Problem&, const Source&, const Tokens&, int64_t begin, int64_t end);
  // Sets suitable[t] to 0 where int16 can not carry token t; its values are then zero.
  void (*prepare_fixed)(const Problem&, const Source&, const Tokens&, int64_t begin, int64_t end, uint8_t* suitable);
  void (*compute_exact)(const Problem&, const Tokens&, int64_t panel_begin, int64_t panel_end);
  void (*compute_fixed)(const Problem&, const Tokens&, int64_t panel_begin, int64_t panel_end);
};

}  // namespace quantfarm::int4_panel

// Entry of each instruction-set file. Exported: the presence gate reads these names in the finished library.
#define QUANTFARM_EXPORT extern "C" __attribute__((visibility("default")))
QUANTFARM_EXPORT const quantfarm::int4_panel::Kernel* quantfarm_cpu_int4_panel_avx2();
QUANTFARM_EXPORT const quantfarm::int4_panel::Kernel* quantfarm_cpu_int4_panel_avx512();
QUANTFARM_EXPORT const quantfarm::int4_panel::Kernel* quantfarm_cpu_int4_panel_avx512_vnni();
