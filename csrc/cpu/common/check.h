// Argument checks that name the property, what is needed and what was got.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace quantfarm::cpu {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// "op: property: needs X, got Y" in one line; Python shows it as a RuntimeError.
template <class Got>
[[noreturn]] void refuse(const char* op, const char* property, const std::string& needs, const Got& got) {
  std::ostringstream text;
  text << op << ": " << property << ": needs " << needs << ", got " << got;
  throw std::runtime_error(text.str());
}

inline const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Bool: return "bool";
    default: return "another dtype";
  }
}

inline std::string shape_of(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

inline void need_dtype(const char* op, const char* property, const Tensor& t, ScalarType type) {
  if (t.scalar_type() != type) refuse(op, property, dtype_name(type), dtype_name(t.scalar_type()));
}

inline bool is_float_dtype(ScalarType t) {
  return t == ScalarType::Half || t == ScalarType::BFloat16 || t == ScalarType::Float;
}

inline void need_float(const char* op, const char* property, const Tensor& t) {
  if (!is_float_dtype(t.scalar_type())) {
    refuse(op, property, "float16, bfloat16 or float32", dtype_name(t.scalar_type()));
  }
}

inline void need_dense(const char* op, const char* property, const Tensor& t) {
  if (!t.is_cpu()) refuse(op, property, "a cpu tensor", "a tensor on another device");
  if (!t.is_contiguous()) refuse(op, property, "a contiguous tensor", "a strided one of shape " + shape_of(t));
}

}  // namespace quantfarm::cpu
