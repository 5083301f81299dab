// int4 x float product for AVX512 F/BW/VL/DQ, 16 fp32 lanes. Layout, thread mapping, phases: problem.h.
#include "simd_avx512.h"

#include "exact_body.h"

QUANTFARM_EXPORT const Kernel* quantfarm_cpu_int4_panel_avx512() {
  static constexpr Kernel kernel{2, prepare_exact, nullptr, compute_exact, nullptr};
  return &kernel;
}
