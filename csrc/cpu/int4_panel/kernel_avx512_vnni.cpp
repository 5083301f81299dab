// int4 x 16-bit activations on AVX512 VNNI: VPDPWSSD, 32 int16 products a cycle and port. Layout, thread mapping,
// phases: problem.h. Rows that int16 can not carry take the exact path of the same file.
#include "simd_avx512.h"
#include "fixed_avx512.h"

#include "exact_body.h"
#include "fixed_body.h"

QUANTFARM_EXPORT const Kernel* quantfarm_cpu_int4_panel_avx512_vnni() {
  static constexpr Kernel kernel{3, prepare_exact, prepare_fixed, compute_exact, compute_fixed};
  return &kernel;
}
