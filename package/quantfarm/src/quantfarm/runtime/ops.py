"""Operators as torch sees them: one for a quantized layer, and the shapes of the native CPU library's own.

``quantfarm::linear`` takes a layer by number, so that a traced graph holds one opaque node of known output shape:
no graph break, and no recompilation for another number of rows. Its backward is the wide one of every layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from quantfarm.declare.names import BACKEND


class Layer(Protocol):
    """What the operators need of a layer."""

    module_name: str
    trainable: bool

    def compute(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product with bias, any leading dimensions."""

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return grad W in grad's dtype, any leading dimensions."""


_LAYERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
_NUMBERS = itertools.count(1)
_LIBRARY = torch.library.Library("quantfarm", "DEF")  # type: ignore[no-untyped-call]
_KEY = "CompositeExplicitAutograd"


def register_layer(layer: Layer) -> int:
    """Give a layer the number by which graphs name it; the table holds no layer alive."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


def refuse_gradients(layer: Layer) -> NotImplementedError:
    """Return the error for a gradient that an inference-only backend was asked for."""
    advice = f'load the model with backend="{BACKEND.AUTO_TRAINABLE.value}"'
    return NotImplementedError(f"cannot train {layer.module_name}: its backend is inference-only\n{advice}")


def _linear(x: torch.Tensor, bias: torch.Tensor | None, layer: int, _out_features: int) -> torch.Tensor:
    out: torch.Tensor = _LAYERS[layer].compute(x, bias)
    return out


def _linear_fake(x: torch.Tensor, _bias: torch.Tensor | None, _layer: int, out_features: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], out_features)


def _input_gradient(grad: torch.Tensor, layer: int, _in_features: int) -> torch.Tensor:
    out: torch.Tensor = _LAYERS[layer].input_gradient(grad)
    return out


def _input_gradient_fake(grad: torch.Tensor, _layer: int, in_features: int) -> torch.Tensor:
    return grad.new_empty(*grad.shape[:-1], in_features)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001 - torch passes it by name
    x, bias, ctx.layer, _ = inputs
    ctx.in_features = x.shape[-1]
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    """Return only the requested gradients: the input's by wide products, the bias's as an fp32 sum over all rows."""
    layer = _LAYERS[ctx.layer]
    if not layer.trainable:
        raise refuse_gradients(layer)
    needs_input, needs_bias = ctx.needs_input_grad[:2]
    grad_x = torch.ops.quantfarm.linear_input_gradient(grad, ctx.layer, ctx.in_features) if needs_input else None
    grad_bias = None
    if needs_bias:
        rows = grad.reshape(-1, grad.shape[-1])
        grad_bias = rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return grad_x, grad_bias, None, None


def _register() -> None:
    """Define both operators with their kernels, fakes and the backward; runs once, at import."""
    implementations: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
        "linear(Tensor x, Tensor? bias, int layer, int out_features) -> Tensor": (_linear, _linear_fake),
        "linear_input_gradient(Tensor grad, int layer, int in_features) -> Tensor": (
            _input_gradient,
            _input_gradient_fake,
        ),
    }
    for schema, (kernel, fake) in implementations.items():
        name = _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, kernel, _KEY)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"quantfarm::{name}", fake, lib=_LIBRARY)
    torch.library.register_autograd("quantfarm::linear", _backward, setup_context=_setup, lib=_LIBRARY)


_register()
