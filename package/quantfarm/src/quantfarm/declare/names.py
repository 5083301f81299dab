"""The user-facing names: members, exact string values, legacy members, aliases, and how a name is read.

The strings are those that people already write in scripts and configuration files, so they never change.
Legacy members are members of their own, not Python aliases: arguments saved years ago keep loading.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeVar


class UnknownName(ValueError):
    """A string that is no name of the wanted kind; the message offers the nearest known names."""

    exit_code = 2


class BadType(TypeError):
    """A value whose type can not be a name of the wanted kind."""

    exit_code = 2


class _Name(str, Enum):
    """A member whose value is the string that users write."""

    def __str__(self) -> str:
        """Return the string value, so that messages and JSON show what users write."""
        return str(self.value)


class BACKEND(_Name):
    """Every name a user may ask for; a member is a demand, never a hint."""

    AUTO = "auto"
    AUTO_TRAINABLE = "auto_trainable"
    GPTQ_TORCH_FUSED = "gptq_torch_fused"
    GPTQ_TORCH_INT8 = "gptq_torch_int8"
    GPTQ_TORCH = "gptq_torch"
    GPTQ_TRITON = "gptq_triton"
    GPTQ_EXLLAMA_V2 = "gptq_exllama_v2"
    GPTQ_W4AFP8 = "gptq_w4afp8"
    GPTQ_W4A_NVFP4 = "gptq_w4a_nvfp4"
    GPTQ_BITBLAS = "gptq_bitblas"
    GPTQ_TORCH_ATEN = "gptq_torch_aten"
    GPTQ_TORCH_CPU_AVX512 = "gptq_torch_cpu_avx512"
    MACHETE = "machete"
    SWORDFISH = "swordfish"
    MARLIN = "marlin"
    ALLSPARK = "allspark"
    BITSANDBYTES = "bitsandbytes"
    QQQ = "qqq"
    QQQ_TORCH = "qqq_torch"
    AWQ_GEMM = "awq_gemm"
    AWQ_GEMM_TRITON = "awq_gemm_triton"
    AWQ_GEMV = "awq_gemv"
    AWQ_GEMV_TRITON = "awq_gemv_triton"
    AWQ_GEMV_FAST = "awq_gemv_fast"
    AWQ_TORCH_INT8 = "awq_torch_int8"
    AWQ_TORCH_FUSED = "awq_torch_fused"
    AWQ_TORCH_ATEN = "awq_torch_aten"
    AWQ_TORCH_CPU_AVX512 = "awq_torch_cpu_avx512"
    AWQ_TORCH = "awq_torch"
    AWQ_BITBLAS = "awq_bitblas"
    AWQ_EXLLAMA_V2 = "awq_exllama_v2"
    PAROQUANT_CUDA = "paroquant_cuda"
    PAROQUANT_TRITON = "paroquant_triton"
    FP8_TORCH = "fp8_torch"
    NF12_AD = "nf12_ad"
    VPTQ_TORCH = "vptq_torch"
    VPTQ_CUDA = "vptq_cuda"
    GGUF_TORCH = "gguf_torch"
    GGUF_TRITON = "gguf_triton"
    GGUF_CPP_CPU = "gguf_cpp_cpu"
    GGUF_CPP_CUDA = "gguf_cpp_cuda"
    EXL3_EXLLAMA_V3 = "exl3_exllama_v3"
    EXL3_TORCH = "exl3_torch"
    VLLM = "vllm"
    SGLANG = "sglang"
    MLX = "mlx"

    # Legacy members: older spellings that name a family; normalize_backend() rewrites them by method.
    TORCH_FUSED = "torch_fused"
    TORCH_INT8 = "torch_int8"
    TORCH = "torch"
    TRITON = "triton"
    EXLLAMA_V2 = "exllama_v2"
    EXLLAMA_V3 = "exllama_v3"
    BITBLAS = "bitblas"
    GEMM = "gemm"
    GEMM_TRITON = "gemm_triton"
    GEMV = "gemv"
    GEMV_TRITON = "gemv_triton"
    GEMV_FAST = "gemv_fast"
    TORCH_INT8_AWQ = "torch_int8_awq"
    TORCH_FUSED_AWQ = "torch_fused_awq"
    TORCH_AWQ = "torch_awq"
    BITBLAS_AWQ = "bitblas_awq"
    PARO = "paroquant"


class METHOD(_Name):
    """The algorithm that made the weights."""

    GPTQ = "gptq"
    AWQ = "awq"
    QQQ = "qqq"
    GGUF = "gguf"
    FP8 = "fp8"
    BITSANDBYTES = "bitsandbytes"
    EXL3 = "exl3"
    PARO = "paroquant"
    VPTQ = "vptq"
    NF12 = "nf12"


class FORMAT(_Name):
    """How the tensors lie on disk."""

    GPTQ = "gptq"
    GPTQ_V2 = "gptq_v2"
    GPTQ_P = "gptq_p"
    MARLIN = "marlin"
    BITBLAS = "bitblas"
    GEMM = "gemm"
    GEMV = "gemv"
    GEMV_FAST = "gemv_fast"
    LLM_AWQ = "llm-awq"
    QQQ = "qqq"
    GGUF = "gguf"
    FP8 = "fp8"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"
    EXL3 = "exl3"
    PAROQUANT = "paroquant"
    BITSANDBYTES = "bitsandbytes"
    VPTQ = "vptq"
    NF12_AD = "nf12"


class DEVICE(_Name):
    """A device family: one vendor runtime."""

    ALL = "all"
    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    MPS = "mps"


class PROFILE(_Name):
    """The loading strategy of files that can be opened dense or packed."""

    AUTO = "auto"
    FAST = "fast"
    LOW_MEMORY = "low_memory"


LEGACY: Mapping[BACKEND, Mapping[METHOD, BACKEND]] = MappingProxyType(
    {
        BACKEND.TORCH_FUSED: {METHOD.GPTQ: BACKEND.GPTQ_TORCH_FUSED, METHOD.AWQ: BACKEND.AWQ_TORCH_FUSED},
        BACKEND.TORCH_INT8: {METHOD.GPTQ: BACKEND.GPTQ_TORCH_INT8, METHOD.AWQ: BACKEND.AWQ_TORCH_INT8},
        BACKEND.TORCH: {
            METHOD.GPTQ: BACKEND.GPTQ_TORCH,
            METHOD.AWQ: BACKEND.AWQ_TORCH,
            METHOD.FP8: BACKEND.FP8_TORCH,
            METHOD.EXL3: BACKEND.EXL3_TORCH,
            METHOD.VPTQ: BACKEND.VPTQ_TORCH,
            METHOD.NF12: BACKEND.NF12_AD,
        },
        BACKEND.TRITON: {METHOD.GPTQ: BACKEND.GPTQ_TRITON},
        BACKEND.EXLLAMA_V2: {METHOD.GPTQ: BACKEND.GPTQ_EXLLAMA_V2, METHOD.AWQ: BACKEND.AWQ_EXLLAMA_V2},
        BACKEND.EXLLAMA_V3: {METHOD.EXL3: BACKEND.EXL3_EXLLAMA_V3},
        BACKEND.BITBLAS: {METHOD.GPTQ: BACKEND.GPTQ_BITBLAS, METHOD.AWQ: BACKEND.AWQ_BITBLAS},
        BACKEND.GEMM: {METHOD.AWQ: BACKEND.AWQ_GEMM},
        BACKEND.GEMM_TRITON: {METHOD.AWQ: BACKEND.AWQ_GEMM_TRITON},
        BACKEND.GEMV: {METHOD.AWQ: BACKEND.AWQ_GEMV},
        BACKEND.GEMV_TRITON: {METHOD.AWQ: BACKEND.AWQ_GEMV_TRITON},
        BACKEND.GEMV_FAST: {METHOD.AWQ: BACKEND.AWQ_GEMV_FAST},
        BACKEND.TORCH_INT8_AWQ: {METHOD.AWQ: BACKEND.AWQ_TORCH_INT8},
        BACKEND.TORCH_FUSED_AWQ: {METHOD.AWQ: BACKEND.AWQ_TORCH_FUSED},
        BACKEND.TORCH_AWQ: {METHOD.AWQ: BACKEND.AWQ_TORCH},
        BACKEND.BITBLAS_AWQ: {METHOD.AWQ: BACKEND.AWQ_BITBLAS},
        BACKEND.PARO: {METHOD.PARO: BACKEND.PAROQUANT_CUDA},
    }
)
"""What a legacy member means for a method; a method that is absent has no such backend."""

ALIASES: Mapping[str, BACKEND] = MappingProxyType(
    {
        "gptq_marlin": BACKEND.MARLIN,
        "awq_marlin": BACKEND.MARLIN,
        "gptq_machete": BACKEND.MACHETE,
        "awq_machete": BACKEND.MACHETE,
        "gptq_swordfish": BACKEND.SWORDFISH,
        "awq_swordfish": BACKEND.SWORDFISH,
        "gptq_allspark": BACKEND.ALLSPARK,
        "awq_allspark": BACKEND.ALLSPARK,
    }
)
"""Method-prefixed spellings of backends that several methods share; strings only, no members."""

POLICIES = (BACKEND.AUTO, BACKEND.AUTO_TRAINABLE)
"""Members that ask for a choice instead of naming a kernel."""

PROFILE_INTEGERS: Mapping[int, PROFILE] = MappingProxyType({0: PROFILE.AUTO, 1: PROFILE.FAST, 2: PROFILE.LOW_MEMORY})
"""The integers that older interfaces accept for a profile."""

_NameT = TypeVar("_NameT", bound=_Name)


def nearest(text: str, known: list[str]) -> str:
    """Return the known names closest to ``text`` as a comma-separated list, or all of them if none is close."""
    close = difflib.get_close_matches(text.strip().lower(), known, n=3, cutoff=0.5)
    return ", ".join(close or known)


def backends_of(method: METHOD) -> list[str]:
    """Return the backend strings whose name starts with the method's own string, plus the legacy targets."""
    direct = {b.value for b in BACKEND if b.value.startswith(method.value) and b not in LEGACY}
    legacy = {table[method].value for table in LEGACY.values() if method in table}
    return sorted(direct | legacy)


