"""QuantLinear: the only module of the project. Any backend behind it, the checkpoint's tensors in front of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from quantfarm.declare.spec import KernelSpec
from quantfarm.formats.weights.base import Weight
from quantfarm.runtime import ops, panels
from quantfarm.runtime.adapter import LoraAdapter
from quantfarm.runtime.cache import TensorKey, tensors_cache_key
from quantfarm.runtime.epilogue import without_autocast
from quantfarm.runtime.launches import guarded
from quantfarm.runtime.protocol import Backend

Reader = Callable[[Mapping[str, torch.Tensor]], Weight]


class QuantLinear(nn.Module):
    """A linear layer over one quantized weight.

    ``forward`` takes [..., K] of any strides, with any leading dimensions or none, and returns [..., N] in x.dtype.
    ``state_dict`` holds the checkpoint's tensors under their own names, bit for bit, whatever layout the backend
    keeps. Device moves repack; dtype moves leave codes, scales and bias as stored.

    Args:
        tensor: the weight, on the device where it is to run.
        backend: the module ``kernels/<kernel>/backend.py`` of the chosen record.
        spec: the chosen record.
        name: the layer's name in the model, for messages.
        read: turns checkpoint tensors into a Weight again; needed to load a state or to follow edits in place.
        adapter: LoRA factors beside the weight.

    Attributes:
        bias: [N] in the stored dtype, or None; a parameter that asks for no gradient until the caller does.
        trainable: whether the backend gives gradients of input, bias and adapter.
    """

    bias: nn.Parameter | None
    adapter: LoraAdapter | None
    _tensor: Weight
    _backend: Backend

    def __init__(
        self,
        tensor: Weight,
        backend: Backend,
        spec: KernelSpec,
        *,
        name: str = "layer",
        read: Reader | None = None,
        adapter: LoraAdapter | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = tensor.k, tensor.n
        self.spec, self.module_name, self.trainable = spec, name, spec.features.training is True
        self._backend, self._read = backend, read
        self._dtypes = frozenset(getattr(torch, dtype) for dtype in spec.activations)
        self._number = ops.register_layer(self)
        self.bias = None if tensor.bias is None else nn.Parameter(tensor.bias.detach(), requires_grad=False)
        self._prepared: Any = None
        self._key: tuple[TensorKey, ...] = ()
        self._hold(tensor)
        self.set_adapter(adapter)
        self.training = False
        self.prepare()

    # ---- computing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] to [..., N] in x.dtype; gradients and tracing go through ``quantfarm::linear``.

        Raises:
            ValueError: the last dimension is not K.
            TypeError: a dtype that the backend does not compute with.
            RuntimeFailed: the backend raised, now or at an earlier call.
        """
        bias = self.bias
        wanted = x.requires_grad or (bias is not None and bias.requires_grad)
        if torch.compiler.is_compiling() or (wanted and torch.is_grad_enabled()):
            out: torch.Tensor = torch.ops.quantfarm.linear(x, bias, self._number, self.out_features)
        else:
            out = self.compute(x, bias)
        if self.adapter is not None:
            out = self.adapter(x, out)
        return out

    def compute(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias without a graph. Zero rows launch nothing; dense rows are not copied."""
        self._check(x)
        shape = (*x.shape[:-1], self.out_features)
        if x.numel() == 0:
            return x.new_empty(shape)
        rows = x.detach().reshape(-1, self.in_features).contiguous()
        bias = None if bias is None else bias.detach()
        prepared = self.prepare()
        with without_autocast(x.device):
            out = guarded(self.spec.backend.value, self.module_name, lambda: self._backend.run(prepared, rows, bias))
        return out.view(shape)

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return grad W, summed in fp32 from tiles of the decoded weight, in grad's dtype."""
        rows = grad.detach().reshape(-1, self.out_features)
        with without_autocast(grad.device):
            wide = panels.multiply_transposed(rows, self.weight_tensor())
        return wide.to(grad.dtype).view(*grad.shape[:-1], self.in_features)

    def _check(self, x: torch.Tensor) -> None:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            need, shape = f"[..., {self.in_features}]", list(x.shape)
            raise ValueError(f"cannot compute {self.module_name}: x needs shape {need}, got {shape}")
        if x.dtype not in self._dtypes:
            known, backend = ", ".join(self.spec.activations), self.spec.backend.value
            found = str(x.dtype).removeprefix("torch.")
            raise TypeError(f"cannot compute {self.module_name}: backend {backend} needs x in {known}, got {found}")

    # ---- the prepared layout

    def prepare(self) -> Any:
        """Return the backend's layout, built again when a tensor it came from was replaced, moved or edited."""
        key = tensors_cache_key(self._watched())
        if self._prepared is None or key != self._key:
            if self._prepared is not None:
                self._hold(self._read_again())
            self._prepared = self._backend.prepare(self._tensor, self._tensor.device)
            if not self.spec.features.keeps_source:
                self._tensor = self._tensor.without_codes()
            self._key = tensors_cache_key(self._watched())
        return self._prepared

    def clear_weight_cache(self) -> None:
        """Build everything derived again; needed after editing inference tensors, which carry no version."""
        self._hold(self._read_again())
        self.prepare()

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """Return the checkpoint's tensors under their suffixes, such as qweight, qzeros, scales, g_idx, bias."""
        held = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        if self.bias is not None:
            held["bias"] = self.bias.detach()
        return {**self.weight_tensor().packed(), **held}

    def weight_tensor(self, *, codes: bool = True) -> Weight:
        """Return the weight; with ``codes`` False perhaps without them, where a layout has no inverse."""
        if self._tensor.complete or not codes:
            return self._tensor
        return self._tensor.with_codes(self._backend.restore(self._prepared))

    @property
    def reader(self) -> Reader | None:
        """What turns this layer's checkpoint tensors into a Weight again; None where it was built without."""
        return self._read

    def take(self, tensor: Weight) -> None:
        """Take another weight of the same shape, in place; raises ValueError for another shape."""
        found, need = (tensor.k, tensor.n), (self.in_features, self.out_features)
        if found != need:
            raise ValueError(f"cannot replace the weight of {self.module_name}: needs K, N = {need}, got {found}")
        for name in [name for name in self._buffers if name not in tensor.source]:
            del self._buffers[name]
        self.bias = None if tensor.bias is None else nn.Parameter(tensor.bias.detach(), requires_grad=False)
        self._hold(tensor)
        self.prepare()

    @property
    def qweight(self) -> torch.Tensor:
        """The packed codes as the checkpoint stores them. A copy unless the backend keeps them: edit by loading.

        Raises:
            AttributeError: a format without a tensor of that name.
        """
        tensors = self.checkpoint_tensors()
        if "qweight" not in tensors:
            raise AttributeError(f"{self.module_name} has no qweight: its tensors are {', '.join(tensors)}")
        return tensors["qweight"]

    def _watched(self) -> tuple[torch.Tensor | None, ...]:
        codes = getattr(self._tensor, "codes", None)
        return (codes, *self._buffers.values())

    def _read_again(self) -> Weight:
        if self._read is None:
            return self.weight_tensor()
        return self._read(self.checkpoint_tensors())

    def _hold(self, tensor: Weight) -> None:
        """Take a weight: its source tensors become buffers, and whatever was prepared is dropped."""
        self._tensor = tensor
        for name, source in tensor.source.items():
            if name != "bias":
                self._buffers[name] = source
        self._prepared = None

    # ---- adapter and training

    def set_adapter(self, adapter: LoraAdapter | None) -> None:
        """Attach LoRA factors, or take them off with None; raises ValueError when they do not fit the layer."""
        if adapter is not None:
            found = (adapter.lora_A.shape[0], adapter.lora_B.shape[1])
            if found != (self.in_features, self.out_features):
                need = (self.in_features, self.out_features)
                raise ValueError(f"cannot attach an adapter to {self.module_name}: needs K, N = {need}, got {found}")
        self.adapter = adapter

    def train(self, mode: bool = True) -> QuantLinear:
        """Switch to training; raises NotImplementedError at once when the backend gives no gradients."""
        if mode and not self.trainable:
            raise ops.refuse_gradients(self)
        super().train(mode)
        return self

    # ---- state

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, packed in self.weight_tensor().packed().items():
            destination[prefix + name] = packed

    def _load_from_state_dict(self, state_dict: Mapping[str, torch.Tensor], prefix: str, *rest: Any) -> None:
        """Take checkpoint tensors; ``rest`` is torch's metadata, strict, and three lists for what went wrong."""
        _, strict, missing_keys, unexpected_keys, error_msgs = rest
        own = self.checkpoint_tensors()
        given = {name: state_dict[prefix + name] for name in own if prefix + name in state_dict}
        missing_keys.extend(prefix + name for name in own if name not in given and strict)
        for key in state_dict if strict else ():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in own and name.split(".")[0] not in self._modules:
                unexpected_keys.append(key)
        for name, tensor in given.items():
            if tensor.shape != own[name].shape:
                need, got = list(own[name].shape), list(tensor.shape)
                error_msgs.append(f"{prefix}{name}: needs shape {need}, got {got}")
        if given and self._read is None:
            error_msgs.append(f"{prefix}: this layer was built without a reader of checkpoint tensors")
        if given and not error_msgs:
            self._take({**own, **given})

    def _take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        assert self._read is not None
        device = self._tensor.device
        tensor = self._read({name: t.detach().to(device, copy=True) for name, t in tensors.items()})
        if self.bias is not None and tensor.bias is not None:
            self.bias.data = tensor.bias
        self._hold(tensor)
        self.prepare()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantLinear:
        """Follow device moves by repacking there; dtype moves change nothing, since stored dtypes are the contract."""
        before = self._tensor.device
        device = fn(torch.empty(0, device=before)).device
        weight = self.weight_tensor()
        held = dict(self._buffers)
        super()._apply(lambda t: t.to(device), recurse)  # type: ignore[no-untyped-call]
        if device != before:
            known = {id(old): new for name, old in held.items() if (new := self._buffers[name]) is not None}
            self._hold(weight.moved(lambda t: known[id(t)] if id(t) in known else t.to(device)))
            if device.type != "meta":
                self.prepare()
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_tensor"] = self.weight_tensor()
        state["_backend"] = self._backend.__name__  # type: ignore[attr-defined]
        state["_prepared"] = state["_number"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._backend = importlib.import_module(state["_backend"])
        self._number = ops.register_layer(self)
        self.prepare()

    def extra_repr(self) -> str:
        """Return shape, scheme and backend for ``print(model)``."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, {self._tensor.scheme}, backend={self.spec.backend.value}"
