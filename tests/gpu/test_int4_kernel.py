"""torch's int4 product on a CUDA device."""

from __future__ import annotations

import msgspec
import pytest
import torch

from affine_matrices import AffineMatrix, make_case
from loadmaster_plugins.kernels.torch_int4 import TorchInt4
from plugins.kernel_harness import arena_tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("columns", "group_size"), [(96, 32), (192, 64), (512, 128)])
def test_single_weights(columns: int, group_size: int) -> None:
    case = make_case(rows=112, columns=columns, group_size=group_size)
    tensors = {name: tensor.cuda() for name, tensor in arena_tensors(TorchInt4(), case).items()}
    zeros = case.matrix.zeros.cuda()
    matrix = AffineMatrix(tensors["qweight"], tensors["scales"], zeros, 4, group_size)
    product = TorchInt4().prepare(matrix, tensors, msgspec.structs.replace(case.facts, device="cuda"))
    ones = torch.eye(columns, dtype=torch.bfloat16, device="cuda")
    bound = 2.0**-7 * (case.weight.abs() + 8 * case.scale).T
    for x in (ones, ones[:3]):
        assert ((product(x).cpu().double() - case.weight.T[: len(x)]).abs() <= bound[: len(x)]).all()
