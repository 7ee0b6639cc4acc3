"""Large checkpoints that take no disk: real headers of a real model, and zeros that the file system need not store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_models import SIZES


def write_sparse(folder: Path, **sizes: Any) -> Path:
    """Write a bfloat16 llama of the given sizes, all zeros, and return its one file."""
    config = AutoConfig.for_model("llama", **{**SIZES, **sizes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    config.save_pretrained(folder)
    entries, end = {}, 0
    for name, tensor in sorted(model.state_dict().items()):
        entries[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file = folder / "model.safetensors"
    with file.open("wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        out.truncate(8 + len(header) + end)
    return file
