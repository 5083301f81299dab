// Phases of one call: prepare the rows of x, multiply panel by panel. Layout and thread mapping: problem.h.
#include "product.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "../common/cpuid.h"
#include "../common/threads.h"

namespace quantfarm::int4_panel {
namespace {

using cpu::run_parts;
using cpu::thread_count;

// Rows that are prepared together: bounds the workspace (K * 256 floats) whatever M is. The weights are read once
// for each such block, which costs nothing beside 256 rows of arithmetic.
constexpr int64_t kRowBlock = 256;
// Multiply-adds below which a second thread costs more than it brings (about 5 us for start and join).
constexpr int64_t kWorkPerThread = 1 << 17;

std::atomic<int64_t> counts[cpu::kIsaCount];

const Kernel* kernel_for(int isa) {
  switch (isa) {
#if QUANTFARM_HAS_AVX2
    case cpu::kAvx2: return quantfarm_cpu_int4_panel_avx2();
#endif
#if QUANTFARM_HAS_AVX512
    case cpu::kAvx512: return quantfarm_cpu_int4_panel_avx512();
#endif
#if QUANTFARM_HAS_AVX512_VNNI
    case cpu::kAvx512Vnni: return quantfarm_cpu_int4_panel_avx512_vnni();
#endif
    default: return nullptr;
  }
}

// Memory aligned to a cache line, freed at the end of the call: nothing outlives it.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    if (count == 0) return;
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
  }
  T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
};

int parts_for(int64_t units, int64_t work) {
  const int64_t useful = std::max<int64_t>(1, work / kWorkPerThread);
  return static_cast<int>(std::min<int64_t>({thread_count(), units, useful}));
}

// Phase 1 over all tokens of `x`; `prepare(source, begin, end)` is one of the kernel's two functions.
template <class Prepare>
void prepare_tokens(const Problem& p, Source source, int64_t count, const Prepare& prepare) {
  // A row costs about eight multiply-adds an input.
  const int parts = parts_for(count, count * p.k * 8);
  const bool needs_scratch = source.type != kFloat || p.perm;
  const Buffer<float> scratch(needs_scratch ? parts * 2 * p.k : 0);
  run_parts(parts, [&](int part) {
    Source mine = source;
    mine.scratch = scratch.data() + (needs_scratch ? part * 2 * p.k : 0);
    prepare(mine, count * part / parts, count * (part + 1) / parts);
  });
}

void multiply_block(const Problem& p, const Kernel& kernel, const Source& source, int64_t rows, bool* used_fixed,
                    bool* used_exact) {
  const bool try_fixed = kernel.prepare_fixed && source.type != kFloat;
  const int64_t sums = try_fixed ? p.chunks() * rows : 0;
  const Buffer<int16_t> fixed_values(try_fixed ? p.k * rows : 0);
  const Buffer<float> fixed_scale(sums), fixed_sum(sums);
  const Tokens fixed{fixed_values.data(), fixed_scale.data(), fixed_sum.data(), nullptr, rows};
  std::vector<uint8_t> suitable(rows, 0);
  if (try_fixed) {
    prepare_tokens(p, source, rows, [&](const Source& s, int64_t begin, int64_t end) {
      kernel.prepare_fixed(p, s, fixed, begin, end, suitable.data());
    });
  }
  std::vector<int32_t> exact_rows;
  for (int64_t t = 0; t < rows; ++t) {
    if (!suitable[t]) exact_rows.push_back(static_cast<int32_t>(t));
  }
  const int64_t exact_count = static_cast<int64_t>(exact_rows.size());
  const Buffer<float> exact_values(p.k * exact_count);
  const Tokens exact{exact_values.data(), nullptr, nullptr, exact_rows.data(), exact_count};
  if (exact_count) {
    Source some = source;
    some.row = exact_rows.data();
    prepare_tokens(p, some, exact_count, [&](const Source& s, int64_t begin, int64_t end) {
      kernel.prepare_exact(p, s, exact, begin, end);
    });
  }
  const bool any_fixed = exact_count < rows;
  const int parts = parts_for(p.panels(), rows * p.k * p.n);
  run_parts(parts, [&](int part) {
    const int64_t begin = p.panels() * part / parts, end = p.panels() * (part + 1) / parts;
    if (any_fixed) kernel.compute_fixed(p, fixed, begin, end);
    // After the fixed path, because that one has written zeros into these rows.
    if (exact_count) kernel.compute_exact(p, exact, begin, end);
  });
  *used_fixed |= any_fixed;
  *used_exact |= exact_count > 0;
}

}  // namespace

void multiply(const Problem& p, const void* x, int64_t rows) {
  const Kernel* kernel = kernel_for(cpu::active_isa());
  if (!kernel) {
    throw std::runtime_error(
        "int4_panel_mm: processor: needs AVX2 with FMA and F16C (or a level that this build holds), got neither");
  }
  const int64_t element = p.out_type == kFloat ? 4 : 2;
  bool used_fixed = false, used_exact = false;
  for (int64_t first = 0; first < rows; first += kRowBlock) {
    Problem block = p;
    block.out = static_cast<char*>(p.out) + first * p.n * element;
    const Source source{static_cast<const char*>(x) + first * p.k * element, p.out_type, nullptr, nullptr};
    multiply_block(block, *kernel, source, std::min(kRowBlock, rows - first), &used_fixed, &used_exact);
  }
  counts[cpu::kAuto].fetch_add(1, std::memory_order_relaxed);
  // The exact path of the VNNI file is plain AVX512 arithmetic and is counted as that.
  if (used_fixed) counts[kernel->isa].fetch_add(1, std::memory_order_relaxed);
  if (used_exact) counts[std::min<int>(kernel->isa, cpu::kAvx512)].fetch_add(1, std::memory_order_relaxed);
}

int64_t call_count(int isa) { return counts[isa].load(std::memory_order_relaxed); }

void advise_huge_pages(void* begin, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 2 << 20;
  const auto from = (reinterpret_cast<std::uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const auto to = (reinterpret_cast<std::uintptr_t>(begin) + bytes) / kPage * kPage;
#ifdef MADV_HUGEPAGE
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

}  // namespace quantfarm::int4_panel
