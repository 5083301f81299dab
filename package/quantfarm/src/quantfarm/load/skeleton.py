"""The empty model that transformers builds from config.json: parameters on meta, buffers with their real values."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantfarm.errors import CheckpointError, ConfigError, MissingPackage

HUB_OPTIONS = ("revision", "token", "cache_dir", "local_files_only", "force_download")
MODEL_OPTIONS = ("attn_implementation",)
_DTYPES = ("float16", "bfloat16", "float32")


def find_folder(model_id_or_path: str | Path, hub: Mapping[str, Any]) -> Path:
    """Return the local folder of a checkpoint; a hub id is downloaded by huggingface_hub into its cache.

    Raises:
        CheckpointError: neither a folder nor a hub id, or the hub does not give it.
        MissingPackage: huggingface_hub is not installed.
    """
    path = Path(model_id_or_path).expanduser()
    if path.is_dir():
        return path
    text = str(model_id_or_path)
    if path.is_file() or path.is_absolute() or text.startswith((".", "~")) or text.count("/") != 1:
        found = "a file" if path.is_file() else "no such folder"
        raise CheckpointError(
            f"cannot open {text}: {found}",
            lines=["model: needs a folder with safetensors and config.json, a .gguf file, or a hub id owner/name"],
            remedy="quantfarm convert SOURCE TARGET makes such a folder" if path.is_file() else "",
        )
    _need("huggingface_hub", f"loading {text} from the hub", "transformers")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.py", "*.jinja"]
    try:
        return Path(snapshot_download(text, allow_patterns=patterns, **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"cannot open {text}: no local folder of that name, and the hub does not give it",
            lines=[f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"],
            remedy="name a local folder, or check the id and the network",
        ) from error


def build(
    folder: Path, dtype: object, *, trust_remote_code: bool, options: Mapping[str, Any]
) -> tuple[Any, torch.dtype]:
    """Build the causal language model of a folder without weights.

    Args:
        folder: holds config.json.
        dtype: a torch dtype, its name, or None or ``auto`` for what config.json says (float32 if nothing).
        trust_remote_code: whether code from the folder may run, as transformers means it.
        options: further arguments for the model's constructor.

    Returns:
        The model in evaluation mode, and its dtype.

    Raises:
        MissingPackage: transformers or accelerate is not installed.
        CheckpointError: config.json is absent.
        ConfigError: a dtype that no backend computes with.
    """
    _need("transformers", f"loading {folder}", "transformers")
    _need("accelerate", f"loading {folder}", "transformers")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"cannot open {folder}: no config.json in it", remedy="fetch the whole folder")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return empty_model(config, dtype, trust_remote_code=trust_remote_code, options=options)


def empty_model(
    config: Any, dtype: object, *, trust_remote_code: bool, options: Mapping[str, Any]
) -> tuple[Any, torch.dtype]:
    """Build the causal language model of a configuration; arguments and result are those of ``build``."""
    from transformers import AutoModelForCausalLM

    wanted = read_dtype(dtype, getattr(config, "dtype", None))
    with _parameters_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=wanted, trust_remote_code=trust_remote_code, **options)
    return model.eval(), wanted


def finish(model: Any, folder: Path) -> None:
    """Attach the generation settings of the folder, where it has some."""
    if (folder / "generation_config.json").is_file():
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(folder)


def read_dtype(value: object, configured: torch.dtype | None) -> torch.dtype:
    """Read a dtype argument; raise ConfigError for anything but fp16, bf16, fp32."""
    if value is None or value == "auto":
        value = configured or torch.float32
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise ConfigError(
            "cannot load: no backend computes in this dtype",
            lines=[f"dtype: needs {', '.join(_DTYPES)}, got {name}"],
            remedy="pass dtype=torch.float16, torch.bfloat16 or torch.float32",
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Create parameters without memory, but buffers for real: rotary tables are computed, not stored."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        yield


def _need(package: str, needed_for: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackage(package, needed_for=needed_for, extra=extra)


def is_empty(module: nn.Module) -> bool:
    """Say whether any parameter still has no memory."""
    return any(p.is_meta for p in module.parameters())
