// int4 x float product for AVX2 with FMA and F16C, 8 fp32 lanes. Layout, thread mapping, phases: problem.h.
#include "simd_avx2.h"

#include "exact_body.h"

QUANTFARM_EXPORT const Kernel* quantfarm_cpu_int4_panel_avx2() {
  static constexpr Kernel kernel{1, prepare_exact, nullptr, compute_exact, nullptr};
  return &kernel;
}
