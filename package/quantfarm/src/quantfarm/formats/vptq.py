"""VPTQ: tensors of a checkpoint <-> VectorWeight (formats, section 14).

The stored tensors are kept as they are. There is no packer from floats: codebooks come from clustering, not from
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import ConfigError, InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.settings.vptq import BY_NAME, BY_TAIL, VectorLayer, described, layer_of
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.vectors import VectorWeight

_MAIN, _RESIDUAL, _OUTLIER = "centroids.weight", "res_centroids.weight", "outlier_centroids.weight"
_INDICES, _RESIDUAL_INDICES, _OUTLIER_INDICES = "indices", "res_indices", "outlier_indices"
_SCALE, _OFFSET, _PERM = "weight_scale", "weight_bias", "perm"
_FLOATS = (_MAIN, _RESIDUAL, _OUTLIER, _SCALE, _OFFSET)
_SHORTS = (torch.int16, torch.uint16)
_HALVES = (torch.float16, torch.bfloat16)
_SHORT = 1 << 16


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> VectorWeight:
    """Read one module.

    Args:
        tensors: by suffix: centroids.weight [G, C*v], indices [G, M, words] int32 (packed) or [G, M, group_size] of 16
            bits, and as the settings say res_centroids.weight [G, R*v], res_indices, outlier_centroids.weight
            [1, Co*vo], outlier_indices [1, Mo, outlier_size], perm [K], weight_scale [K], weight_bias [K], bias [N].
        config: settings whose details describe this module, or all modules.
        module: its name.
        k: inputs that the model has; without it the settings say them.
        n: outputs that the model has; without it the settings say them.

    Raises:
        ConfigError: the settings do not describe the module, or not as this reader needs it.
        TensorMismatch: tensors are missing, too many, of another shape or dtype, hold numbers that are not finite,
            indices beyond their codebook, or an order that is none; lists every problem with both numbers.
    """
    own = described(config.details, module)
    if own is None:
        raise ConfigError(
            f"cannot load {module}: the settings do not describe it",
            lines=(f"{BY_NAME} or {BY_TAIL}: needs {module} or its last part, got neither",),
            remedy=f"take {config.source or 'the settings'} from the checkpoint again",
        )
    layer = layer_of(own, f"{config.source}, {module}")
    lines = [*_sizes(layer, k, n), *shapes.problems(tensors, _expected(layer)), *_surplus(tensors, layer)]
    shapes.refuse(module, lines, config.source)
    shapes.refuse(module, list(_values(tensors, layer)), config.source)
    return VectorWeight(
        method=METHOD.VPTQ,
        format=FORMAT.VPTQ,
        scheme=layer.scheme,
        k=layer.k,
        n=layer.n,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name != "bias"},
        layer=layer,
        indices=tensors[_INDICES],
        centroids=tensors[_MAIN],
        residual_indices=tensors.get(_RESIDUAL_INDICES),
        residuals=tensors.get(_RESIDUAL),
        outlier_indices=tensors.get(_OUTLIER_INDICES),
        outliers=tensors.get(_OUTLIER),
        order=torch.argsort(_order(tensors[_PERM])) if layer.perm else None,
        scale=tensors.get(_SCALE),
        offset=tensors.get(_OFFSET),
    )


def write(weight: Weight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write a module that was read as VPTQ: the stored tensors, bit for bit.

    Raises:
        InexactConversion: the weight has no codebooks; ``force`` changes nothing in that.
    """
    del config, force
    if not isinstance(weight, VectorWeight):
        raise InexactConversion(
            f"cannot write {FORMAT.VPTQ.value}: codebooks come from clustering, not from rounding\n"
            f"  weight: needs one read from {FORMAT.VPTQ.value}, got {weight.format.value}"
        )
    return dict(weight.source) | ({} if weight.bias is None else {"bias": weight.bias})


def _sizes(layer: VectorLayer, k: int | None, n: int | None) -> Iterator[str]:
    """Compare the sizes that the settings state with those of the model."""
    for name, stated, model in (("in_features", layer.k, k), ("out_features", layer.n, n)):
        if model is not None and model != stated:
            yield shapes.line(name, "settings", f"{model} (the model)", stated)


