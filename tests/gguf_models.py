"""Tiny models as .gguf files: written by the package ``gguf``, quantized by it, rows reordered as llama.cpp does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

VOCABULARY = 151
IDS = torch.tensor([[1, 7, 150, 3, 3, 90]])
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TypeOf = Callable[[str], str]
"""Name of a tensor in the file to the name of the type it is to have."""


def mixed(name: str) -> str:
    """Give every matrix another type: R91's mix inside what an engine would fuse."""
    ends = {"attn_q": "Q4_0", "attn_k": "Q8_0", "attn_v": "F16", "ffn_gate": "Q4_1", "ffn_up": "Q5_0"}
    return next((kind for end, kind in ends.items() if f".{end}.weight" in name), "Q5_1")


def model_of(architecture: str, *, tied: bool = False, **changes: Any) -> Any:
    """Build a model with random weights, also in norms and biases."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    sizes = {**_SIZES, "tie_word_embeddings": tied, **changes}
    if architecture == "starcoder2":
        sizes["sliding_window"] = None
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[architecture](**sizes), dtype=torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
    return model.eval()


def write(path: Path, model: Any, type_of: TypeOf = mixed, extra: Mapping[str, Any] | None = None) -> Path:
    """Write a model; ``extra`` adds plain tensors (arrays) and metadata strings or floats."""
    architecture, config = model.config.model_type, model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(_head_size(config))
    if architecture == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_token_list([str(i) for i in range(config.vocab_size)])
    for key, value in (extra or {}).items():
        _add(writer, key, value)
    for name, values in tensors_of(model).items():
        kind = gguf.GGMLQuantizationType[type_of(name) if values.ndim == 2 else "F32"]
        stored = values if kind is gguf.GGMLQuantizationType.F32 else _quantized(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def tensors_of(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors by the names of the file, in its row order."""
    architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == model.config.model_type)
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    found = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        module, _, suffix = name.rpartition(".")
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        array = values.numpy()
        if model.config.model_type == "llama" and module.rpartition(".")[2] in heads:
            array = interleaved(array, heads[module.rpartition(".")[2]])
        found[f"{names.get_name(module)}.{suffix}"] = array
    return found


def interleaved(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return rows as llama.cpp stores those of queries and keys: the halves of each head zipped together."""
    rows = values.shape[0] // heads
    order = [h * rows + half * rows // 2 + i for h in range(heads) for i in range(rows // 2) for half in range(2)]
    return np.ascontiguousarray(values[order])


def _quantized(values: npt.NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Quantize with the package, which has no packer for Q1_0: signs by bit, scale the mean of the magnitudes."""
    if kind is not gguf.GGMLQuantizationType.Q1_0:
        packed: npt.NDArray[np.uint8] = gguf.quants.quantize(values, kind)
        return packed
    blocks = values.reshape(values.shape[0], -1, 128)
    scales = np.abs(blocks).mean(-1, keepdims=True).astype("<f2").view(np.uint8)
    signs = np.packbits(blocks >= 0, axis=-1, bitorder="little")
    return np.concatenate([scales, signs], axis=-1).reshape(values.shape[0], -1)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_tensor(key, value)
