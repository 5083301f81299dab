"""The dense half of a load: plain tensors into parameters, tied embeddings, and proof that nothing stayed empty."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from quantfarm.errors import CheckpointError, TensorMismatch
from quantfarm.load.checkpoint import Checkpoint, shortened
from quantfarm.runtime.linear import QuantLinear

_FORGOTTEN = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$", r"\.attn\.(masked_)?bias$")
"""Tensors that older writers stored and models compute by themselves today."""

_PLAIN = ("F16", "BF16", "F32", "F64")


def fill(model: nn.Module, checkpoint: Checkpoint, used: set[str], device: torch.device) -> list[str]:
    """Load every plain tensor that the model has a place for, tie what is to be tied, and refuse what stays empty.

    Args:
        model: parameters on the meta device, quantized layers in place.
        checkpoint: the opened folder.
        used: tensors that quantized layers have taken.
        device: where everything goes.

    Returns:
        Notes: tensors without a place, embeddings that were not tied.

    Raises:
        TensorMismatch: a stored shape is not the model's; lists every one.
        CheckpointError: parameters that no tensor fills; names them.
    """
    places = _places(model)
    fitting = [name for name in checkpoint.where if name in places and name not in used]
    _check_shapes(model, checkpoint, fitting)
    notes = _untie_stored_head(model, checkpoint, used)
    for name in fitting:
        _assign(model, name, checkpoint.tensor(name), device)
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()
    _move_buffers(model, device)
    _refuse_empty(model, checkpoint)
    surplus = [
        name for name in checkpoint.where if name not in places and name not in used and not _expected(model, name)
    ]
    if surplus:
        notes.append(f"tensors without a place in the model were left out: {', '.join(shortened(surplus))}")
    return notes


def _places(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and persistent buffer outside quantized layers, tied names included."""
    places: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, QuantLinear):
            transient = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
            held = {**module._parameters, **{n: b for n, b in module._buffers.items() if n not in transient}}  # noqa: SLF001
            places.update({f"{path}.{n}" if path else n: t for n, t in held.items() if t is not None})
    return places


def _check_shapes(model: nn.Module, checkpoint: Checkpoint, names: Iterable[str]) -> None:
    places = _places(model)
    lines = [
        f"{name}: needs {list(places[name].shape)}, got {list(checkpoint.shape(name))}"
        for name in names
        if tuple(places[name].shape) != checkpoint.shape(name)
    ]
    # Codes whose scale is missing would be taken for values.
    lines += [
        f"{name}: needs a float of 16 bits or more, got {dtype} without a scale beside it"
        for name in names
        if places[name].is_floating_point() and (dtype := checkpoint.dtype(name)) not in _PLAIN
    ]
    if lines:
        raise TensorMismatch(
            f"cannot load {checkpoint.folder}: dense tensors do not match the model",
            lines=shortened(lines),
            remedy="compare config.json with the tensor list",
        )


def _assign(model: nn.Module, name: str, stored: torch.Tensor, device: torch.device) -> None:
    """Put one tensor in place: floats in the dtype that the model was built with, everything else as it is."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    old = getattr(module, leaf)
    tensor = stored.to(device=device, dtype=old.dtype if old.is_floating_point() else stored.dtype)
    if leaf in module._parameters:  # noqa: SLF001 - torch's own table; setattr would refuse another dtype or device
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=old.requires_grad)  # noqa: SLF001
    else:
        module._buffers[leaf] = tensor  # noqa: SLF001


def _untie_stored_head(model: nn.Module, checkpoint: Checkpoint, used: set[str]) -> list[str]:
    """Switch tying off when the stored head is packed or differs from the embedding: the stored one wins (R22)."""
    config: Any = getattr(model, "config", None)
    if config is None or not getattr(config, "tie_word_embeddings", False):
        return []
    head, embedding = _name_of(model, "get_output_embeddings"), _name_of(model, "get_input_embeddings")
    if head is None or embedding is None:
        return []
    stored, tied_to = f"{head}.weight", f"{embedding}.weight"
    if isinstance(model.get_submodule(head), QuantLinear):
        cause = "is packed"
    elif stored in checkpoint.where and tied_to in checkpoint.where and stored not in used:
        if torch.equal(checkpoint.tensor(stored), checkpoint.tensor(tied_to)):
            return []
        cause = "differs"
    else:
        return []
    for part in {id(c): c for c in (config, getattr(config, "get_text_config", lambda: config)())}.values():
        part.tie_word_embeddings = False
    return [f"{head}: config.json ties it to {embedding}, but the stored head {cause}; not tied"]


def _name_of(model: Any, getter: str) -> str | None:
    module = getattr(model, getter, lambda: None)()
    return next((name for name, candidate in model.named_modules() if candidate is module), None)


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        if isinstance(module, QuantLinear):
            continue
        for name, buffer in module._buffers.items():  # noqa: SLF001 - torch's own table
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)  # noqa: SLF001


def _refuse_empty(model: nn.Module, checkpoint: Checkpoint) -> None:
    empty = [name for name, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
    if empty:
        raise CheckpointError(
            f"cannot load {checkpoint.folder}: modules without tensors",
            lines=shortened(f"{name}: neither this tensor nor a packed one is in the checkpoint" for name in empty),
            remedy="the checkpoint is incomplete, or config.json belongs to another model",
        )


def _expected(model: Any, name: str) -> bool:
    """Say whether the model's class, or old habit, declares a stored tensor as one to leave out."""
    patterns = [*_FORGOTTEN, *(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    return any(re.search(pattern, name) for pattern in patterns)
