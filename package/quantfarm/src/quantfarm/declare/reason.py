"""Reason: why a record cannot serve a request. The set of codes is closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "format": "the backend does not read this format",
        "method_format": "this pair of method and format does not exist",
        "loader_rule": "a rule of the loader forbids this backend for this checkpoint",
        "family": "the backend does not run on this family of devices",
        "torch_build": "the installed torch has no support for this family of devices",
        "arch": "the backend has no code for exactly this target",
        "arch_too_old": "the target is older than the oldest one the backend serves",
        "arch_too_new": "the target is newer than the newest one the backend serves",
        "cpu_feature": "the processor lacks an instruction set the backend needs",
        "device_limit": "a limit of the device is below what the backend needs",
        "device_mixed": "the devices differ and the backend does not serve all of them",
        "device_absent": "no device with this ordinal is visible",
        "platform": "the backend does not run on this operating system",
        "driver": "the installed driver is older than the backend needs",
        "scheme_kind": "the backend does not compute with this kind of code",
        "scheme_bits": "the backend does not compute with this code width",
        "group_size": "the backend does not compute with this group size",
        "zero_point": "the backend does not compute with these zero points",
        "act_order": "the backend does not compute with this order of activations",
        "pack_dtype": "the backend does not read words of this width",
        "layout_private": "the tensors are already in the private layout of another kernel",
        "activation_dtype": "the backend does not compute with activations of this dtype",
        "shape_k": "the number of inputs does not fit the backend",
        "shape_n": "the number of outputs does not fit the backend",
        "shape_m": "the number of rows does not fit the backend",
        "feature_training": "the backend gives no gradients",
        "feature_adapter": "the backend does not take this adapter",
        "feature_sharded": "the backend does not load sharded checkpoints",
        "feature_packing": "the backend does not pack from float weights",
        "toolchain_torch": "the installed torch is older than the backend needs",
        "toolchain_triton": "the installed triton is older than the backend needs, or absent",
        "toolchain_operator": "the installed torch lacks an operator the backend needs",
        "package_absent": "a package the backend needs is not installed",
        "package_too_old": "a package the backend needs is older than it must be",
        "artifact_absent": "no installed back-end wheel holds this kernel",
        "artifact_skipped": "the installed back-end wheel was built without this kernel",
        "artifact_wrong_abi": "the native library was built for another version",
        "artifact_failed": "the native library is present but does not load",
        "artifact_device": "the native library loads but holds no code for this device",
        "runtime_failed": "the backend failed earlier in this process",
        "on_request_only": "the backend runs only when it is asked for by name",
        "prefer_trainable": "usable, inference-only; automatic choice on a CPU prefers a trainable backend",
        "excluded_by_request": "the caller excluded this backend",
        "retired": "the backend is retired",
        "undeclared": "no one has declared this yet, so it is refused",
    }
)
"""Every reason code with its one sentence. A code outside this mapping does not exist."""

INSTALLATION_PREFIXES = ("artifact_", "toolchain_", "package_")
"""Codes with these prefixes are caused by the installation; strict mode turns them into errors."""


@dataclass(frozen=True)
class Reason:
    """One refusal: what is needed, what was found, and on which device.

    Attributes:
        code: a key of ``SENTENCES``.
        need: what the record needs, as printed.
        got: what the request or the host has, as printed.
        device: the device that refuses, such as ``cuda:1``; empty when the reason is not of one device.
        note: an added sentence: a loader's own text, a dynamic pattern, or advice.
    """

    code: str
    need: str
    got: str
    device: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a code outside the closed set."""
        if self.code not in SENTENCES:
            raise ValueError(f"reason code {self.code!r} does not exist; known: {', '.join(SENTENCES)}")

    @property
    def sentence(self) -> str:
        """The fixed sentence of the code."""
        return SENTENCES[self.code]

    @property
    def is_installation(self) -> bool:
        """Whether the reason is a fault of the installation, not of request or hardware."""
        return self.code.startswith(INSTALLATION_PREFIXES)

    def __str__(self) -> str:
        """Return ``code: needs X, got Y`` with device and note where there are any."""
        where = f" on {self.device}" if self.device else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.code}{where}: needs {self.need}, got {self.got}{note}"

    def as_json(self) -> dict[str, str]:
        """Return the same facts for programs."""
        return {
            "code": self.code,
            "sentence": self.sentence,
            "need": self.need,
            "got": self.got,
            "device": self.device,
            "note": self.note,
        }
