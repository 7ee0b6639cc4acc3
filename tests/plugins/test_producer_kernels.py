"""The producers' own modules: when they are used, how their packages are entered, and what is checked beforehand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from affine_matrices import make_case
from loadmaster_hookspecs import PlanError
from loadmaster_hookspecs.quantization import MatrixKernel
from loadmaster_plugins.kernels.agreement import check_agreement
from loadmaster_plugins.kernels.dequant import Dequant
from loadmaster_plugins.kernels.private_import import installed, private_module
from loadmaster_plugins.kernels.producer_awq import AutoAwq
from loadmaster_plugins.kernels.producer_gptq import AutoGptq
from loadmaster_plugins.kernels.shape_check import check_shapes

PRODUCERS: dict[str, MatrixKernel] = {"gptq": AutoGptq(), "awq": AutoAwq()}


@pytest.fixture
def broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose root cannot be imported, with a module below that can."""
    name = "package_with_broken_root"
    (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("raise ImportError('needs an older release')")
    (tmp_path / name / "inner" / "__init__.py").write_text("raise ImportError('also broken')")
    (tmp_path / name / "inner" / "wanted.py").write_text("from .beside import VALUE\nSETTING = True\n")
    (tmp_path / name / "inner" / "beside.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    private_module.cache_clear()
    return name


def test_a_module_below_a_broken_root(broken_package: str) -> None:
    assert installed(broken_package)
    found = private_module(f"{broken_package}.inner.wanted")
    assert found.VALUE == 7
    assert private_module(f"{broken_package}.inner.wanted") is found
    assert not [name for name in sys.modules if name.startswith(broken_package)]
    with pytest.raises(ImportError, match="older release"):
        importlib.import_module(broken_package)


def test_a_public_import_is_left_alone(broken_package: str, tmp_path: Path) -> None:
    for part in ("", "inner/"):
        (tmp_path / broken_package / part / "__init__.py").write_text("")
    public = importlib.import_module(f"{broken_package}.inner.wanted")
    private = private_module(f"{broken_package}.inner.wanted")
    private.SETTING = False  # type: ignore[attr-defined]
    assert public.SETTING is True
    assert sys.modules[f"{broken_package}.inner.wanted"] is public
    for name in [name for name in sys.modules if name.startswith(broken_package)]:
        del sys.modules[name]


def test_a_module_that_is_not_there(broken_package: str) -> None:
    assert not installed("no_such_package_at_all")
    with pytest.raises(ImportError):
        private_module(f"{broken_package}.elsewhere.wanted")
    assert not [name for name in sys.modules if name.startswith(broken_package)]


@pytest.mark.parametrize("quantizer", PRODUCERS)
def test_without_the_package_the_reason_says_so(quantizer: str) -> None:
    kernel = PRODUCERS[quantizer]
    judged = kernel.judge(make_case(quantizer).facts)
    if judged.suits:
        assert judged.score < Dequant().judge(make_case(quantizer).facts).score
    else:
        assert "not installed" in judged.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quantizer": "other"}, "a matrix of other"),
        ({"bits": 5}, "5 bits"),
        ({"stacked": True}, "stack"),
        ({"aligned": False}, "shared with another rank"),
        ({"rows": 0}, "no part"),
        ({"columns": 0}, "no part"),
        ({"rows": 36}, "36|rows or columns"),
        ({"columns": 160, "group_size": 64}, "160 columns"),
    ],
)
@pytest.mark.parametrize("quantizer", PRODUCERS)
def test_what_does_not_suit_says_why(
    quantizer: str, change: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("producer_gptq", "producer_awq"):
        monkeypatch.setattr(f"loadmaster_plugins.kernels.{module}.installed", lambda package: True)
    judged = PRODUCERS[quantizer].judge(msgspec.structs.replace(make_case(quantizer).facts, **change))
    assert not judged.suits
    assert any(part in judged.reason for part in reason.split("|"))


def test_other_weights_are_noticed() -> None:
    case = make_case(rows=32, columns=128, group_size=32, dtype="F16")
    weight = case.weight.half()
    check_agreement("some", lambda x: x @ weight.T, case.matrix, case.facts, case.tensors["scales"])
    one_zero_off = weight.clone()
    one_zero_off[5, 64:96] += case.tensors["scales"][2, 5]
    with pytest.raises(PlanError) as caught:
        check_agreement("some", lambda x: x @ one_zero_off.T, case.matrix, case.facts, case.tensors["scales"])
    assert caught.value.code == "LM-KERNEL-DIFFERS"


def test_other_shapes_are_noticed() -> None:
    case = make_case()
    with pytest.raises(PlanError, match=r"takes g_idx of shape \[128\]; this one is missing") as caught:
        check_shapes("some", case.facts, case.tensors, {"scales": (4, 64), "g_idx": (128,)})
    assert caught.value.code == "LM-KERNEL-UNFIT"
    with pytest.raises(PlanError, match=r"this one is \[4, 64\]"):
        check_shapes("some", case.facts, case.tensors, {"scales": (4, 63)})


@pytest.mark.skipif(not installed("auto_gptq"), reason="needs auto-gptq")
def test_zero_points_of_the_second_version_are_refused_by_auto_gptq() -> None:
    case = make_case(dtype="F16")
    case.tensors["qzeros"].add_(0x11111111)
    with pytest.raises(PlanError) as caught:
        AutoGptq().prepare(case.matrix, case.tensors, case.facts)
    assert caught.value.code == "LM-KERNEL-DIFFERS"


@pytest.mark.skipif(not installed("auto_gptq"), reason="needs auto-gptq")
def test_columns_in_any_order_by_auto_gptq() -> None:
    case = make_case(rows=64, columns=128, group_size=32, dtype="F16")
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    group_of = (torch.arange(128) // 32)[order]
    matrix = case.matrix
    weight = (matrix.codes(0, 64) - matrix.zeros.float()[group_of].T) * matrix.scales.float()[group_of].T
    matrix.weight = lambda start, stop: weight[start:stop]  # type: ignore[method-assign]
    tensors = {**case.tensors, "g_idx": group_of.to(torch.int32)}
    facts = msgspec.structs.replace(case.facts, group_size=0)
    product = AutoGptq().prepare(matrix, tensors, facts)
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(2)).half()
    expected = x.double() @ weight.double().T
    assert ((product(x).double() - expected).abs() <= 2.0**-9 * (x.double().abs() @ weight.double().abs().T)).all()
