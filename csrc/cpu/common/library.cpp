// Operators that concern the whole library: which instruction set runs, and forcing one.
#include <torch/csrc/stable/library.h>

#include "cpuid.h"

namespace {

int64_t cpu_isa() { return quantfarm::cpu::active_isa(); }

void set_cpu_isa(int64_t isa) {
  // Values outside int would wrap to a valid level.
  quantfarm::cpu::set_isa(isa >= 0 && isa < quantfarm::cpu::kIsaCount ? static_cast<int>(isa) : -1);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(quantfarm_cpu, m) {
  m.def("cpu_isa() -> int");
  m.def("set_cpu_isa(int isa) -> ()");
}

// No tensor argument, so no backend key: registered for every key.
STABLE_TORCH_LIBRARY_IMPL(quantfarm_cpu, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa));
  m.impl("set_cpu_isa", TORCH_BOX(&set_cpu_isa));
}
