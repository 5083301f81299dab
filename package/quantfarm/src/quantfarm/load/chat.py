"""One question to a loaded model through its chat template: the shortest proof that a whole model works."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model said: the text without special tokens, how many tokens it has, and the seconds they took."""

    text: str
    tokens: int
    seconds: float


def ask(model: Any, folder: str | Path, question: str, *, max_new_tokens: int = 24) -> Answer:
    """Ask once, decoded greedily, so that the same model on the same machine answers the same.

    Args:
        model: as ``load`` returns it.
        folder: where its tokenizer lies; the folder or .gguf file that was loaded.
        question: the user's turn.
        max_new_tokens: where the answer is cut.
    """
    tokenizer = _tokenizer(Path(folder))
    turn = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(model.device)
    length = inputs["input_ids"].shape[1]
    began = time.perf_counter()
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    seconds = time.perf_counter() - began
    text = tokenizer.decode(out[0, length:], skip_special_tokens=True)
    return Answer(text=text, tokens=out.shape[1] - length, seconds=seconds)


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    if path.is_file():
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return AutoTokenizer.from_pretrained(path)
