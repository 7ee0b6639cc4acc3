"""Tiny models with random matrices in the formats of GPTQ and AWQ, beside the plain models that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from quantized_files import Numbers, gemm_tensors, gemv_fast_tensors, gemv_tensors, gptq_tensors, numbers


class Method(NamedTuple):
    """A way of storing matrices: GPTQ with `bits`, or AWQ in a `layout`; groups of `group` columns, -1 for all."""

    bits: int = 4
    group: int = 32
    act_order: bool = False
    version: str = "v1"
    layout: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the `quantization_config` that a producer writes."""
        if self.layout:
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": self.layout}
        label = "gptq_v2" if self.version == "v2" else "gptq"
        said = {"quant_method": "gptq", "bits": self.bits, "group_size": self.group, "sym": False, "desc_act": self.act_order}
        return {**said, "checkpoint_format": label}

    def matrix(self, seed: int, out: int, columns: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the stored tensors of a random matrix, and the float32 matrix [out, in] that they stand for."""
        groups = np.arange(columns) // (columns if self.group == -1 else self.group)
        if self.act_order:
            groups = np.random.default_rng(seed).permutation(groups)
        drawn = numbers(seed, self.bits, out, columns, groups, step=0.6 / (1 << self.bits))
        weights = torch.from_numpy(drawn.weights()).to(drawn.scales.dtype).float()
        return self._tensors(drawn, columns), weights

    def _tensors(self, drawn: Numbers, columns: int) -> dict[str, torch.Tensor]:
        if self.layout == "gemm":
            return gemm_tensors(drawn)
        if self.layout:
            words = {32: 4, 64: 2}[self.group]
            assert columns // self.group <= 8 * words
            return (gemv_tensors if self.layout == "gemv" else gemv_fast_tensors)(drawn, words)
        return gptq_tensors(drawn, version=self.version)


def quantise_folder(folder: Path, method: Method, chosen: Callable[[str], bool]) -> Path:
    """Replace chosen weights of a saved model by quantised matrices; return a folder with the plain model they stand for."""
    stored = load_file(folder / "model.safetensors")
    plain, packed = dict(stored), dict(stored)
    for seed, name in enumerate(sorted(filter(chosen, stored))):
        tensors, plain[name] = method.matrix(seed, *stored[name].shape)
        del packed[name]
        packed |= {f"{name.removesuffix('weight')}{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}
    config = json.loads((folder / "config.json").read_text())
    twin = folder / "plain"
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method.settings()}))
    save_file(plain, twin / "model.safetensors", {"format": "pt"})
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    return twin
