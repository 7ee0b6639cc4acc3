"""One model of experts, stored in three ways: each expert on its own, packed, and packed with every matrix transposed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import loadmaster as lm
from loadmaster_engine.plan.operations import PlacedPiece, place_piece
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.models import Piece
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

SIZES = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36}
FORMS = ("per expert", "packed", "packed and transposed")


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("qwen3_moe", **SIZES)


@pytest.fixture(scope="module")
def folders(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("experts")
    written = {form: save_model(model, root / form) for form in FORMS}
    packed = model.state_dict()
    turned = {name: tensor.transpose(1, 2) if "experts." in name else tensor for name, tensor in packed.items()}
    for form, state in (("packed", packed), ("packed and transposed", turned)):
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, written[form] / "model.safetensors")
    return written


def test_the_three_files_differ(folders: dict[str, Path]) -> None:
    counts = [lm.inspect(folders[form]).tensors for form in FORMS]
    assert counts[0] == counts[1] + 2 * (5 * 3 - 2)
    assert counts[1] == counts[2]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_forms_give_the_same_model(model: torch.nn.Module, folders: dict[str, Path], ranks: int) -> None:
    logits = []
    for form in FORMS:
        with lm.Engine(folders[form], tensor_parallel=ranks, executor="inline") as engine:
            logits.append(engine.logits(IDS))
            assert engine.report.amplification == 1.0, form
    assert relative_error(logits[0], reference_logits(model, IDS)) < 1e-5
    for other in logits[1:]:  # products may round by where the bytes begin in memory
        assert relative_error(other, logits[0]) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_experts_go_from_the_file_to_their_place_without_temporary_memory(folders: dict[str, Path], form: str) -> None:
    plan = lm.plan(folders[form], tensor_parallel=2)
    reads = [op for rank in plan.ranks for op in rank.reads if "experts" in op.parameter]
    assert {op.transform for op in reads} == {None}
    assert [rank.scratch for rank in plan.ranks] == [0, 0]
    stored = {name: size for name, size in plan.ledger.used.items() if "experts" in name}
    assert sum(op.source.nbytes for op in reads) == sum(stored.values())
    assert len({tuple(binding.shape for binding in rank.bindings) for rank in plan.ranks}) == 1


def test_a_missing_expert_is_named_with_the_shapes(model: torch.nn.Module, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    smaller = make_model("qwen3_moe", **{**SIZES, "num_experts": 4})
    save_model(smaller, tmp_path / "smaller")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "smaller" / "model.safetensors").read_bytes())
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(tmp_path)
    assert caught.value.code == "LM-TENSOR-SHAPE"


def test_a_stored_expert_is_placed_once_however_many_ranks_there_are(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(piece: Piece, tensor: TensorMeta, ndim: int) -> PlacedPiece:
        calls.append(tensor.name)
        return place_piece(piece, tensor, ndim)

    monkeypatch.setattr("loadmaster_engine.plan.planner.place_piece", counted)
    plan = lm.plan(folders["per expert"], tensor_parallel=3)
    assert sorted(calls) == sorted(plan.ledger.used)
