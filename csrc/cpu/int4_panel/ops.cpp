// Operators of the kernel: argument checks, choice of the instruction set, the phases of a call.
// Layout, thread mapping, phases: problem.h.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "../common/check.h"
#include "../common/cpuid.h"
#include "../common/threads.h"
#include "pack.h"
#include "product.h"

namespace {

using namespace quantfarm::cpu;
using namespace quantfarm::int4_panel;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kPack = "int4_panel_pack";
constexpr const char* kUnpack = "int4_panel_unpack";
constexpr const char* kProduct = "int4_panel_mm";

FloatType float_type(const Tensor& t) {
  if (t.scalar_type() == ScalarType::Half) return kHalf;
  return t.scalar_type() == ScalarType::BFloat16 ? kBfloat16 : kFloat;
}

// Columns that the layout holds: whole 64-byte lines.
int64_t padded(int64_t n) { return (n + kLine - 1) / kLine * kLine; }

// Returns the permutation's data after checking everything that could make a gather read outside x.
const int32_t* checked_perm(const char* op, const OptionalTensor& perm, int64_t k) {
  if (!perm) return nullptr;
  need_dtype(op, "perm dtype", *perm, ScalarType::Int);
  need_dense(op, "perm", *perm);
  if (perm->dim() != 1 || perm->size(0) != k) refuse(op, "perm shape", "[" + std::to_string(k) + "]", shape_of(*perm));
  return perm->const_data_ptr<int32_t>();
}

// Only at packing time: K comparisons a call would be wasted in the product, which takes the same tensor.
void need_permutation(const char* op, const int32_t* perm, int64_t k) {
  std::vector<bool> seen(perm ? k : 0, false);
  for (int64_t i = 0; perm && i < k; ++i) {
    const int64_t at = perm[i];
    if (at < 0 || at >= k || seen[at]) refuse(op, "perm values", "each of 0 .. K-1 once", at);
    seen[at] = true;
  }
}

void need_k(const char* op, int64_t k) {
  if (k <= 0 || k % kWordCodes) refuse(op, "K", "a positive multiple of 8", k);
}

// Panels are independent in both directions.
template <class Move>
void for_each_panel(int64_t n, const Move& move) {
  const int64_t panels = (n + kPanel - 1) / kPanel;
  const int parts = static_cast<int>(std::min<int64_t>(thread_count(), panels));
  run_parts(parts, [&](int part) {
    for (int64_t p = panels * part / parts; p < panels * (part + 1) / parts; ++p) move(p);
  });
}

Tensor pack(Tensor qweight, OptionalTensor perm, int64_t n) {
  need_dtype(kPack, "qweight dtype", qweight, ScalarType::Int);
  need_dense(kPack, "qweight", qweight);
  if (qweight.dim() != 2 || qweight.size(1) != n || n <= 0) {
    refuse(kPack, "qweight shape", "[K/8, " + std::to_string(n) + "]", shape_of(qweight));
  }
  const int64_t k = qweight.size(0) * kWordCodes;
  need_k(kPack, k);
  const int32_t* order = checked_perm(kPack, perm, k);
  need_permutation(kPack, order, k);
  Tensor packed = torch::stable::new_empty(qweight, {padded(n) * (k / kWordCodes)});
  auto* to = reinterpret_cast<uint32_t*>(packed.mutable_data_ptr<int32_t>());
  advise_huge_pages(to, packed.numel() * sizeof(uint32_t));
  const auto* from = reinterpret_cast<const uint32_t*>(qweight.const_data_ptr<int32_t>());
  for_each_panel(n, [&](int64_t panel) { pack_panel(from, order, k, n, panel, to); });
  return packed;
}

void need_packed(const char* op, const Tensor& packed, int64_t k, int64_t n) {
  need_dtype(op, "packed dtype", packed, ScalarType::Int);
  need_dense(op, "packed", packed);
  const int64_t words = padded(n) * (k / kWordCodes);
  if (packed.numel() != words) refuse(op, "packed words", std::to_string(words), packed.numel());
}

Tensor unpack(Tensor packed, OptionalTensor perm, int64_t k, int64_t n) {
  need_k(kUnpack, k);
  if (n <= 0) refuse(kUnpack, "n", "a positive number", n);
  need_packed(kUnpack, packed, k, n);
  const int32_t* order = checked_perm(kUnpack, perm, k);
  need_permutation(kUnpack, order, k);
  Tensor canonical = torch::stable::new_empty(packed, {k / kWordCodes, n});
  auto* to = reinterpret_cast<uint32_t*>(canonical.mutable_data_ptr<int32_t>());
  const auto* from = reinterpret_cast<const uint32_t*>(packed.const_data_ptr<int32_t>());
  for_each_panel(n, [&](int64_t panel) { unpack_panel(from, order, k, n, panel, to); });
  return canonical;
}

// Group sizes that split into equal chunks of at most 128; one group for the whole of K may end in a short chunk.
int chunk_for(int64_t group, int64_t k) {
  const bool known = group == 16 || group == 32 || group == 64 || group == 128 || group == 256 || group == 512;
  if (group != k && !known) refuse(kProduct, "group_size", "-1, K, 16, 32, 64, 128, 256 or 512", group);
  if (k % group) refuse(kProduct, "K", "a multiple of the group size " + std::to_string(group), k);
  return static_cast<int>(std::min<int64_t>(group, kMaxChunk));
}

void check_metadata(const Problem& p, const Tensor& scales, const OptionalTensor& zeros, const OptionalTensor& bias) {
  const int64_t count = p.groups() * p.padded_n();
  need_float(kProduct, "scales dtype", scales);
  need_dense(kProduct, "scales", scales);
  if (scales.numel() != count) refuse(kProduct, "scales elements", std::to_string(count), scales.numel());
  if (zeros) {
    need_dtype(kProduct, "zeros dtype", *zeros, ScalarType::Byte);
    need_dense(kProduct, "zeros", *zeros);
    if (zeros->numel() != count) refuse(kProduct, "zeros elements", std::to_string(count), zeros->numel());
  }
  if (bias) {
    need_float(kProduct, "bias dtype", *bias);
    need_dense(kProduct, "bias", *bias);
    if (bias->numel() != p.n) refuse(kProduct, "bias elements", std::to_string(p.n), bias->numel());
  }
}

Tensor product(Tensor x, Tensor packed, Tensor scales, OptionalTensor zeros, OptionalTensor perm, OptionalTensor bias,
               int64_t group_size, int64_t n) {
  need_float(kProduct, "x dtype", x);
  need_dense(kProduct, "x", x);
  if (x.dim() != 2) refuse(kProduct, "x shape", "[M, K]", shape_of(x));
  if (n <= 0) refuse(kProduct, "n", "a positive number", n);
  Problem p{};
  p.k = x.size(1);
  p.n = n;
  need_k(kProduct, p.k);
  p.group = group_size == -1 ? p.k : group_size;
  p.chunk = chunk_for(p.group, p.k);
  need_packed(kProduct, packed, p.k, n);
  check_metadata(p, scales, zeros, bias);
  p.perm = checked_perm(kProduct, perm, p.k);
  p.codes = reinterpret_cast<const uint32_t*>(packed.const_data_ptr<int32_t>());
  p.scales = scales.const_data_ptr();
  p.scale_type = float_type(scales);
  p.zeros = zeros ? zeros->const_data_ptr<uint8_t>() : nullptr;
  p.bias = bias ? bias->const_data_ptr() : nullptr;
  p.bias_type = bias ? float_type(*bias) : kFloat;
  p.out_type = float_type(x);
  Tensor out = torch::stable::new_empty(x, {x.size(0), n});
  p.out = out.mutable_data_ptr();
  // No rows, no launch: also the counter stays as it is.
  if (x.size(0) > 0) multiply(p, x.const_data_ptr(), x.size(0));
  return out;
}

int64_t calls(int64_t isa) { return isa >= 0 && isa < kIsaCount ? call_count(static_cast<int>(isa)) : 0; }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(quantfarm_cpu, m) {
  m.def("int4_panel_pack(Tensor qweight, Tensor? perm, int n) -> Tensor");
  m.def("int4_panel_unpack(Tensor packed, Tensor? perm, int k, int n) -> Tensor");
  m.def(
      "int4_panel_mm(Tensor x, Tensor packed, Tensor scales, Tensor? zeros, Tensor? perm, Tensor? bias, "
      "int group_size, int n) -> Tensor");
  m.def("int4_panel_calls(int isa=0) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(quantfarm_cpu, CPU, m) {
  m.impl("int4_panel_pack", TORCH_BOX(&pack));
  m.impl("int4_panel_unpack", TORCH_BOX(&unpack));
  m.impl("int4_panel_mm", TORCH_BOX(&product));
}

STABLE_TORCH_LIBRARY_IMPL(quantfarm_cpu, CompositeExplicitAutograd, m) {
  m.impl("int4_panel_calls", TORCH_BOX(&calls));
}
