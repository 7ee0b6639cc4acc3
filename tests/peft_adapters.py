"""Adapters that the real peft makes and saves for tiny models, with random factors, and peft's own logits as the reference."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import loadmaster as lm
from loadmaster_hookspecs.adapters import AdapterMode
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

ALL: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

TOLERANCE: Final = 1e-5
MODES: Final[tuple[AdapterMode, ...]] = ("live", "merged")


class Made(NamedTuple):
    """A model's folder, its adapter's folder, and peft's float32 logits with the adapter."""

    model: Path
    adapter: Path
    logits: npt.NDArray[np.float32]


def make_adapter(root: Path, family: str = "llama", sizes: Mapping[str, Any] | None = None, **config: Any) -> Made:
    """Write a random model and an adapter of it. `config` is that of peft's LoraConfig, or of the class `kind`."""
    model = save_model(make_model(family, **(sizes or {})), root / "model")
    return adapt(model, root / "adapter", **config)


def adapt(
    model: Path, folder: Path, seed: int = 1, kind: type[PeftConfig] = LoraConfig, ids: Sequence[int] = IDS, **config: Any
) -> Made:
    """Write a random adapter of the plain model in `model`; `kind` is peft's class of its configuration."""
    sizes = {"r": 4, "lora_alpha": 6} if kind is LoraConfig else {}
    config = {**sizes, "target_modules": ALL, "task_type": "CAUSAL_LM", **config}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        wrapped = get_peft_model(base, kind(**config)).eval()
        _randomise(wrapped, seed)
        logits = reference_logits(wrapped, list(ids))
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


def engine(model: Path, adapter: Path, ranks: int = 1, mode: AdapterMode = "live", **options: Any) -> lm.Engine:
    """Return an engine with one adapter, called `it`."""
    return lm.Engine(
        model,
        tensor_parallel=ranks,
        adapters={"it": adapter},
        adapter_mode=mode,
        **{"executor": "inline", "dtype": "float32", **options},
    )


def check(
    made: Made,
    ranks: tuple[int, ...] = (1, 2, 4),
    modes: tuple[AdapterMode, ...] = MODES,
    ids: Sequence[int] = IDS,
    **options: Any,
) -> None:
    """Compare the logits of engines with the adapter in every mode, over every number of ranks, with those of peft."""
    for mode in modes:
        for size in ranks:
            with engine(made.model, made.adapter, size, mode, **options) as loaded:
                assert relative_error(loaded.logits(list(ids), adapter="it"), made.logits) < TOLERANCE, (mode, size)
