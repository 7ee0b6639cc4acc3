"""Parameters that are views of mapped files: no copy, pages shared by every process that maps the file, and reclaimable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmaster_engine.load.regions import Bytes
from loadmaster_hookspecs.dtypes import TORCH_NAMES, itemsize
from loadmaster_hookspecs.plan import Binding, FileView

if TYPE_CHECKING:
    import torch


def tensor_view(files: Mapping[int, Bytes], binding: Binding, view: FileView) -> torch.Tensor:
    """Return a tensor over the bytes of a mapped file where a parameter lies. It keeps the mapping alive.

    The mapping is copy-on-write: writing to the tensor gives this process a page of its own and leaves the file as it is.
    """
    import torch

    size = itemsize(binding.dtype)
    reach = sum((extent - 1) * step for extent, step in zip(binding.shape, view.strides, strict=True)) + 1
    flat = torch.from_numpy(files[view.file][view.offset : view.offset + reach * size])
    return flat.view(getattr(torch, TORCH_NAMES[binding.dtype])).as_strided(binding.shape, view.strides)
