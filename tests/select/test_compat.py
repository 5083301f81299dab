"""The wrappers: documented names and orders, names of every dialect, device maps, and answers like those of choose."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from select_hosts import HOSTS

import quantfarm
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD, BadType, UnknownName
from quantfarm.errors import ConfigError, KernelRefused
from quantfarm.select import compat
from quantfarm.select.compat import (
    Handle,
    hf_normalize_device_device_map,
    hf_select_quant_linear,
    hf_select_quant_linear_v2,
    select_quant_linear,
)
from quantfarm.select.overrides import normalize_bits
from quantfarm.select.request import Device

On = Callable[[str], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Return a function that sets the machine the wrappers see."""

    def set_host(name: str) -> None:
        monkeypatch.setattr(compat, "probe", lambda: HOSTS[name])

    set_host("ALL-H200")
    return set_host


def handle(*args: Any, **kwargs: Any) -> Handle:
    """Return the one handle of a call."""
    found = select_quant_linear(*args, **kwargs)
    assert isinstance(found, Handle)
    return found


def test_the_documented_order_of_parameters() -> None:
    """Names and order are those that integrations use, and the public names lead here."""
    names = list(inspect.signature(select_quant_linear).parameters)
    assert names[:8] == ["bits", "group_size", "desc_act", "sym", "device", "backend", "format", "quant_method"]
    assert names[8:] == [
        "pack",
        "allow_marlin",
        "dynamic",
        "pack_dtype",
        "dtype",
        "multi_select",
        "adapter",
        "is_sharded",
    ]
    first = ["bits", "group_size", "desc_act", "sym"]
    rest = ["meta", "pack", "device_map", "backend"]
    assert list(inspect.signature(hf_select_quant_linear).parameters) == [*first, "checkpoint_format", *rest]
    middle = ["format", "quant_method", "zero_point", "dtype"]
    assert list(inspect.signature(hf_select_quant_linear_v2).parameters) == [*first, *middle, *rest]
    for name in ("select_quant_linear", "hf_select_quant_linear", "hf_pack_layer", "hf_repack_layer"):
        assert callable(getattr(quantfarm, name))


def test_positional_calls(on: On) -> None:
    """A call by position means what the names say."""
    found = handle(4, 128, False, True, "cuda:0", "auto", "gptq", "gptq", False, False)
    assert found.backend is BACKEND.MACHETE
    assert found.selection.request.devices == (Device(DEVICE.CUDA, 0),)
    assert found.selection.request.excluded == (BACKEND.MARLIN,)


def test_several_answers(on: On) -> None:
    """D03: with multi_select the answer is a list in order; a named backend gives a list of one (D05)."""
    dynamic = {"mlp.*": {"bits": 3}}
    found = select_quant_linear(4, 128, False, True, "cuda", dynamic=dynamic, dtype="float16", multi_select=True)
    assert isinstance(found, list)
    names = ["machete", "marlin", "gptq_exllama_v2", "gptq_triton", "gptq_bitblas", "gptq_torch"]
    assert [entry.backend.value for entry in found] == names
    serves = {c.spec_name: c.serves for c in found[0].selection.trace if c.usable}
    assert (serves["machete-gptq"], serves["gptq_torch"]) == (("base",), ("base", "mlp.*"))
    (only,) = select_quant_linear(4, 128, False, True, "cuda", BACKEND.MARLIN, multi_select=True)  # type: ignore[misc]
    assert only.backend is BACKEND.MARLIN


def test_c04_a_changed_override_is_a_new_contract(on: On) -> None:
    """A dict of overrides that is changed after a call gives the next call its new contract."""
    dynamic: dict[str, Any] = {"mlp.*": {"bits": 8}}
    first = handle(4, 128, False, True, "cuda", dynamic=dynamic)
    dynamic["mlp.*"]["bits"] = 3
    second = handle(4, 128, False, True, "cuda", dynamic=dynamic)
    assert (first.backend, second.backend) == (BACKEND.MACHETE, BACKEND.GPTQ_TORCH)
    reason = next(r for c in second.selection.trace for r in c.reasons if c.spec_name == "machete-gptq")
    assert str(reason) == 'scheme_bits: needs 4 or 8, got 3 (dynamic "mlp.*")'


def test_i01_the_checkpoint_format_is_honoured(on: On) -> None:
    """I01: gptq_v2 is not served by a record that reads gptq only (X12)."""
    found = hf_select_quant_linear(4, 128, False, True, "gptq_v2", device_map={"": "cuda:0"}, pack=False)
    assert found.backend is BACKEND.MARLIN


def test_i02_words_and_symmetry(on: On) -> None:
    """I02: the format decides the words, zero_point overrides sym, meta decides the words where it says so."""
    found = hf_select_quant_linear_v2(
        4, 128, False, True, "gemv_fast", "awq", True, pack=False, device_map={"": "cuda:0"}
    )
    request = found.selection.request
    assert (found.backend, request.pack_dtype, request.scheme.sym) == (BACKEND.AWQ_GEMV_FAST, "int16", False)
    meta = {"pack_dtype": "int8"}
    found = hf_select_quant_linear_v2(
        4, 128, False, True, "gptq", "gptq", meta=meta, pack=False, device_map={"": "cuda"}
    )
    assert (found.backend, found.selection.request.pack_dtype) == (BACKEND.GPTQ_TRITON, "int8")


def test_i03_no_map_is_the_cpu(on: On) -> None:
    """I03: without a map the layers are for the CPU."""
    on("ALL-CPU-BF16")
    found = hf_select_quant_linear_v2(4, 128, False, True, "gemm", "awq", pack=False)
    assert found.backend is BACKEND.AWQ_TORCH_ATEN