def _expected(layer: VectorLayer) -> tuple[Expected, ...]:
    """Return every tensor that the settings of a layer ask for."""
    groups = Side(counts="groups", needed=layer.groups, because="group_num")
    one = Side(counts="groups", needed=1, because="outliers share one codebook")
    vectors = Side(counts="vectors", needed=layer.vectors, because=f"N={layer.n}, {layer.vector} a vector")
    columns = Side(counts="columns", needed=layer.group_size, because="group_size")
    short = _SHORTS + (_HALVES if layer.as_float else ())
    found = [Expected(name=_MAIN, sides=(groups, _book(layer.centroids, layer.vector)), dtypes=shapes.FLOATS)]
    if layer.packed:
        bits = layer.main_bits + layer.residual_bits
        words = Side(counts="words", needed=-(-layer.group_size * bits // 32), because=f"{bits} bits an entry")
        found.append(Expected(name=_INDICES, sides=(groups, vectors, words), dtypes=shapes.WORDS))
    else:
        found.append(Expected(name=_INDICES, sides=(groups, vectors, columns), dtypes=short))
    if layer.residuals:
        sides = (groups, _book(layer.residuals, layer.vector))
        found.append(Expected(name=_RESIDUAL, sides=sides, dtypes=shapes.FLOATS))
        if not layer.packed:
            found.append(Expected(name=_RESIDUAL_INDICES, sides=(groups, vectors, columns), dtypes=short))
    if layer.outlier_size:
        because = f"N={layer.n}, {layer.outlier_vector} a vector"
        high = Side(counts="vectors", needed=layer.outlier_vectors, because=because)
        wide = Side(counts="columns", needed=layer.outlier_size, because="outlier_size")
        book = _book(layer.outlier_centroids, layer.outlier_vector)
        found.append(Expected(name=_OUTLIER, sides=(one, book), dtypes=shapes.FLOATS))
        found.append(Expected(name=_OUTLIER_INDICES, sides=(one, high, wide), dtypes=short))
    return (*found, *_along_inputs(layer))


def _along_inputs(layer: VectorLayer) -> Iterator[Expected]:
    inputs = Side(counts="entries", needed=layer.k, because=f"K={layer.k}")
    outputs = Side(counts="entries", needed=layer.n, because=f"N={layer.n}")
    if layer.perm:
        yield Expected(name=_PERM, sides=(inputs,), dtypes=(*_SHORTS, torch.int64))
    for name in (_SCALE, _OFFSET) if layer.norm else ():
        yield Expected(name=name, sides=(inputs,), dtypes=shapes.FLOATS)
    yield Expected(name="bias", sides=(outputs,), dtypes=shapes.FLOATS, optional=not layer.bias)


def _book(entries: int, size: int) -> Side:
    return Side(counts="numbers", needed=entries * size, because=f"{entries} entries of {size}")


def _surplus(tensors: Mapping[str, torch.Tensor], layer: VectorLayer) -> Iterator[str]:
    """Name tensors that the settings exclude, since with them the weight would be another; and ones without values."""
    known = {entry.name for entry in _expected(layer)}
    yield from (shapes.line(name, "tensor", "none (the settings)", "one") for name in tensors if name not in known)
    yield from (shapes.line(name, "values", "some", "none (meta tensor)") for name, t in tensors.items() if t.is_meta)


def _values(tensors: Mapping[str, torch.Tensor], layer: VectorLayer) -> Iterator[str]:
    """Check numbers, indices and order of tensors whose shapes are right."""
    for name in _FLOATS:
        if name in tensors and (bad := int((~torch.isfinite(tensors[name])).sum())):
            yield shapes.line(name, "values", "finite numbers", f"{bad} that are not")
    books = [(_OUTLIER_INDICES, layer.outlier_centroids)]
    if not layer.packed:
        # Packed indices have no bit to spare: their codebooks have a power of two of entries.
        books += [(_INDICES, layer.centroids), (_RESIDUAL_INDICES, layer.residuals)]
    for name, entries in books:
        if name in tensors and (bad := _beyond(tensors[name], entries)):
            yield shapes.line(name, "values", f"below {entries} (entries of the codebook)", f"{bad} beyond it")
    if layer.perm:
        order = _order(tensors[_PERM])
        if not torch.equal(order.sort().values, torch.arange(layer.k, device=order.device)):
            yield shapes.line(_PERM, "values", f"every number from 0 to {layer.k - 1} once", "no permutation")


def _beyond(stored: torch.Tensor, entries: int) -> int:
    """Count 16-bit indices beyond a codebook without widening them: those from 32768 on are negative when signed."""
    signed = stored.view(torch.int16)
    if entries <= _SHORT // 2:
        return int(((signed < 0) | (signed >= entries)).sum())
    return int(((signed < 0) & (signed >= entries - _SHORT)).sum()) if entries < _SHORT else 0


def _order(perm: torch.Tensor) -> torch.Tensor:
    """Return the stored order as int64; 16-bit entries count from 0 to 65535."""
    return perm if perm.dtype is torch.int64 else perm.view(torch.int16).to(torch.int64) & (_SHORT - 1)
