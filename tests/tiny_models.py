"""Small random models of real families, written by transformers, with its own float32 logits as the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "vocab_size": 250,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma")
IDS: Final = [3, 17, 200, 5, 249, 8, 8, 90, 41, 2, 7]


def make_model(family: str, *, seed: int = 0, **sizes: Any) -> torch.nn.Module:
    """Return a random float32 model whose every parameter, biases and norms included, has values of its own."""
    config = AutoConfig.for_model(family, **{**SIZES, **sizes})
    generator = torch.Generator().manual_seed(seed)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            centre = 1.0 if parameter.ndim == 1 and not family.startswith("gemma") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def save_model(model: torch.nn.Module, folder: Path, **options: Any) -> Path:
    """Write a model as transformers does and return the folder."""
    model.save_pretrained(folder, **options)  # type: ignore[operator]
    return folder


def reference_logits(model: torch.nn.Module, ids: list[int]) -> npt.NDArray[np.float32]:
    """Return transformers' own logits [tokens, vocabulary] for one sequence."""
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(torch.tensor([ids])).logits[0].float().numpy()
    return logits


def greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """Return transformers' greedy continuation without stopping."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
    return tuple(output[0, len(prompt) :].tolist())


def relative_error(value: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> float:
    """Return the largest absolute difference over the largest absolute reference value."""
    return float(np.abs(value - reference).max() / np.abs(reference).max())