@pytest.mark.parametrize(
    ("host", "device_map", "expected"),
    [
        ("H200", {"a": "cuda:0", "b": "cpu", "c": "disk"}, "cuda:0"),
        ("H200", {"a": "cpu", "b": "disk"}, "cpu"),
        ("H200", {"a": "disk"}, "cpu"),
        ("H200", {"a": "meta", "b": None}, "cpu"),
        ("H200", None, "cpu"),
        ("H200", {}, "cpu"),
        ("H200", "auto", "cuda"),
        ("H200", "balanced_low_0", "cuda"),
        ("CPU-BF16", "auto", "cpu"),
        ("CPU-BF16", "sequential", "cpu"),
        ("R9700", "auto", "rocm"),
        ("R9700", {"a": 0}, "rocm:0"),
        ("TWO", {"a": "cuda:1", "b": "cuda:0", "c": "cuda:1"}, "cuda:1, cuda:0"),
        ("TWO", {"a": 1, "b": SimpleNamespace(type="cuda", index=0)}, "cuda:1, cuda:0"),
        ("H200", {"a": "cuda:0", "b": "xpu:0"}, "cuda:0, xpu:0"),
        ("H200", "cuda:0", "cuda:0"),
    ],
)
def test_m01_to_m05_device_maps(on: On, host: str, device_map: Any, expected: str) -> None:
    """M01, M02, M03, M05: exact ordinals are kept, offload is left out, symbolic maps give the family."""
    on(host)
    assert ", ".join(map(str, hf_normalize_device_device_map(None, device_map))) == expected


def test_a_device_wins_over_a_map(on: On) -> None:
    """A given device is taken whatever the map says; an unknown entry is an error."""
    assert hf_normalize_device_device_map("cpu", {"a": "cuda:0"}) == (Device(DEVICE.CPU),)
    with pytest.raises(UnknownName):
        hf_normalize_device_device_map(None, {"a": "gpu"})


def test_m05_a_map_over_two_families_is_refused(on: On) -> None:
    """M05: accelerators of two families are no target of one layer."""
    with pytest.raises(KernelRefused, match="device_mixed"):
        hf_select_quant_linear(4, 128, False, True, "gptq", device_map={"a": "cuda:0", "b": "xpu:0"}, pack=False)


def test_an_engine_has_no_local_kernel(on: On) -> None:
    """An engine's handle says None for the kernel, and can not be loaded here; a local one can."""
    engine = handle(4, 128, False, True, "cuda", "vllm")
    assert (engine.kernel, engine.backend) == (None, BACKEND.VLLM)
    with pytest.raises(BadType, match="has no local kernel"):
        engine.load()
    assert callable(handle(4, 128, False, True, "cuda", "gptq_torch").load().prepare)


@pytest.mark.parametrize(
    ("changes", "error", "part"),
    [
        ({"device": None}, BadType, "device: needs"),
        ({"backend": "gptq"}, UnknownName, "is a method, not a backend"),
        ({"backend": 3}, BadType, "backend: needs"),
        ({"format": "gptq2"}, UnknownName, "nearest known names: gptq"),
        ({"quant_method": "gtpq"}, UnknownName, "nearest known names: gptq"),
        ({"bits": "fp4"}, UnknownName, "unknown width"),
        ({"bits": True}, BadType, "bits: needs"),
        ({"sym": "yes"}, BadType, "sym: needs true or false, got str"),
        ({"desc_act": 1}, BadType, "desc_act: needs true or false"),
        ({"dynamic": {"a": {"bit": 4}}}, UnknownName, "known: bits"),
        ({"dynamic": {"a": {"sym": 1}}}, BadType, "sym: needs bool"),
        ({"dynamic": {"a": 4}}, BadType, "needs an object of settings"),
        ({"dynamic": [4]}, BadType, "needs an object of patterns"),
        ({"dynamic": {"(": {}}}, ConfigError, "regular expression"),
        ({"dynamic": {"+:a": {"bits": 8}, "a": {"bits": 4}}}, ConfigError, "'+:a' and 'a'"),
        ({"backend": "machete", "device": "cpu"}, KernelRefused, "needs cuda"),
    ],
)
def test_bad_input_is_told(on: On, changes: dict[str, Any], error: type[Exception], part: str) -> None:
    """Unknown names offer the nearest ones, wrong types and contradictions name the key and both values."""
    call: dict[str, Any] = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "device": "cuda"}
    with pytest.raises(error) as caught:
        select_quant_linear(**(call | changes))
    assert part in str(caught.value)


@pytest.mark.parametrize(("given", "bits"), [("q4_k_m", 4), ("Q8_0", 8), ("iq2_xs", 2), ("4", 4), (4, 4), (3.4, 3)])
def test_widths_by_name(given: object, bits: int) -> None:
    """A ggml name or a mean width is reduced to its integer."""
    assert normalize_bits(given) == bits


def test_adapters_are_checked_when_asked_by_name(on: On) -> None:
    """X06: an adapter, by kind or as an object, is refused by a named backend that takes none."""

    class Lora:
        """Stands for an adapter object."""

    for adapter in ("lora", Lora()):
        with pytest.raises(KernelRefused, match="feature_adapter"):
            select_quant_linear(4, 128, False, True, "cuda", BACKEND.GPTQ_W4AFP8, adapter=adapter)


def test_old_except_clauses_still_catch_a_refusal(on: On) -> None:
    """A refusal is a NotImplementedError and a ValueError, and holds the whole trace."""
    with pytest.raises(NotImplementedError) as caught:
        select_quant_linear(4, 128, False, True, "cuda", "swordfish", FORMAT.GPTQ, METHOD.GPTQ)
    assert isinstance(caught.value, ValueError)
    assert len(getattr(caught.value, "trace").trace) > 10  # noqa: B009 - the attribute of KernelRefused
