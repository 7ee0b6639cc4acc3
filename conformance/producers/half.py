"""Models that were measured in another type and are saved in float16."""

from __future__ import annotations

from typing import Any

import torch


def halve(model: Any) -> None:
    """Turn a transformers model into float16 and let its configuration say so, under the old name and the new one."""
    model.half()
    model.config.torch_dtype = torch.float16
    if "dtype" in vars(model.config):
        model.config.dtype = "float16"
