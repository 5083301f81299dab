// Instruction-set levels of the host and the one that is in use.
#pragma once

namespace quantfarm::cpu {

// Ordered: a higher level needs everything that a lower one needs.
// kAuto is only a request ("the best that host and build both have"), never an active level.
enum Isa : int { kAuto = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Vnni = 3 };
constexpr int kIsaCount = 4;

// True when processor *and* operating system support the level. The OS part (XCR0) matters: a kernel that
// does not save the zmm state on a context switch silently corrupts results, although CPUID says "avx512f".
bool host_has(Isa isa);

// True when this library was built with code for the level.
bool build_has(Isa isa);

const char* isa_name(int isa);

// The level that a call uses now; 0 when no built level runs on this host.
int active_isa();

// Force one level or go back to automatic; throws std::runtime_error when host or build lack it.
void set_isa(int isa);

}  // namespace quantfarm::cpu
