"""KernelSpec: everything one kernel can do, as one frozen record that every part of the project reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeVar

from quantfarm.declare.device import Arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind


class Undeclared(Enum):
    """The type of the one value that stands for a fact nobody knows."""

    UNDECLARED = "undeclared"


UNDECLARED = Undeclared.UNDECLARED
"""A fact that no one knows. The selector refuses on it and the farm reports a gap."""

T = TypeVar("T")


def declared(values: tuple[T, ...] | Undeclared) -> tuple[T, ...]:
    """Return the declared values; none where nobody declared any."""
    return () if isinstance(values, Undeclared) else values


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """One row of weights a kernel reads; a record may have several.

    An empty tuple means that the fact has no meaning for these weights (a ggml type has no group size of its own), so
    nothing is checked. UNDECLARED means that nobody knows, so every request is refused.

    Attributes:
        formats: the layouts on disk.
        weight_kind: how a code becomes a number.
        bits: code widths.
        group_sizes: inputs that share a scale; -1 for the whole row, which a group size equal to K matches too.
        sym: whether zero points may be in the middle (True), stored (False), or both.
        act_order: whether the group of an input follows its position (False), an index (True), or both.
        activations: dtypes of x where they are fewer than the record's; empty means the record's.
        code_types: named types inside a format, such as the ggml type ``q4_k``; empty means every one.
    """

    formats: tuple[FORMAT, ...]
    weight_kind: WeightKind
    bits: tuple[int, ...] | Undeclared
    group_sizes: tuple[int, ...] | Undeclared
    sym: tuple[bool, ...] | Undeclared
    act_order: tuple[bool, ...] | Undeclared
    activations: tuple[str, ...] = ()
    code_types: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShapeRule:
    """Divisors and ranges of K (inputs), N (outputs) and M (rows of x).

    Attributes:
        k_multiple, n_multiple: what K and N must be multiples of.
        k_min, n_min: the smallest K and N.
        pads_k: a K that does not divide is padded inside.
        short_last_group: the last group along K may hold fewer inputs than the group size.
        pairs: joint rule: at least one of these (K multiple, N multiple) must hold; empty means no joint rule.
        m_max: the largest number of rows; 0 means any.
    """

    k_multiple: int | Undeclared
    n_multiple: int | Undeclared
    k_min: int
    n_min: int
    pads_k: bool
    short_last_group: bool
    pairs: tuple[tuple[int, int], ...] = ()
    m_max: int = 0


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
    """Where the machine code of a kernel comes from: torch alone, Triton, a back-end wheel, or another program."""

    NONE = "none"
    TRITON = "triton"
    NATIVE = "native"
    ENGINE = "engine"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The native part: ``library`` is the family of the back-end wheel (``cpu``, ``cuda12``), ``ops`` its operators.

    ``elsewhere`` names the library of another family of devices, where a kernel has one in two wheels.
    """

    kind: ArtifactKind
    library: str = ""
    ops: tuple[str, ...] = ()
    elsewhere: Mapping[DEVICE, str] = field(default_factory=dict)

    def library_on(self, family: DEVICE) -> str:
        """Return the library that serves a family of devices."""
        return self.elsewhere.get(family, self.library)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Every library that the kernel has code in."""
        return tuple(dict.fromkeys(name for name in (self.library, *self.elsewhere.values()) if name))


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Lowest versions, as text (empty: no floor), and torch operators that must exist.

    Attributes:
        torch, triton, driver: floors.
        torch_ops: operators (``aten::mm``) or names (``torch.nn.functional.scaled_mm``) that torch must have.
        family_ops: operators that only one family of devices needs.
        triton_mixed: the floor of triton where the weights mix two recipes, if it is higher.
    """

    torch: str
    triton: str
    driver: str
    torch_ops: tuple[str, ...]
    family_ops: Mapping[DEVICE, tuple[str, ...]] = field(default_factory=dict)
    triton_mixed: str = ""

    @property
    def all_ops(self) -> tuple[str, ...]:
        """Every operator that any family needs."""
        return (*self.torch_ops, *(name for names in self.family_ops.values() for name in names))


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a layer of this kernel offers beyond the plain product."""

    bias: bool
    training: bool | Undeclared
    adapters: tuple[str, ...] | Undeclared
    sharded_load: bool | Undeclared
    raw_packing: bool | Undeclared
    deterministic: bool | Undeclared
    keeps_source: bool | Undeclared
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
            A format without a number is tried only where a loader rule of the format names the backend.
        on_request: the sentence that a priority of zero or less, or none, needs.
        retired: empty, or the sentence that names the replacement.
        origin, licence, maintainers: where the code comes from.
        role: the kind of module it serves when that is no linear layer; such a record is never a candidate.
        variant: what tells two records of one member and method apart; empty for the first.
    """

    backend: BACKEND
    kernel: str
    method: METHOD
    accepts: tuple[Accepts, ...]
    pack_dtypes: tuple[str, ...] | Undeclared
    activations: tuple[str, ...]
    shape: ShapeRule
    devices: Mapping[DEVICE, Targets]
    platforms: tuple[str, ...] | Undeclared
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
    role: str = ""
    variant: str = ""

    @cached_property
    def name(self) -> str:
        """The unique name: the backend's value, the method where the value does not say it, then role or variant."""
        value = self.backend.value
        method = "" if value.startswith(self.method.value) else self.method.value
        return "-".join(part for part in (value, method, self.role, self.variant) if part)

    @cached_property
    def formats(self) -> tuple[FORMAT, ...]:
        """Every format of any row, in order, once."""
        return tuple(dict.fromkeys(f for row in self.accepts for f in row.formats))

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The facts nobody declared that every request depends on; a record that has any refuses every request."""
        rows = {name for row in self.accepts for name in _ROW_FACTS if isinstance(getattr(row, name), Undeclared)}
        own = {name for name in ("pack_dtypes", "platforms") if isinstance(getattr(self, name), Undeclared)}
        shape = {name for name in ("k_multiple", "n_multiple") if isinstance(getattr(self.shape, name), Undeclared)}
        return tuple(sorted(rows | own | shape))


_ROW_FACTS = ("bits", "group_sizes", "sym", "act_order")
