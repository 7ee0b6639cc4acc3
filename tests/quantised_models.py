"""Small models whose matrices are GPTQ or AWQ, written by the tests' own packers, with the plain model they stand for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from quantized_files import Numbers, gemm_tensors, gemv_fast_tensors, gemv_tensors, gptq_tensors, numbers
from tiny_models import make_model, save_model

Tensors = dict[str, torch.Tensor]

SIZES: Final[dict[str, Any]] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 224}


class Scheme(NamedTuple):
    """How matrices are quantised: `group` -1 is a whole column; `order` gives columns to groups at random.

    `version` is that of GPTQ's zero points, or the layout of AWQ.
    """

    method: str = "gptq"
    bits: int = 4
    group: int = 32
    order: bool = False
    version: str = "v1"

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration that its producer would write."""
        if self.method == "awq":
            return {
                "quant_method": "awq",
                "bits": self.bits,
                "group_size": self.group,
                "zero_point": True,
                "version": self.version,
            }
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "desc_act": self.order,
            "sym": False,
            "checkpoint_format": "gptq_v2" if self.version == "v2" else "gptq",
        }

    def matrix(self, seed: int, out: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        """Return the stored tensors of a random matrix, and the matrix in float32.

        Scales are powers of two, so that weights are exact in every float type and any difference is a fault.
        """
        size = columns if self.group == -1 else min(self.group, columns)
        groups = np.arange(columns) // size
        if self.order:
            groups = np.random.default_rng(seed).permutation(groups)
        made = numbers(seed, self.bits, out, columns, groups)
        made = dataclasses.replace(made, scales=torch.exp2(-made.scales.float().mul(1e4).remainder(3).floor() - 4).half())
        return self._stored(made), torch.from_numpy(made.weights()).float()

    def _stored(self, made: Numbers) -> Tensors:
        if self.version.startswith("gemv"):
            pack = gemv_tensors if self.version == "gemv" else gemv_fast_tensors
            return pack(made, {32: 4, 64: 2, 128: 1}[self.group])
        if self.method == "awq":
            return gemm_tensors(made)
        return gptq_tensors(made, version=self.version)


def projections(name: str) -> bool:
    """Choose the projections of attention, feed-forward blocks and experts."""
    return name.endswith("_proj.weight") or ".experts." in name


def write_quantised(
    folder: Path,
    scheme: Scheme,
    family: str = "llama",
    *,
    chosen: Callable[[str], bool] = projections,
    bias: float | None = None,
    **sizes: Any,
) -> Path:
    """Write a model with quantised matrices to `folder`, and the plain one it stands for to the folder that is returned."""
    model = make_model(family, **{**SIZES, **sizes})
    save_model(model, folder)
    plain_folder = save_model(model, folder / "plain")
    state, packed, plain = load_file(folder / "model.safetensors"), {}, {}
    for number, (name, tensor) in enumerate(sorted(state.items())):
        if tensor.ndim != 2 or not chosen(name):
            packed[name] = plain[name] = tensor
            continue
        prefix = name.removesuffix(".weight")
        tensors, plain[name] = scheme.matrix(number, *tensor.shape)
        packed |= {f"{prefix}.{suffix}": value.contiguous() for suffix, value in tensors.items()}
        if bias is not None:
            packed[f"{prefix}.bias"] = torch.full((tensor.shape[0],), bias)
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    save_file(plain, plain_folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, quantization_config=scheme.settings)
    return plain_folder


def edit_config(folder: Path, **values: Any) -> None:
    """Change keys of a configuration; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Rewrite the tensors of a model."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