def normalize_backend(value: object, quant_method: METHOD | str | None = None) -> BACKEND | None:
    """Read a backend name.

    Args:
        value: a member, a string in any case (value, member name or shared-backend alias), or None.
        quant_method: with a method, a legacy member is rewritten to the member of that method.

    Returns:
        The member, or None when nothing was asked (None or a blank string).

    Raises:
        UnknownName: the string names no backend.
        BadType: the value is neither a string nor a member nor None.
    """
    if value is None:
        return None
    method = None if quant_method is None else normalize_method(quant_method)
    member = value if isinstance(value, BACKEND) else _backend_from_text(value)
    if member is None or method is None:
        return member
    return LEGACY.get(member, {}).get(method, member)


def _backend_from_text(value: object) -> BACKEND | None:
    if not isinstance(value, str) or isinstance(value, _Name):
        raise BadType(f"backend: needs a string or a BACKEND member, got {type(value).__name__}")
    text = value.strip().lower()
    if not text:
        return None
    found = _lookup(BACKEND, text) or ALIASES.get(text)
    if found is not None:
        return found
    method = _lookup(METHOD, text)
    if method is not None:
        raise UnknownName(
            f"backend: {value!r} is a method, not a backend; backends of that method: {', '.join(backends_of(method))}"
        )
    known = [b.value for b in BACKEND] + list(ALIASES)
    raise UnknownName(f"backend: unknown name {value!r}; nearest known names: {nearest(text, known)}")


