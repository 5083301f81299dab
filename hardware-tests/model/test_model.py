"""A whole model: converted to 4-bit GPTQ by the installed wheel, loaded behind each backend, asked one question."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.job import Job

QUESTION = "What is the capital of France?"
ANSWER = "Paris"
TOKENS = 24


def _source(job: Job) -> Path:
    found = sorted(Path(job.model).rglob("*.gguf")) if job.model else []
    if not found:
        pytest.skip("infra_failed: the package with the model could not be fetched")
    return found[0]


def _converted(job: Job) -> Path:
    """Return the model in 4-bit GPTQ, made once by the wheel under test from the GGUF file."""
    from quantfarm.load.convert import convert

    folder = Path(job.scratch) / "gptq-4bit"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        convert(_source(job), folder, bits=4, group_size=64, sym=True, requantize=True)
    return folder


def _answer(model: Any, tokenizer: Any) -> tuple[str, int, float]:
    """Return the greedy answer, how many tokens it has, and the seconds that they took."""
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    length = inputs["input_ids"].shape[1]
    with torch.no_grad():
        began = time.perf_counter()
        out = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    seconds = time.perf_counter() - began
    return tokenizer.decode(out[0, length:], skip_special_tokens=True), out.shape[1] - length, seconds


@pytest.mark.filterwarnings("ignore")
def test_a_whole_model_answers(job: Job, figures: dict[str, Any]) -> None:
    """The 4-bit model names Paris, every quantized layer runs behind the named backend, and its speed is recorded."""
    from transformers import AutoTokenizer

    import quantfarm

    folder = _converted(job)
    model = quantfarm.load(str(folder), backend=job.backend, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    _answer(model, tokenizer)
    text, tokens, seconds = _answer(model, tokenizer)
    behind = {m.spec.name for m in model.modules() if hasattr(m, "spec") and hasattr(m, "checkpoint_tensors")}
    figures |= {
        "model": "SmolLM2-135M-Instruct, GPTQ 4 bit g64 by round to nearest",
        "question": QUESTION,
        "answer": text,
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 2),
        "quantized_layers": sum(hasattr(m, "checkpoint_tensors") for m in model.modules()),
    }
    assert behind == {job.record["name"]}
    assert ANSWER in text, f"answered {text!r}"
