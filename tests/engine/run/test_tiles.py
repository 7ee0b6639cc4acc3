"""Tiles: the product of the stacked matrices. float32 has them on every processor."""

from __future__ import annotations

import pytest
import torch

from loadmaster_engine.run.products.tiles import Tiles


@pytest.mark.parametrize("shape", [(1, 96), (3, 96), (1, 17, 96), (2, 9, 96)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_that_of_the_stacked_matrices(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    weights, rows = [torch.randn(20, 96), torch.randn(7, 96)], torch.randn(shape)
    added = torch.randn(27) if bias else None
    exact = rows.double() @ torch.cat(weights).double().T + (0 if added is None else added.double())
    result = Tiles(weights, added).multiply(rows)
    assert result.shape == (*shape[:-1], 27)
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
