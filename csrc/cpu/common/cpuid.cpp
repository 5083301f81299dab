// CPUID and XGETBV, read once. Compiled for the x86-64 baseline: this file decides whether anything newer may run.
#include "cpuid.h"

#include <cpuid.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace quantfarm::cpu {
namespace {

struct Features {
  bool level[kIsaCount] = {false, false, false, false};
};

// XCR0 tells which register files the OS saves. The raw opcode avoids -mxsave, which this file must not need.
unsigned long long read_xcr0() {
  unsigned eax, edx;
  __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(eax), "=d"(edx) : "c"(0));
  return (static_cast<unsigned long long>(edx) << 32) | eax;
}

Features detect() {
  Features found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool osxsave = c & (1u << 27), avx = c & (1u << 28), fma = c & (1u << 12), f16c = c & (1u << 29);
  if (!osxsave || !avx || !fma || !f16c) return found;
  const unsigned long long xcr0 = read_xcr0();
  const bool ymm_saved = (xcr0 & 0x6) == 0x6;    // xmm and upper ymm halves
  const bool zmm_saved = (xcr0 & 0xe6) == 0xe6;  // also mask registers and both zmm parts
  if (!ymm_saved || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.level[kAvx2] = b & (1u << 5);
  const unsigned f_dq_bw_vl = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
  found.level[kAvx512] = found.level[kAvx2] && zmm_saved && (b & f_dq_bw_vl) == f_dq_bw_vl;
  found.level[kAvx512Vnni] = found.level[kAvx512] && (c & (1u << 11));
  return found;
}

const Features& features() {
  static const Features found = detect();
  return found;
}

std::atomic<int> forced{kAuto};

int best_isa() {
  for (int isa = kIsaCount - 1; isa > kAuto; --isa) {
    if (host_has(static_cast<Isa>(isa)) && build_has(static_cast<Isa>(isa))) return isa;
  }
  return kAuto;
}

}  // namespace

bool host_has(Isa isa) { return features().level[isa]; }

bool build_has(Isa isa) {
  switch (isa) {
    case kAvx2: return QUANTFARM_HAS_AVX2;
    case kAvx512: return QUANTFARM_HAS_AVX512;
    case kAvx512Vnni: return QUANTFARM_HAS_AVX512_VNNI;
    default: return false;
  }
}

const char* isa_name(int isa) {
  static const char* const names[kIsaCount] = {"auto", "avx2", "avx512", "avx512_vnni"};
  return isa >= 0 && isa < kIsaCount ? names[isa] : "unknown";
}

int active_isa() {
  const int isa = forced.load(std::memory_order_relaxed);
  return isa == kAuto ? best_isa() : isa;
}

void set_isa(int isa) {
  const std::string asked = "cannot force instruction set " + std::to_string(isa) + " (" + isa_name(isa) + "): ";
  if (isa < 0 || isa >= kIsaCount) throw std::runtime_error(asked + "needs 0 auto, 1 avx2, 2 avx512 or 3 avx512_vnni");
  if (isa != kAuto && !host_has(static_cast<Isa>(isa))) throw std::runtime_error(asked + "this processor lacks it");
  if (isa != kAuto && !build_has(static_cast<Isa>(isa))) throw std::runtime_error(asked + "this build left it out");
  forced.store(isa, std::memory_order_relaxed);
}

}  // namespace quantfarm::cpu
