"""The cast transform against torch, and its overflow count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_plugins.transforms import Cast


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "F64"])
@pytest.mark.parametrize("dest", ["F32", "F16", "BF16"])
def test_cast_equals_torch(source: str, dest: str) -> None:
    stored = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(getattr(torch, TORCH_NAMES[source]))
    wanted = stored.to(getattr(torch, TORCH_NAMES[dest]))
    out = bytearray(wanted.numel() * wanted.element_size())
    raw = memoryview(bytearray(stored.view(torch.uint8).numpy().tobytes()))
    counters = Cast().apply(raw, memoryview(out), {"source": source, "dest": dest})
    assert counters == {"overflow": 0}
    assert bytes(out) == wanted.view(torch.uint8).numpy().tobytes()


def test_values_that_no_longer_fit_are_counted() -> None:
    values = np.array([1.0, 7e4, -1e6, np.inf, np.nan], dtype=np.float32)
    out = bytearray(10)
    counters = Cast().apply(memoryview(bytearray(values.tobytes())), memoryview(out), {"source": "F32", "dest": "F16"})
    assert counters == {"overflow": 2}
