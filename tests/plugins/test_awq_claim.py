"""What the awq quantizer makes of tensors and labels that agree, contradict each other, are damaged or belong to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.quantization import Claim
from loadmaster_plugins.awq.quantizer import Awq
from loadmaster_plugins.awq.settings import AwqSettings
from quantized_files import Stored, decode, gemm_tensors, gemv_fast_tensors, gemv_tensors, gptq_tensors, numbers

AWQ = Awq()
MATRIX = numbers(0, 4, 32, 256, np.arange(256) // 64)


def said(**fields: Any) -> Any:
    return AwqSettings(**fields).as_mapping()


def claimed(tensors: dict[str, torch.Tensor], settings: Any) -> Claim:
    claim = AWQ.claim(Stored(tensors), settings)
    assert claim is not None
    return claim


def codes(claim: Claim) -> list[str]:
    return [finding.code for finding in claim.findings]


@pytest.mark.parametrize("named", ["gemm", "gemv", "gemv_fast", ""])
def test_shapes_tell_the_layout_whatever_the_name(named: str) -> None:
    files = {"gemm": gemm_tensors(MATRIX), "gemv": gemv_tensors(MATRIX, 2), "gemv_fast": gemv_fast_tensors(MATRIX, 2)}
    claims = {layout: claimed(tensors, said(group_size=64, layout=named)) for layout, tensors in files.items()}
    assert {layout: claim.params["layout"] for layout, claim in claims.items()} == {layout: layout for layout in files}
    assert {(claim.out_features, claim.in_features, claim.group_size, claim.bits) for claim in claims.values()} == {
        (32, 256, 64, 4)
    }


def test_modules_that_are_called_plain_are_decoded_if_they_are_not() -> None:
    settings = said(group_size=64, plain=("mlp", "visual"))
    claim = claimed(gemm_tensors(MATRIX), settings)
    assert codes(claim) == ["LM-AWQ-MODULES"]
    assert torch.equal(decode(AWQ, gemm_tensors(MATRIX), settings), torch.from_numpy(MATRIX.weights()).half())


def test_the_group_size_comes_from_tensors_where_the_configuration_is_wrong() -> None:
    claim = claimed(gemm_tensors(MATRIX), said(group_size=128))
    assert (claim.group_size, codes(claim)) == (64, ["LM-AWQ-GROUP-SIZE"])


@pytest.mark.parametrize("said_size", [256, 512, -1])
def test_a_group_is_never_longer_than_a_row(said_size: int) -> None:
    claim = claimed(gemm_tensors(numbers(0, 4, 32, 256, np.zeros(256, np.int64))), said(group_size=said_size))
    assert (claim.group_size, codes(claim)) == (256, [])


def test_files_without_zero_points_are_symmetric() -> None:
    matrix = numbers(0, 4, 32, 256, np.arange(256) // 64, symmetric=True)
    tensors = gemm_tensors(matrix)
    del tensors["qzeros"]
    settings = said(group_size=64, zero_point=False)
    assert torch.equal(decode(AWQ, tensors, settings), torch.from_numpy(matrix.weights()).half())
    assert {layout.name for layout in AWQ.layout(claimed(tensors, settings))} == {"qweight", "scales"}


def test_zero_points_that_are_there_are_used_whatever_the_configuration_says() -> None:
    settings = said(group_size=64, zero_point=False)
    assert torch.equal(decode(AWQ, gemm_tensors(MATRIX), settings), torch.from_numpy(MATRIX.weights()).half())


def test_weights_have_the_type_of_the_scales() -> None:
    tensors = gemm_tensors(numbers(0, 4, 32, 256, np.arange(256) // 64, dtype=torch.bfloat16))
    assert (claimed(gemm_tensors(MATRIX), said()).dtype, claimed(tensors, said()).dtype) == ("F16", "BF16")


def test_without_a_configuration_only_complete_gemm_files_are_claimed() -> None:
    assert claimed(gemm_tensors(MATRIX), None).score < claimed(gemm_tensors(MATRIX), said(group_size=64)).score
    assert claimed(gemm_tensors(MATRIX), None).group_size == 64
    assert AWQ.claim(Stored(gemv_tensors(MATRIX, 2)), None) is None
    assert AWQ.claim(Stored({key: value for key, value in gemm_tensors(MATRIX).items() if key != "qzeros"}), None) is None


@pytest.mark.parametrize("settings", [None, said(group_size=64)])
def test_gptq_and_plain_weights_are_not_claimed(settings: Any) -> None:
    assert AWQ.claim(Stored(gptq_tensors(MATRIX)), settings) is None
    assert AWQ.claim(Stored({"weight": torch.zeros(8, 8), "bias": torch.zeros(8)}), settings) is None


def damaged(tensors: dict[str, torch.Tensor], **changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    merged = {**tensors, **changes}
    return {suffix: tensor for suffix, tensor in merged.items() if tensor is not None}


GEMM, GEMV, FAST = gemm_tensors(MATRIX), gemv_tensors(MATRIX, 2), gemv_fast_tensors(MATRIX, 2)


@pytest.mark.parametrize(
    ("tensors", "code", "suffix", "why"),
    [
        (damaged(GEMM, scales=None), "MISSING", "scales", "qweight [256, 4]"),
        (damaged(GEMM, qzeros=None), "MISSING", "qzeros", "not said to be without zero points"),
        (damaged(GEMV, qzeros=None), "MISSING", "qzeros", ""),
        (damaged(FAST, qzeros=None), "MISSING", "qzeros", ""),
        (damaged(GEMM, qweight=None), "STRAY", "scales", "qweight is missing"),
        (damaged(GEMM, qweight=None, scales=None), "STRAY", "qzeros", "qweight is missing"),
        (damaged(GEMM, qweight=torch.zeros(256, 4)), "DTYPE", "qweight", "F32, expected I32"),
        (damaged(GEMM, scales=torch.zeros(4, 32, dtype=torch.int64)), "DTYPE", "scales", "I64"),
        (damaged(GEMM, qzeros=torch.zeros(4, 4)), "DTYPE", "qzeros", "F32, expected I32"),
        (damaged(GEMM, qzeros=torch.zeros(4, 32).half()), "DTYPE", "qzeros", "F16, expected I32"),
        (damaged(GEMM, scales=torch.zeros(4, 31).half()), "SHAPE", "scales", "scales [4, 31] are of no layout"),
        (damaged(GEMM, scales=torch.zeros(32).half()), "SHAPE", "scales", "expected 2 dimensions"),
        (damaged(GEMM, qzeros=torch.zeros(3, 4, dtype=torch.int32)), "SHAPE", "qzeros", "[3, 4], expected [4, 4]"),
        (damaged(GEMV, qzeros=torch.zeros(32, 3, dtype=torch.int32)), "SHAPE", "qzeros", "[32, 3], expected [32, 2]"),
        (damaged(FAST, qzeros=torch.zeros(8, 32).half()), "SHAPE", "qzeros", "[8, 32], expected [16, 32]"),
        (damaged(FAST, qweight=torch.zeros(8, 200, dtype=torch.int16)), "SHAPE", "qweight", "200 columns"),
        (gemm_tensors(numbers(0, 4, 32, 256, np.arange(256) // 100)), "GROUPS", "scales", "3 groups for 256 columns"),
        (
            gemv_tensors(MATRIX, 1),
            "GROUPS",
            "scales",
            "room for 8 groups of 256 columns, and the configuration says groups of 64",
        ),
        (gemv_fast_tensors(MATRIX, 3), "GROUPS", "scales", "room for 24 groups"),
    ],
)
def test_damage_is_named(tensors: dict[str, torch.Tensor], code: str, suffix: str, why: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        AWQ.claim(Stored(tensors), said(group_size=64))
    assert caught.value.code == f"LM-AWQ-{code}"
    assert caught.value.report.where == {"tensor": f"model.layers.0.mlp.down_proj.{suffix}"}
    assert why in caught.value.report.why


def test_layouts_by_rows_need_the_group_size_of_the_configuration() -> None:
    with pytest.raises(IntegrityError, match="LM-AWQ-GROUPS") as caught:
        AWQ.claim(Stored(GEMV), said())
    assert "does not say the group size" in caught.value.report.why
