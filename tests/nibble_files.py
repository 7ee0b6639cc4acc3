"""Checkpoints in the nibble format of the quantizer tutorial, with the plain model they stand for as the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

GROUP: Final = 32


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nibbles and steps that approximate a float matrix [out, in]."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // GROUP, GROUP)
    steps = (groups.abs().amax(-1) / 7).clamp(min=1e-4).half()
    codes = (groups / steps.float().unsqueeze(-1) + 8).round().clamp(0, 15).to(torch.uint8).reshape(rows, columns)
    return codes[:, 0::2] | codes[:, 1::2] << 4, steps


def unpack(nibbles: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the float32 matrix that nibbles and steps stand for, value by value as the format's description says."""
    rows, columns = nibbles.shape[0], 2 * nibbles.shape[1]
    weight = torch.empty(rows, columns)
    weight[:, 0::2] = (nibbles & 15).float() - 8
    weight[:, 1::2] = (nibbles >> 4).float() - 8
    return weight * steps.float().repeat_interleave(GROUP, 1)


def quantise_folder(folder: Path, chosen: Callable[[str], bool], *, bias: float | None = None) -> dict[str, torch.Tensor]:
    """Rewrite a saved model with the chosen matrices packed; return the plain tensors that the file now stands for.

    With `bias` every packed matrix gets a stored bias of that value.
    """
    state = load_file(folder / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if not (name.endswith(".weight") and tensor.ndim == 2 and chosen(name)):
            packed[name] = plain[name] = tensor
            continue
        prefix = name.removesuffix(".weight")
        packed[f"{prefix}.nibbles"], packed[f"{prefix}.steps"] = pack(tensor.float())
        plain[name] = unpack(packed[f"{prefix}.nibbles"], packed[f"{prefix}.steps"])
        if bias is not None:
            packed[f"{prefix}.bias"] = torch.full((tensor.shape[0],), bias)
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    return plain
