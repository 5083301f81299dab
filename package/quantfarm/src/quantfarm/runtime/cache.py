"""Keys that notice a changed tensor: replaced, moved, resized, or edited in place."""

from __future__ import annotations

from collections.abc import Iterable

import torch

TensorKey = tuple[object, ...]


def tensor_cache_key(tensor: torch.Tensor | None) -> TensorKey:
    """Return identity, version, data pointer, device, dtype, shape and inference flag (``numerics`` rule B4).

    Shape and pointer alone are not enough, since edits in place and the allocator's reuse change neither. An
    inference tensor has no version; after editing one the caller clears the cache of its layer.
    """
    if tensor is None:
        return ()
    inference = tensor.is_inference()
    pointer = 0 if tensor.is_meta else tensor.data_ptr()
    version = -1 if inference else tensor._version  # noqa: SLF001 - torch has no public name for the version counter
    return (id(tensor), version, pointer, tensor.device, tensor.dtype, tensor.shape, inference)


def tensors_cache_key(tensors: Iterable[torch.Tensor | None]) -> tuple[TensorKey, ...]:
    """Return the keys of several tensors, in order."""
    return tuple(tensor_cache_key(tensor) for tensor in tensors)
