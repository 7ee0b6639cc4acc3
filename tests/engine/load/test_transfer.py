"""Executing operations against real files: direct, gathered and cast, into host memory, a device buffer, and a module."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import loadmaster as lm
from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost
from loadmaster_engine.load.arena import Arena, DeviceArena, HostArena
from loadmaster_engine.load.mapped import tensor_view
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.transfer import BUNDLE_BYTES, Transfer, bundles
from loadmaster_engine.plan import make_plan
from loadmaster_hookspecs.plan import Binding, LoadPlan, PlanSettings, ReadOp, Region
from tiny_models import make_model, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("qwen2", num_key_value_heads=4), tmp_path_factory.mktemp("qwen2"))


def planned(host: PluginHost, folder: Path, **settings: object) -> LoadPlan:
    return make_plan(host, open_index(host, folder), PlanSettings(**settings))  # type: ignore[arg-type]


def tensor_of(arena: Arena, moved: Transfer, binding: Binding) -> torch.Tensor:
    return arena.view(binding) if binding.view is None else tensor_view(moved.held, binding, binding.view)


def transfer(host: PluginHost, plan: LoadPlan, rank: int, arena: Arena) -> tuple[Transfer, FileSet]:
    files = FileSet(plan, host.open_source(plan.source), host.format(plan.format))
    moved = Transfer(plan.ranks[rank], files, arena, host.transform)
    moved.run(lambda done: None)
    files.close()
    return moved, files


@pytest.mark.parametrize("mode", ["auto", "mapped", "direct", "gathered", "overread"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("make", [HostArena, lambda size: DeviceArena(size, "cpu")])
def test_every_parameter_arrives_cut_and_cast(folder: Path, mode: str, dtype: str, make: Callable[[int], Arena]) -> None:
    host = PluginHost()
    plan = planned(host, folder, tensor_parallel=3, dtype=dtype, read_mode=mode)
    whole = make_model("qwen2", num_key_value_heads=4).state_dict()
    parts: dict[str, list[torch.Tensor]] = {}
    for rank in plan.ranks:
        arena = make(rank.bytes)
        moved, files = transfer(host, plan, rank.rank, arena)
        assert moved.moved == rank.bytes_planned
        if mode != "overread":
            assert moved.moved == files.by_call + files.mapped + moved.viewed
        assert moved.viewed == rank.bytes_mapped
        assert (moved.viewed > 0) == (mode in ("auto", "mapped") and dtype == "auto")
        assert arena.nbytes == rank.bytes
        for binding in rank.bindings:
            parts.setdefault(binding.parameter, []).append(tensor_of(arena, moved, binding))
    for name, pieces in parts.items():
        expected = whole[name].to(torch.bfloat16) if dtype == "bfloat16" else whole[name]
        dim = next((d for d in range(expected.ndim) if pieces[0].shape[d] != expected.shape[d]), None)
        joined = pieces[0] if dim is None else torch.cat(pieces, dim)
        if "embed" not in name and "lm_head" not in name:
            torch.testing.assert_close(joined, expected, rtol=0, atol=0, msg=name)
        else:
            torch.testing.assert_close(joined[:250], expected, rtol=0, atol=0, msg=name)
            assert not joined[250:].any()


def test_read_modes_give_the_same_bytes_and_gathering_makes_no_read_calls(folder: Path) -> None:
    host = PluginHost()
    arenas = {}
    for mode in ("auto", "mapped", "direct", "gathered", "overread"):
        plan = planned(host, folder, tensor_parallel=2, read_mode=mode)
        arena = HostArena(plan.ranks[1].bytes)
        moved, files = transfer(host, plan, 1, arena)
        tensors = (tensor_of(arena, moved, binding).contiguous() for binding in plan.ranks[1].bindings)
        arenas[mode] = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors)
        if mode == "gathered":
            assert files.by_call == 0
        if mode == "overread":
            assert files.mapped == 0
    assert len(set(arenas.values())) == 1


def test_a_file_that_changed_after_planning_is_refused(folder: Path, tmp_path: Path) -> None:
    save_model(make_model("llama"), tmp_path)
    host = PluginHost()
    plan = planned(host, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(lm.IntegrityError) as caught:
        transfer(host, plan, 0, HostArena(plan.ranks[0].bytes))
    assert caught.value.code == "LM-FILE-CHANGED"


def test_load_into_fills_a_module_in_place(folder: Path) -> None:
    module = make_model("qwen2", num_key_value_heads=4, seed=9)
    kept = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    report = lm.load_into(module, folder)
    wanted = make_model("qwen2", num_key_value_heads=4).state_dict()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, wanted[name], rtol=0, atol=0)
        assert parameter.data_ptr() == kept[name]
    assert report.bytes_read == report.bytes_unique == sum(t.nbytes for t in wanted.values())


def test_load_into_casts_to_what_the_module_has(folder: Path) -> None:
    module = make_model("qwen2", num_key_value_heads=4, seed=9).to(torch.bfloat16)
    lm.load_into(module, folder)
    wanted = make_model("qwen2", num_key_value_heads=4).state_dict()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.data, wanted[name].to(torch.bfloat16), rtol=0, atol=0)


def test_load_into_another_model_changes_nothing(folder: Path) -> None:
    module = make_model("qwen2", num_key_value_heads=4, seed=9, num_hidden_layers=3)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    with pytest.raises(lm.IntegrityError) as caught:
        lm.load_into(module, folder)
    assert caught.value.code == "LM-MODULE-MISMATCH"
    assert "model.layers.2" in caught.value.report.why
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


def test_load_model_is_a_plain_module(folder: Path) -> None:
    module = lm.load_model(folder)
    reference = make_model("qwen2", num_key_value_heads=4)
    ids = torch.tensor([[3, 5, 7]])
    with torch.inference_mode():
        torch.testing.assert_close(module(ids).logits, reference(ids).logits, rtol=1e-5, atol=1e-5)
    out = module.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
    wanted = reference.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
    np.testing.assert_array_equal(out.numpy(), wanted.numpy())
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_load_into_refuses_a_module_that_shares_other_tensors(tmp_path: Path) -> None:
    def module() -> torch.nn.Module:
        return make_model("llama", seed=9, tie_word_embeddings=True)

    tied = save_model(make_model("llama", tie_word_embeddings=True), tmp_path / "tied")
    apart = module()
    apart.get_submodule("lm_head").weight = torch.nn.Parameter(torch.zeros(250, 64))
    both = shutil.copytree(tied, tmp_path / "both")
    tensors = load_file(tied / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, both / "model.safetensors")
    for filled, folder in ((apart, tied), (module(), both)):
        before = [tensor.clone() for tensor in filled.state_dict().values()]
        with pytest.raises(lm.IntegrityError, match="LM-MODULE-MISMATCH") as caught:
            lm.load_into(filled, folder)
        assert "lm_head.weight" in str(caught.value)
        assert all(map(torch.equal, before, filled.state_dict().values()))


def test_a_load_that_fails_leaves_no_file_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk")

    module = make_model("qwen2", num_key_value_heads=4).half()
    monkeypatch.setattr(Transfer, "_dense", fail)
    for load in (lambda: lm.load_model(folder, dtype="float16"), lambda: lm.load_into(module, folder)):
        gc.collect()  # mappings of earlier tests close with their last tensor
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(lm.ResourceError, match="LM-STORAGE-READ"):
            load()
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


def test_small_parts_are_handed_over_together_and_large_ones_alone() -> None:
    op = ReadOp(tensor="t", parameter="p", file=0, source=Region(0, 1), dest=Region(0, 1), via="direct")
    sizes = [1, 2, BUNDLE_BYTES - 3, 1, BUNDLE_BYTES, 2 * BUNDLE_BYTES, 5, 5, 5, 5]
    work = [(op, Region(0, size), Region(0, size)) for size in sizes]
    grouped = [[source.nbytes for _, source, _ in bundle] for bundle in bundles(work, 3)]
    assert grouped == [[1, 2, BUNDLE_BYTES - 3], [1], [BUNDLE_BYTES], [2 * BUNDLE_BYTES], [5, 5, 5], [5]]
    assert [len(bundle) for bundle in bundles(work, 0)] == [1] * len(work)
    assert list(bundles([], 4)) == []
