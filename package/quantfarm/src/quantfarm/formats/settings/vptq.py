"""The settings of VPTQ checkpoints, layer by layer, and a layer's facts from its header (formats, section 14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import ConfigError
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import boolean, integer, wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

BY_NAME, BY_TAIL = "config_for_layers", "shared_layer_config"
"""Settings by whole module name, and by its last part where the name has none of its own."""

LAYER_KEYS = (
    *("in_features", "out_features", "vector_lens", "num_centroids", "num_res_centroids", "group_num", "group_size"),
    *("outlier_size", "indices_as_float", "enable_norm", "enable_perm", "is_indice_packed", "bias", "vector_quant_dim"),
)
"""What the settings of one layer state."""

_OWN = "vector_lens"
_WIDEST_INDEX = 16
_WIDEST_WEIGHT = 8


@dataclass(frozen=True, kw_only=True)
class VectorLayer:
    """One layer's settings.

    Attributes:
        k, n: inputs and outputs.
        vector: outputs of one column that one index stands for.
        centroids, residuals: entries of the main and of the residual codebook of each group; residuals 0 for none.
        groups, group_size: codebooks, and columns that share one.
        outlier_vector, outlier_centroids, outlier_size: the same for the columns with a codebook of their own; the
            last two are 0 where there are none.
        norm, perm: whether columns are scaled and shifted, and whether they are stored in another order.
        packed: whether main and residual indices lie in one stream of words.
        as_float: whether 16-bit indices are declared as floats.
        bias: whether the layer has one.
    """

    k: int
    n: int
    vector: int
    centroids: int
    residuals: int
    groups: int
    group_size: int
    outlier_vector: int
    outlier_centroids: int
    outlier_size: int
    norm: bool
    perm: bool
    packed: bool
    as_float: bool
    bias: bool

    @property
    def vectors(self) -> int:
        """Vectors of one column; the last one may reach beyond N."""
        return -(-self.n // self.vector)

    @property
    def outlier_vectors(self) -> int:
        """Vectors of one outlier column."""
        return -(-self.n // self.outlier_vector)

    @property
    def main_bits(self) -> int:
        """Bits of a main index."""
        return (self.centroids - 1).bit_length()

    @property
    def residual_bits(self) -> int:
        """Bits of a residual index; 0 without such."""
        return max(self.residuals - 1, 0).bit_length()

    @property
    def scheme(self) -> Scheme:
        """Vector codes; the width is the bits that indices take a weight, rounded up."""
        bits = max(-(-(self.main_bits + self.residual_bits) // self.vector), 1)
        return Scheme(weight_kind=WeightKind.VECTOR, bits=bits, group_size=-1, sym=True)


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the fields of QuantConfig that follow from the settings: the widest layer's bits, and the details.

    Raises:
        ConfigError: no layer is described, or one is not as this reader needs it; names layer and key.
    """
    del stated
    layers = _described(raw, source)
    if not layers:
        raise ConfigError(
            f"cannot read {source}: no layer is described",
            lines=(f"{BY_NAME} or {BY_TAIL}: needs an object of layers, got none",),
            remedy=f"take {source} from the checkpoint again",
        )
    keys = LAYER_KEYS if raw.get(_OWN) is not None else (BY_NAME, BY_TAIL)
    widths = [layer_of(own, f"{source}, {name}").scheme.bits for name, own in layers.items()]
    return {
        "bits": max(widths),
        "group_size": -1,
        "sym": True,
        "lm_head": "lm_head" in layers,
        "details": {key: raw[key] for key in keys if raw.get(key) is not None},
    }


def for_module(details: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any] | None:
    """Return the fields of QuantConfig that hold for one module; None for one that is not described: it is dense."""
    own = described(details, name)
    return None if own is None else {"details": own, "bits": layer_of(own, f"{source}, {name}").scheme.bits}