def _lookup(kind: type[_NameT], text: str) -> _NameT | None:
    for member in kind:
        if text in (member.value, member.name.lower()):
            return member
    return None


def _normalize(kind: type[_NameT], label: str, value: object) -> _NameT:
    if isinstance(value, kind):
        return value
    if not isinstance(value, str) or isinstance(value, _Name):
        raise BadType(f"{label}: needs a string or a {kind.__name__} member, got {type(value).__name__}")
    found = _lookup(kind, value.strip().lower())
    if found is None:
        known = [m.value for m in kind]
        raise UnknownName(f"{label}: unknown name {value!r}; nearest known names: {nearest(value, known)}")
    return found


def normalize_method(value: object) -> METHOD:
    """Read a method name (member or string in any case); raise UnknownName or BadType."""
    return _normalize(METHOD, "method", value)


def normalize_format(value: object) -> FORMAT:
    """Read a format name (member or string in any case); raise UnknownName or BadType."""
    return _normalize(FORMAT, "format", value)


def normalize_profile(value: object) -> PROFILE:
    """Read a profile: member, name, value (spaces and hyphens count as underscores) or the integers 0, 1, 2.

    None and blank strings mean AUTO. Raises UnknownName for unknown names and integers, BadType for other
    types; ``bool`` is refused although it is an integer in Python, since ``True`` would silently mean FAST.
    """
    if value is None or (type(value) is str and not value.strip()):
        return PROFILE.AUTO
    if type(value) is int:
        if value not in PROFILE_INTEGERS:
            raise UnknownName(f"profile: unknown integer {value}; known: 0 auto, 1 fast, 2 low_memory")
        return PROFILE_INTEGERS[value]
    if type(value) is str:
        value = value.strip().replace(" ", "_").replace("-", "_")
    return _normalize(PROFILE, "profile", value)
