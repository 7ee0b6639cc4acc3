"""Adapters that peft makes and saves for a model, with random factors that change its answers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

from bench.checkpoint import make_once

RANKS: Final = {"small": 8, "wide": 16, "coming": 8}
"""The adapters' folders, and their ranks. All change every linear layer."""

STRENGTH: Final = 0.06
"""Standard deviation of the second factors, which peft sets to zero."""

NEEDED: Final = 64 << 20
"""More bytes than the adapters take."""


def adapters(cache: Path, model: Path) -> Path:
    """Return a folder with the adapters of `model` below `cache`, made on first use."""
    return make_once(cache / f"adapters-{model.name}", NEEDED, lambda folder: _make(model, folder))


def _make(model: Path, folder: Path) -> None:
    for seed, (name, rank) in enumerate(RANKS.items()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the libraries warn each other of
            _save(model, folder / name, rank, seed)


def _save(model: Path, folder: Path, rank: int, seed: int) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    wrapped = get_peft_model(base, config)
    for parameter_name, parameter in wrapped.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=STRENGTH)
    wrapped.save_pretrained(str(folder))
