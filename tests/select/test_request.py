"""Requests: names, dtypes and devices are read once, and wrong ones are refused with the known names."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from select_hosts import BASE, HOSTS

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD, BadType, UnknownName
from quantfarm.declare.scheme import Scheme
from quantfarm.select.request import Device, Request, normalize_devices, normalize_dtype

SCHEME = Scheme(bits=4, group_size=128, sym=True)


@dataclass
class FakeTorchDevice:
    """Has what a torch device has."""

    type: str
    index: int | None = None


def request(**fields: object) -> Request:
    """Return a request with some fields given as users give them."""
    values = {"method": "gptq", "format": "gptq", "scheme": SCHEME} | fields
    return Request(**values)  # type: ignore[arg-type]


def test_names_become_members() -> None:
    """Strings in any case are read, a legacy name is rewritten by the method, blank means AUTO."""
    made = request(method="AWQ", format="Gemm", backend="torch", activation_dtype="torch.bfloat16")
    assert (made.method, made.format, made.backend) == (METHOD.AWQ, FORMAT.GEMM, BACKEND.AWQ_TORCH)
    assert made.activation_dtype == "bfloat16"
    assert request(backend=" ").backend is request(backend=None).backend is BACKEND.AUTO


def test_a_method_is_no_backend() -> None:
    """A method given as backend is told so and gets the backends of that method."""
    with pytest.raises(UnknownName, match="is a method, not a backend"):
        request(backend="gptq")


def test_an_order_over_one_group_is_no_order() -> None:
    """With one group for the whole row the order of activations has no effect and is dropped."""
    for group_size, inputs in ((-1, 512), (512, 512)):
        scheme = Scheme(bits=4, group_size=group_size, sym=True, act_order=True)
        assert not request(scheme=scheme, in_features=inputs).scheme.act_order
    assert request(scheme=replace(SCHEME, act_order=True)).scheme.act_order


def test_text_is_compact() -> None:
    """The text holds pair, scheme, shape, dtype, features and devices."""
    made = request(in_features=4096, out_features=11008, activation_dtype="bf16", devices=(Device(DEVICE.CUDA, 0),))
    assert str(made) == "GPTQ int4 g128 sym, K=4096 N=11008, bf16, on cuda:0"
    made = request(format="gptq_v2", adapter="lora", sharded=True, packing=True, pack_dtype="int16")
    assert str(made) == (
        "GPTQ/GPTQ_V2 int4 g128 sym, words int16, adapter lora, sharded, packing, on the default device"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cuda:1", ["cuda:1"]),
        (" CPU ", ["cpu"]),
        (DEVICE.XPU, ["xpu"]),
        (3, ["cuda:3"]),
        (FakeTorchDevice("cuda", 2), ["cuda:2"]),
        (FakeTorchDevice("cpu"), ["cpu"]),
        (["cuda:1", "cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]),
        (Device(DEVICE.CUDA, 4), ["cuda:4"]),
        (None, ["cuda"]),
    ],
)
def test_devices_keep_their_ordinals(value: object, expected: list[str]) -> None:
    """Every spelling of a device is read, in order of first sight, without duplicates."""
    assert [str(device) for device in normalize_devices(value, HOSTS["TWO"])] == expected


@pytest.mark.parametrize("value", ["cuda:2", 2, FakeTorchDevice("cuda", 2), "rocm:2"])
def test_on_a_hip_build_cuda_means_rocm(value: object) -> None:
    """Everything that says cuda becomes rocm with the same ordinal."""
    assert normalize_devices(value, HOSTS["R9700"]) == (Device(DEVICE.ROCM, 2),)


def test_without_accelerator_the_default_is_the_processor() -> None:
    """None means the best family present, and an ordinal without accelerators stays a demand for one."""
    assert normalize_devices(None, BASE) == (Device(DEVICE.CPU),)
    assert normalize_devices(0, BASE) == (Device(DEVICE.CUDA, 0),)


@pytest.mark.parametrize("value", ["gpu", "cuda:x", "", DEVICE.ALL])
def test_unknown_devices_are_refused(value: object) -> None:
    """A name that is no device raises with the known ones."""
    with pytest.raises(UnknownName, match="device"):
        normalize_devices(value, BASE)


@pytest.mark.parametrize("value", [True, 1.5, [None]])
def test_values_that_are_no_devices_are_refused(value: object) -> None:
    """A value of another type raises BadType."""
    with pytest.raises(BadType, match="device"):
        normalize_devices(value, BASE)


def test_dtypes_are_read_in_every_spelling() -> None:
    """Short, long and torch spellings mean one dtype; other types are refused."""
    assert {normalize_dtype(t) for t in ("bf16", "bfloat16", "torch.bfloat16")} == {"bfloat16"}
    with pytest.raises(BadType, match="dtype"):
        normalize_dtype(16)
