"""Values that are no finite numbers are found in raw bytes where torch finds them, and told with their byte of the file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loadmaster_engine.load.finite import FiniteCheck, first_not_finite
from loadmaster_engine.load.regions import as_array
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.plan import ReadOp, Region

VALUES = [0.0, -1.5, float("nan"), float("inf"), float("-inf"), 6e4, 1e-7]


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_elements_are_told_as_torch_tells_them(dtype: str) -> None:
    elements = torch.tensor(VALUES, dtype=getattr(torch, TORCH_NAMES[dtype]))
    limits = torch.finfo(elements.dtype)
    for element in (*elements, *torch.tensor([limits.max, limits.min, limits.tiny], dtype=elements.dtype)):
        data = torch.stack([torch.ones_like(element), element]).view(torch.uint8).numpy()
        word = "nan" if bool(element.isnan()) else "inf"
        assert first_not_finite(data, dtype) == (None if bool(element.isfinite()) else (1, word))


def test_other_types_have_no_such_elements() -> None:
    assert first_not_finite(np.full(8, 255, np.uint8), "I32") is None


def test_the_place_is_the_byte_of_the_file_in_every_form_of_a_region() -> None:
    memory = np.zeros(400, np.uint8)
    file = np.arange(50, dtype=np.float32)
    source = Region(40, 8, ((3, 48), (2, 16)))  # three times two runs of two elements
    wrong = 40 + 2 * 48 + 16 + 4
    file[wrong // 4] = np.nan
    dest = Region(100, 24, ((2, 40),))
    dense = as_array(file.view(np.uint8).data, source).reshape(-1)
    target = as_array(memory.data, dest)
    target[:] = dense.reshape(target.shape)
    op = ReadOp(tensor="t", parameter="p", file=1, source=source, dest=dest, via="gathered")
    with pytest.raises(IntegrityError, match="LM-ADAPTER-VALUES") as caught:
        FiniteCheck({"p": "F32"}, ["a", "b"].__getitem__)(op, source, target)
    assert caught.value.report.where == {"file": "b", "tensor": "t", "offset": wrong}
