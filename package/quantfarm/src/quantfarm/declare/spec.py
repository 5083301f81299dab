"""KernelSpec: everything one kernel can do, as one frozen record that every part of the project reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from quantfarm.declare.device import Arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind


class Undeclared(Enum):
    """The type of the one value that stands for a fact nobody knows."""

    UNDECLARED = "undeclared"


UNDECLARED = Undeclared.UNDECLARED
"""A fact that no one knows. The selector refuses on it and the farm reports a gap."""


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """One row of weights a kernel reads; a record may have several.

    ``group_sizes`` holds -1 for "one scale for the whole row"; a group size equal to K matches -1 too.
    """

    formats: tuple[FORMAT, ...]
    weight_kind: WeightKind
    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]
    sym: tuple[bool, ...]
    act_order: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class ShapeRule:
    """Divisors and ranges of K (inputs) and N (outputs). ``pads_k``: K that does not divide is padded inside.

    ``short_last_group``: the last group along K may hold fewer inputs than the group size.
    """

    k_multiple: int
    n_multiple: int
    k_min: int
    n_min: int
    pads_k: bool
    short_last_group: bool


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The devices of one family: ``archs`` lists them, an empty tuple with ``open_range`` means no gate.

    ``archs`` names the code levels a native library is compiled for, or the exact targets of a closed set.
    ``minimum`` and ``maximum`` bound an open range, inclusive.
    """

    archs: tuple[Arch, ...]
    open_range: bool
    minimum: Arch | None = None
    maximum: Arch | None = None


class ArtifactKind(str, Enum):
    """Where the machine code of a kernel comes from."""

    NONE = "none"
    TRITON = "triton"
    NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The native part: ``library`` is the family of the back-end wheel (``cpu``, ``cuda``), ``ops`` its operators."""

    kind: ArtifactKind
    library: str = ""
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Lowest versions, as text (empty: no floor), and torch operators that must exist."""

    torch: str
    triton: str
    driver: str
    torch_ops: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a layer of this kernel offers beyond the plain product."""

    bias: bool
    training: bool
    adapters: tuple[str, ...]
    sharded_load: bool
    raw_packing: bool | Undeclared
    deterministic: bool
    keeps_source: bool
    """True: the canonical codes stay in memory beside the kernel's layout. False: they are rebuilt exactly."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Limits of the relative Frobenius error e against the float64 reference, per activation dtype.

    Pass: ``e <= 1.25 * e0 + floor`` and ``e <= cap``, e0 being the error of the dense product in that dtype.
    ``derivation`` names the family of the numerics table that the caps come from.
    """

    derivation: str
    cap: Mapping[str, float]
    floor: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One record. Facts have no defaults: nothing is declared by forgetting.

    Attributes:
        backend: the user-facing member; several records may name one member.
        kernel: folder in ``kernels/`` and, for native code, under ``csrc/``.
        method: the method whose weights it serves.
        accepts: rows of formats, code widths, group sizes.
        pack_dtypes: dtypes of stored words.
        activations: dtypes of x; the output has the same dtype.
        shape: divisors and ranges.
        devices: family to targets; DEVICE.ALL means a portable implementation, no proof of any device.
        platforms: ``sys.platform`` values; empty means all.
        device_limits: name of a limit to its smallest value.
        cpu_features: instruction sets the processor must have.
        artifact, toolchain, dependencies, features, tolerance: see their types; dependencies map package to floor.
        priorities: policy; larger is tried first, zero or less only on request.
        on_request: the sentence that a priority of zero or less needs.
        retired: empty, or the sentence that names the replacement.
        origin, licence, maintainers: where the code comes from.
    """

    backend: BACKEND
    kernel: str
    method: METHOD
    accepts: tuple[Accepts, ...]
    pack_dtypes: tuple[str, ...]
    activations: tuple[str, ...]
    shape: ShapeRule
    devices: Mapping[DEVICE, Targets]
    platforms: tuple[str, ...]
    device_limits: Mapping[str, int]
    cpu_features: tuple[str, ...]
    artifact: Artifact
    toolchain: Toolchain
    dependencies: Mapping[str, str]
    features: Features
    tolerance: Tolerance
    priorities: Mapping[FORMAT, int]
    origin: str
    licence: str
    maintainers: tuple[str, ...]
    on_request: str = ""
    retired: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """The unique name: the backend's value, followed by the method where the value does not say it."""
        value = self.backend.value
        return value if value.startswith(self.method.value) else f"{value}-{self.method.value}"

    @property
    def formats(self) -> tuple[FORMAT, ...]:
        """Every format of any row, in order, once."""
        return tuple(dict.fromkeys(f for row in self.accepts for f in row.formats))
