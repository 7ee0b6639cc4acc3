"""Adapters that the real peft makes and saves for tiny models, with random factors, and peft's own logits as the reference."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tiny_models import IDS, make_model, reference_logits, save_model

ALL: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Made(NamedTuple):
    """A model's folder, its adapter's folder, and peft's float32 logits of `IDS` with the adapter."""

    model: Path
    adapter: Path
    logits: npt.NDArray[np.float32]


def make_adapter(root: Path, family: str = "llama", sizes: Mapping[str, Any] | None = None, **config: Any) -> Made:
    """Write a random model and an adapter of it. `config` is that of peft's LoraConfig."""
    model = save_model(make_model(family, **(sizes or {})), root / "model")
    return adapt(model, root / "adapter", **config)


def adapt(model: Path, folder: Path, seed: int = 1, **config: Any) -> Made:
    """Write a random adapter of the plain model in `model`."""
    config = {"r": 4, "lora_alpha": 6, "target_modules": ALL, "task_type": "CAUSAL_LM", **config}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        wrapped = get_peft_model(base, LoraConfig(**config)).eval()
        _randomise(wrapped, seed)
        logits = reference_logits(wrapped, list(IDS))
        wrapped.save_pretrained(str(folder))
    return Made(model, folder, logits)


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Give everything that training would change values of its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = 0.1 * torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter.dtype))


def edit_adapter_config(folder: Path, **values: Any) -> None:
    """Change fields of an adapter's configuration."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the stored tensors."""
    return load_file(folder / "adapter_model.safetensors")


def write_adapter_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace the stored tensors."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