def described(details: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return what the settings say about one module: by its name, by the last part of it, or alone."""
    if _OWN in details:
        return details
    found = details.get(BY_NAME, {}).get(name) or details.get(BY_TAIL, {}).get(name.rpartition(".")[2])
    return found if isinstance(found, Mapping) else None


def layer_of(own: Mapping[str, Any], source: str) -> VectorLayer:
    """Read the settings of one layer.

    Raises:
        ConfigError: a key is missing, has a wrong type, or says what this reader can not do.
    """
    direction = own.get("vector_quant_dim", "out")
    if direction != "out":
        raise wrong("vector_quant_dim", "out", direction, source)
    outlier_vector, vector = _pair(own, "vector_lens", source)
    outlier_centroids, centroids = _pair(own, "num_centroids", source)
    outlier_residuals, residuals = _pair(own, "num_res_centroids", source)
    if outlier_residuals > 0:
        raise wrong("num_res_centroids", "-1 for outliers", own["num_res_centroids"], source)
    outlier_size = integer("outlier_size", own.get("outlier_size", 0), source)
    if outlier_size > 0 and min(outlier_vector, outlier_centroids) < 1:
        raise wrong("outlier_size", "0, since outliers have no codebook", outlier_size, source)
    outliers = outlier_size > 0
    layer = VectorLayer(
        k=_count(own, "in_features", source),
        n=_count(own, "out_features", source),
        vector=vector,
        centroids=centroids,
        residuals=max(residuals, 0),
        groups=_count(own, "group_num", source),
        group_size=_count(own, "group_size", source),
        outlier_vector=outlier_vector if outliers else 1,
        outlier_centroids=outlier_centroids if outliers else 0,
        outlier_size=max(outlier_size, 0),
        norm=_flag(own, "enable_norm", source),
        perm=_flag(own, "enable_perm", source),
        packed=_flag(own, "is_indice_packed", source),
        as_float=_flag(own, "indices_as_float", source),
        bias=_flag(own, "bias", source),
    )
    _check(layer, own, source)
    return layer


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer; ``config`` is that of the module, which alone knows them.

    Raises:
        ConfigError: the settings do not describe the layer.
    """
    del tensors
    own = described(config.details, "")
    if own is None:
        raise wrong(_OWN, "the settings of this layer", None, config.source)
    layer = layer_of(own, config.source)
    return LayerFacts(k=layer.k, n=layer.n, scheme=layer.scheme)


def _described(raw: Mapping[str, Any], source: str) -> dict[str, Mapping[str, Any]]:
    """Return every described layer by name or by tail; the settings themselves where they describe one layer."""
    if raw.get(_OWN) is not None:
        return {"the only layer": raw}
    layers: dict[str, Mapping[str, Any]] = {}
    for key in (BY_TAIL, BY_NAME):
        value = raw.get(key) or {}
        if not isinstance(value, Mapping) or not all(isinstance(own, Mapping) for own in value.values()):
            raise wrong(key, "an object of layers", value, source)
        layers |= value
    return layers


def _check(layer: VectorLayer, own: Mapping[str, Any], source: str) -> None:
    """Refuse sizes that no file can have."""
    if layer.vector < 1:
        raise wrong("vector_lens", "at least one output a vector", own["vector_lens"], source)
    if layer.centroids < 2 or layer.main_bits > _WIDEST_INDEX:
        raise wrong("num_centroids", f"2 to {1 << _WIDEST_INDEX}", own["num_centroids"], source)
    if layer.residual_bits > _WIDEST_INDEX:
        raise wrong("num_res_centroids", f"at most {1 << _WIDEST_INDEX}", own["num_res_centroids"], source)
    if layer.scheme.bits > _WIDEST_WEIGHT:
        needs = f"vectors so long that indices take at most {_WIDEST_WEIGHT} bits a weight"
        raise wrong("vector_lens", needs, own["vector_lens"], source)
    whole = [count & (count - 1) == 0 for count in (layer.centroids, layer.residuals)]
    if layer.packed and not all(whole):
        raise wrong("is_indice_packed", "false, since a codebook has no power of two of entries", True, source)
    columns = layer.outlier_size + layer.groups * layer.group_size
    if columns != layer.k:
        text = f"in_features={layer.k} columns (outlier_size + group_num * group_size)"
        raise wrong("group_size", text, columns, source)


def _pair(own: Mapping[str, Any], key: str, source: str) -> tuple[int, int]:
    """Read the numbers of outliers and of all other columns."""
    value = own.get(key)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise wrong(key, "[of outliers, of the others]", value, source)
    return integer(key, value[0], source), integer(key, value[1], source)


def _count(own: Mapping[str, Any], key: str, source: str) -> int:
    value = integer(key, own.get(key), source)
    if value < 1:
        raise wrong(key, "a positive integer", value, source)
    return value


def _flag(own: Mapping[str, Any], key: str, source: str) -> bool:
    return boolean(key, own.get(key, False), source)
