"""What the gptq quantizer makes of tensors and labels that agree, contradict each other, are damaged or belong to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.quantization import Claim
from loadmaster_plugins.gptq.quantizer import Gptq
from loadmaster_plugins.gptq.settings import GptqSettings
from quantized_files import Numbers, Part, Stored, decode, gemm_tensors, gptq_tensors, numbers, rank_matrix

GPTQ = Gptq()


def said(**fields: Any) -> Any:
    return GptqSettings(**fields).as_mapping()


def claimed(tensors: dict[str, torch.Tensor], settings: Any, name: str = "model.layers.0.mlp.down_proj") -> Claim:
    claim = GPTQ.claim(Stored(tensors, name), settings)
    assert claim is not None
    return claim


def codes(claim: Claim) -> list[str]:
    return [finding.code for finding in claim.findings]


def one(bits: int, scale: float, zero_word: int) -> dict[str, torch.Tensor]:
    """Return a matrix of 64 columns whose codes count up and whose zero points are given as words."""
    values = np.tile(np.arange(64) % (1 << bits), (32, 1))
    matrix = Numbers(bits, values, np.zeros((1, 32)), torch.full((1, 32), scale, dtype=torch.float16), np.zeros(64, np.int64))
    tensors = gptq_tensors(matrix)
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], zero_word)
    return tensors


@pytest.mark.parametrize(
    ("bits", "version", "word", "scale"),
    [
        (4, "v1", 0x77777777, 0.5),
        (4, "v2", -0x77777778, 0.5),
        (8, "v1", 0x7F7F7F7F, 0.125),
        (8, "v2", -0x7F7F7F80, 0.125),
        (2, "v1", 0x55555555, 1),
        (2, "v2", -0x55555556, 1),
    ],
)
@pytest.mark.parametrize("label", ["v1", "v2"])
def test_symmetric_files_are_read_right_under_any_label(bits: int, version: str, word: int, scale: float, label: str) -> None:
    tensors = one(bits, scale, word)
    settings = said(bits=bits, group_size=-1, sym=True, version=label)
    expected = [((i % (1 << bits)) - (1 << bits - 1)) * scale for i in range(64)]
    assert decode(GPTQ, tensors, settings)[0].tolist() == expected
    assert codes(claimed(tensors, settings)) == ([] if label == version else ["LM-GPTQ-ZEROS"])


def test_the_version_of_3_bit_words_is_seen_too() -> None:
    matrix = numbers(0, 3, 64, 64, np.arange(64) // 32, symmetric=True)
    tensors = gptq_tensors(matrix, version="v2")
    settings = said(bits=3, group_size=32, sym=True, version="v1")
    assert torch.equal(decode(GPTQ, tensors, settings).double(), torch.from_numpy(matrix.weights()).half().double())
    assert codes(claimed(tensors, settings)) == ["LM-GPTQ-ZEROS"]


def test_asymmetric_files_follow_their_label() -> None:
    tensors = one(4, 0.5, -0x77777778)
    settings = said(bits=4, group_size=-1, sym=False, version="v1")
    assert decode(GPTQ, tensors, settings)[0, 9].item() == 0
    assert codes(claimed(tensors, settings)) == []


def test_one_remark_of_each_kind_for_any_number_of_modules() -> None:
    settings = said(bits=4, group_size=-1, sym=True, version="v1", modules=("mlp.up_proj",))
    names = [f"model.layers.{index}.self_attn.k_proj" for index in range(3)]
    found = {finding for name in names for finding in claimed(one(4, 0.5, -0x77777778), settings, name).findings}
    assert sorted(finding.code for finding in found) == ["LM-GPTQ-MODULES", "LM-GPTQ-ZEROS"]


def test_modules_that_are_called_plain_are_decoded_if_they_are_not() -> None:
    settings = said(bits=4, group_size=-1, sym=True, modules=("mlp.down_proj", "mlp.up_proj"))
    tensors = one(4, 0.5, 0x77777777)
    assert codes(claimed(tensors, settings, "model.layers.0.mlp.down_proj")) == []
    assert codes(claimed(tensors, settings, "model.layers.0.self_attn.k_proj")) == ["LM-GPTQ-MODULES"]
    assert codes(claimed(tensors, settings, "lm_head")) == []


def test_plain_weights_are_left_alone() -> None:
    assert GPTQ.claim(Stored({"weight": torch.zeros(8, 8), "bias": torch.zeros(8)}), said(bits=4)) is None
    assert GPTQ.claim(Stored({"weight": torch.zeros(8, 8), "scales": torch.zeros(8)}), said(bits=4)) is None


def test_unpacked_zero_points_are_used_as_they_are() -> None:
    matrix = numbers(0, 4, 32, 64, np.arange(64) // 32, symmetric=True)
    tensors = gptq_tensors(matrix, version="plain")
    settings = said(bits=4, group_size=32, sym=True)
    assert torch.equal(decode(GPTQ, tensors, settings), torch.from_numpy(matrix.weights()).half())
    tensors["zeros"] = tensors.pop("qzeros")
    assert torch.equal(decode(GPTQ, tensors, settings), torch.from_numpy(matrix.weights()).half())


def test_act_order_keeps_all_groups_on_every_rank() -> None:
    ids = np.array([[0, 1, 1, 2, 2, 3, 3, 0][i % 8] for i in range(64)])
    matrix = numbers(1, 4, 8, 64, ids)
    tensors = gptq_tensors(matrix)
    claim = claimed(tensors, said(bits=4, group_size=16, sym=False, desc_act=True))
    layouts = {layout.name: [dim.axis for dim in layout.dims] for layout in GPTQ.layout(claim)}
    assert (claim.group_size, layouts["scales"], layouts["qzeros"], layouts["g_idx"]) == (
        0,
        ["group", "out"],
        ["group", "out"],
        ["in"],
    )
    halves = [rank_matrix(GPTQ, claim, tensors, Part([(0, 8)], [half])) for half in ((0, 32), (32, 64))]
    inputs = torch.randn(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (half.weight(0, 8).double().t() for half in halves)
    both = inputs[:, :32] @ first + inputs[:, 32:] @ second
    assert torch.allclose(both, inputs @ torch.from_numpy(matrix.weights()).half().double().t(), rtol=1e-12)
    assert all(half.affine() is None for half in halves)


def test_act_order_of_a_single_group_is_no_order() -> None:
    tensors = gptq_tensors(numbers(0, 4, 16, 64, np.zeros(64, np.int64)))
    claim = claimed(tensors, said(bits=4, group_size=-1, sym=False, desc_act=True))
    assert claim.group_size == 64
    assert "g_idx" in claim.suffixes
    parts = [rank_matrix(GPTQ, claim, tensors, Part([(0, 16)], [half])) for half in ((0, 24), (24, 64))]
    assert torch.equal(torch.cat([part.weight(0, 16) for part in parts], 1), decode(GPTQ, tensors, said(sym=False)))


@pytest.mark.parametrize("desc_act", [True, False])
def test_the_values_decide_whether_columns_are_in_order(desc_act: bool) -> None:
    in_order = gptq_tensors(numbers(0, 4, 32, 64, np.arange(64) // 16))
    shuffled = gptq_tensors(numbers(0, 4, 32, 64, np.random.default_rng(0).permutation(64) // 16))
    settings = said(bits=4, group_size=16, sym=False, desc_act=desc_act)
    assert claimed(in_order, settings).group_size == 16
    assert "g_idx" not in {layout.name for layout in GPTQ.layout(claimed(in_order, settings))}
    assert claimed(shuffled, settings).group_size == 0


def test_sizes_come_from_tensors_where_the_configuration_is_wrong() -> None:
    matrix = numbers(0, 8, 32, 128, np.arange(128) // 32)
    settings = said(bits=4, group_size=64, sym=False)
    claim = claimed(gptq_tensors(matrix), settings)
    assert (claim.bits, claim.group_size, codes(claim)) == (8, 32, ["LM-GPTQ-BITS", "LM-GPTQ-GROUP-SIZE"])
    assert torch.equal(decode(GPTQ, gptq_tensors(matrix), settings), torch.from_numpy(matrix.weights()).half())
    without_ids = claimed(gptq_tensors(matrix, ids=False), settings)
    assert (without_ids.bits, without_ids.in_features, without_ids.group_size) == (8, 128, 32)


def test_symmetric_files_may_have_no_zero_points() -> None:
    matrix = numbers(0, 4, 32, 64, np.arange(64) // 32, symmetric=True)
    tensors = gptq_tensors(matrix)
    del tensors["qzeros"]
    assert torch.equal(decode(GPTQ, tensors, said(bits=4, sym=True)), torch.from_numpy(matrix.weights()).half())


def test_rules_give_modules_their_own_bits() -> None:
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "dynamic": RULES}}
    settings = GPTQ.settings(config, lambda _: None)
    tensors = gptq_tensors(numbers(0, 8, 32, 64, np.arange(64) // 16))
    assert codes(claimed(tensors, settings, "model.layers.18.mlp.gate_proj")) == []
    assert codes(claimed(tensors, settings, "model.layers.1.mlp.gate_proj")) == ["LM-GPTQ-BITS", "LM-GPTQ-GROUP-SIZE"]
    assert codes(claimed(tensors, settings, "model.layers.20.mlp.gate_proj"))[0] == "LM-GPTQ-MODULES"


RULES = {r"+:.*\.(18|20)\..*gate.*": {"bits": 8, "group_size": 16}, r"-:.*\.20\..*": {}}


def test_without_a_configuration_shapes_and_words_tell() -> None:
    labelled = claimed(one(4, 0.5, 0x77777777), said(bits=4, group_size=-1, sym=True))
    claim = claimed(one(4, 0.5, -0x77777778), None)
    assert (claim.bits, claim.params["zeros"], codes(claim)) == (4, "v2", [])
    assert claim.score < labelled.score
    asymmetric = claimed(gptq_tensors(numbers(0, 4, 32, 64, np.arange(64) // 32)), None)
    assert (asymmetric.params["zeros"], codes(asymmetric)) == ("v1", ["LM-GPTQ-UNLABELLED"])


@pytest.mark.parametrize("settings", [None, said(bits=4, group_size=32)])
def test_awq_is_not_claimed(settings: Any) -> None:
    assert GPTQ.claim(Stored(gemm_tensors(numbers(0, 4, 32, 64, np.arange(64) // 32))), settings) is None


def damaged(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    tensors = gptq_tensors(numbers(0, 4, 32, 64, np.arange(64) // 16))
    for suffix, tensor in changes.items():
        if tensor is None:
            del tensors[suffix]
        else:
            tensors[suffix] = tensor
    return tensors


def ids(*changed: int) -> torch.Tensor:
    return torch.tensor([*changed, *(i // 16 for i in range(len(changed), 64))], dtype=torch.int32)


@pytest.mark.parametrize(
    ("tensors", "code", "suffix", "why"),
    [
        (damaged(scales=None), "MISSING", "scales", "qweight [8, 32]"),
        (damaged(qzeros=None), "MISSING", "qzeros", "not said to be symmetric"),
        (damaged(qweight=None), "STRAY", "scales", "qweight is missing"),
        ({"qzeros": torch.zeros(4, 4, dtype=torch.int32)}, "STRAY", "qzeros", "qweight is missing"),
        (damaged(qweight=torch.zeros(8, 32)), "DTYPE", "qweight", "F32, expected I32"),
        (damaged(scales=torch.zeros(4, 32, dtype=torch.int32)), "DTYPE", "scales", "I32, expected BF16 or F16 or F32"),
        (damaged(qzeros=torch.zeros(4, 32)), "DTYPE", "qzeros", "F32, expected F16 or I32"),
        (damaged(g_idx=torch.zeros(64)), "DTYPE", "g_idx", "F32"),
        (damaged(scales=torch.zeros(4, 31).half()), "SHAPE", "scales", "[4, 31], expected [4, 32]"),
        (damaged(scales=torch.zeros(32).half()), "SHAPE", "scales", "[32], expected 2 dimensions"),
        (damaged(qzeros=torch.zeros(3, 4, dtype=torch.int32)), "SHAPE", "qzeros", "[3, 4], expected [4, 4]"),
        (damaged(qzeros=torch.zeros(4, 31).half()), "SHAPE", "qzeros", "[4, 31], expected [4, 32]"),
        (damaged(g_idx=torch.zeros(8, 8, dtype=torch.int32)), "SHAPE", "g_idx", "expected 1 dimension"),
        (damaged(scales=torch.zeros(0, 32).half()), "SHAPE", "scales", "none of them empty"),
        (damaged(qzeros=torch.zeros(4, 5, dtype=torch.int32)), "BITS", "qweight", "none of 2, 3, 4 and 8"),
        (damaged(g_idx=torch.zeros(60, dtype=torch.int32)[:50]), "BITS", "qweight", "g_idx [50]"),
        (damaged(g_idx=ids(0, -3)), "GROUPS", "g_idx", "entry 1 is -3, there are 4 groups; 1 of 64"),
        (damaged(g_idx=ids(0, 4)), "GROUPS", "g_idx", "entry 1 is 4"),
        (damaged(g_idx=torch.zeros(64, dtype=torch.int32)), "GROUPS", "g_idx", "scales are for 4 groups"),
    ],
)
def test_damage_is_named(tensors: dict[str, torch.Tensor], code: str, suffix: str, why: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        GPTQ.claim(Stored(tensors), said(bits=4, group_size=16))
    assert caught.value.code == f"LM-GPTQ-{code}"
    assert caught.value.report.where == {"tensor": f"model.layers.0.mlp.down_proj.{suffix}"}
    assert why in caught.value.report.why


def test_act_order_needs_its_groups() -> None:
    with pytest.raises(IntegrityError, match="LM-GPTQ-MISSING") as caught:
        GPTQ.claim(Stored(damaged(g_idx=None)), said(bits=4, group_size=16, desc_act=True))
    assert "desc_act" in caught.value.report.why


def test_groups_of_no_size_are_refused() -> None:
    tensors = gptq_tensors(numbers(0, 4, 32, 64, np.arange(64) // 13), ids=False)
    with pytest.raises(IntegrityError, match="LM-GPTQ-GROUPS") as caught:
        GPTQ.claim(Stored(tensors), said(bits=4, group_size=32))
    assert caught.value.report.why == "5 groups for 64 columns, and the configuration says groups of 32"


def test_bits_that_nothing_tells_are_refused() -> None:
    tensors = damaged(g_idx=None, qzeros=None)
    with pytest.raises(IntegrityError, match="LM-GPTQ-BITS") as caught:
        GPTQ.claim(Stored(tensors), said(sym=True))
    assert "2 or 4 or 8 bits" in caught.value.report.why


def test_badly_fitting_tensors_without_a_label_are_left_to_others() -> None:
    assert GPTQ.claim(Stored(damaged(qzeros=None, g_idx=None)), None) is None
    assert GPTQ.claim(Stored({"qzeros": torch.zeros(4, 4, dtype=torch.int32)}), None) is None


def test_only_small_values_are_read() -> None:
    stored = Stored(gptq_tensors(numbers(0, 4, 32, 64, np.arange(64) // 16)))
    GPTQ.claim(stored, said(bits=4, group_size=16, sym=False))
    assert stored.read == ["g_idx"]
