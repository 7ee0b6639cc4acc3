"""Every kernel against a float64 product of the exact weights.

The bound of an element is `EPSILON[type] * sum(|x| * (|w| + 8 * scale))`: eight scales are what torch's int4 form adds to a
weight and takes away again. The producers' modules compute in float16 whatever the activations are, and have its bound.
"""

from __future__ import annotations

import pytest
import torch

from affine_matrices import Case, make_case
from loadmaster_hookspecs.quantization import MatrixKernel
from loadmaster_plugins.kernels import loadmaster_kernels
from plugins.kernel_harness import largest_allocation, prepared, torch_dtype

KERNELS: dict[str, MatrixKernel] = {kernel.name: kernel for kernel in loadmaster_kernels()}
QUANTIZER = {"auto-gptq": "gptq", "autoawq": "awq"}
EPSILON = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-19}
PRODUCERS = {"auto-gptq", "autoawq"}
CHOICES = [
    ("dequant", "gptq"),
    ("dequant", "awq"),
    ("torch-int4", "gptq"),
    ("torch-int4", "awq"),
    ("auto-gptq", "gptq"),
    ("autoawq", "awq"),
]
SHAPES = [(16, 32, 32), (96, 192, 64), (224, 384, 128), (176, 512, 256)]


def kernel_for(name: str, case: Case) -> MatrixKernel:
    """Return the kernel, or skip the test where its package is not installed or its words do not fit the shape."""
    kernel = KERNELS[name]
    judgement = kernel.judge(case.facts)
    if not judgement.suits and name in PRODUCERS:
        pytest.skip(f"{name}: {judgement.reason}")
    assert judgement.suits, judgement.reason
    return kernel


def assert_product(name: str, case: Case, x: torch.Tensor, found: torch.Tensor) -> None:
    facts = case.facts
    assert found.dtype == x.dtype
    assert found.shape == (*x.shape[:-1], facts.rows)
    envelope = case.weight.abs() + 8 * case.scale
    epsilon = max(EPSILON[facts.dtype], EPSILON["F16"] if name in PRODUCERS else 0.0)
    error = (found.double() - x.double() @ case.weight.T).abs()
    assert (error <= epsilon * (x.double().abs() @ envelope.T)).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("rows", "columns", "group_size"), SHAPES)
@pytest.mark.parametrize(("name", "quantizer"), CHOICES)
def test_product(name: str, quantizer: str, rows: int, columns: int, group_size: int, dtype: str) -> None:
    case = make_case(quantizer, rows=rows, columns=columns, group_size=group_size, dtype=dtype)
    product = prepared(kernel_for(name, case), case)
    for count in (1, 5, 200):
        x = torch.randn(count, columns, generator=torch.Generator().manual_seed(count)).to(torch_dtype(dtype))
        assert_product(name, case, x, product(x))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize(("name", "quantizer"), CHOICES)
def test_single_weights(name: str, quantizer: str, dtype: str) -> None:
    """One-hot rows read weights out one by one: few at a time and all at once."""
    case = make_case(quantizer, rows=96, columns=256, group_size=64, dtype=dtype)
    product = prepared(kernel_for(name, case), case)
    ones = torch.eye(256, dtype=torch_dtype(dtype))
    assert_product(name, case, ones, product(ones))
    assert_product(name, case, ones[70:75], product(ones[70:75]))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 0), (2, 3), (1, 2, 100)])
@pytest.mark.parametrize(("name", "quantizer"), CHOICES)
def test_leading_dimensions(name: str, quantizer: str, leading: tuple[int, ...], dtype: str) -> None:
    case = make_case(quantizer, dtype=dtype)
    product = prepared(kernel_for(name, case), case)
    x = torch.randn(*leading, 128, generator=torch.Generator().manual_seed(1)).to(torch_dtype(dtype))
    assert_product(name, case, x, product(x))


@pytest.mark.parametrize("rows", [7, 300])
@pytest.mark.parametrize(("name", "quantizer"), CHOICES)
def test_activations_with_gaps(name: str, quantizer: str, rows: int) -> None:
    case = make_case(quantizer)
    product = prepared(kernel_for(name, case), case)
    x = torch.randn(128, rows, 2, generator=torch.Generator().manual_seed(1)).bfloat16()[..., 1].T
    assert_product(name, case, x, product(x))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", ["dequant", "auto-gptq"])
def test_other_widths(name: str, bits: int) -> None:
    case = make_case(rows=96, columns=128, group_size=32, bits=bits, dtype="F16")
    product = prepared(kernel_for(name, case), case)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1)).half()
    assert_product(name, case, x, product(x))


@pytest.mark.parametrize("name", ["dequant", "torch-int4"])
@pytest.mark.parametrize("values", [[0.0, 16.0], [-1.0, 7.5], [8.25, 15.0]])
def test_unusual_zero_points(name: str, values: list[float]) -> None:
    """Zero points beside the codes' range, as wrapped ones are, and between codes."""
    zeros = torch.tensor(values).repeat(4, 32)
    case = make_case(zeros=zeros, dtype="F32")
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(1))
    assert_product(name, case, x, prepared(kernel_for(name, case), case)(x))


def test_dequant_rounds_as_a_plain_layer_of_the_activations_type_does() -> None:
    case = make_case(rows=80, columns=96)
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight = case.matrix.weight(0, 80).bfloat16()
    assert torch.equal(prepared(KERNELS["dequant"], case)(x), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("name", ["dequant", "torch-int4"])
def test_no_float_matrix_is_made(name: str, dtype: str) -> None:
    """The matrix is 8 MiB as float32; no tensor that is made takes more than half: a tile, the packed bytes, the result."""
    case = make_case(rows=2048, columns=1024, group_size=128, dtype=dtype)
    kernel = KERNELS[name]
    products = []
    limit = 4 << 20
    assert largest_allocation(lambda: products.append(prepared(kernel, case))) <= limit
    for count in (1, 200):
        x = torch.ones(count, 1024, dtype=torch_dtype(dtype))
        assert 0 < largest_allocation(lambda x=x: products[0](x)) <= limit  # type: ignore[misc]
