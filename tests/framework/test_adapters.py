"""LoRA through the whole of loadmaster: real files, quantised bases, several adapters, and what is planned for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import loadmaster as lm
from loadmaster_engine.load.packed import PackedLinear
from loadmaster_hookspecs.adapters import AdapterMode
from peft_adapters import MODES, TOLERANCE, adapt, adapter_tensors, check, engine, make_adapter
from quantised_models import Scheme, write_quantised
from tiny_models import IDS, relative_error, save_model

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["lora-r8-attn", "lora-r16-all", "lora-regex", "lora-save-norm"])
@pytest.mark.parametrize("mode", MODES)
def test_real_adapters_give_pefts_logits(name: str, mode: AdapterMode) -> None:
    expected = load_file(DATA / name / "expected" / "logits.safetensors")
    plain = load_file(DATA / "base" / "expected" / "logits.safetensors")
    ids, reference = expected["input_ids"][0].tolist(), expected["logits"][0]
    assert ids == plain["input_ids"][0].tolist()
    for ranks in (1, 2, 3):
        with engine(DATA / "base", DATA / name, ranks, mode) as loaded:
            assert relative_error(loaded.logits(ids, adapter="it"), reference) < TOLERANCE, ranks
            without = reference if mode == "merged" else plain["logits"][0]
            assert relative_error(loaded.logits(ids), without) < TOLERANCE, ranks
            assert loaded.report.amplification == 1.0


def test_mapped_weights_become_copies_where_they_are_merged(tmp_path: Path) -> None:
    made = make_adapter(tmp_path, target_modules=["q_proj"])
    plans = {mode: lm.plan(made.model, adapters={"it": made.adapter}, adapter_mode=mode) for mode in MODES}
    mapped = {
        mode: {binding.parameter for binding in plan.ranks[0].bindings if binding.view is not None}
        for mode, plan in plans.items()
    }
    changed = {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)}
    assert mapped["live"] - mapped["merged"] == changed
    before = (made.model / "model.safetensors").read_bytes()
    check(made, (1, 2), ("merged",), dtype="auto")
    assert (made.model / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(order=True), Scheme(method="awq", version="gemm")])
def test_live_on_quantised_bases(scheme: Scheme, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path / "packed", scheme)
    made = adapt(plain, tmp_path / "adapter")._replace(model=tmp_path / "packed")
    check(made, (1, 2), ("live",), kernel="dequant")
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(made.model, adapters={"it": made.adapter}, adapter_mode="merged")
    assert caught.value.code == "LM-ADAPTER-MERGE"
    assert caught.value.report.why == "the weight is quantised"


@pytest.mark.parametrize(
    ("scheme", "kernel", "ranks"),
    [
        (Scheme(), "dequant", (1, 2, 3)),
        (Scheme(order=True), "dequant", (2,)),
        (Scheme(), "torch-int4", (1,)),
        (Scheme(method="awq", version="gemm"), "torch-int4", (1,)),
    ],
)
def test_dora_on_quantised_bases(scheme: Scheme, kernel: str, ranks: tuple[int, ...], tmp_path: Path) -> None:
    """Norms are those of the weights that the kernel multiplies with, whether it keeps the file's tensors or not."""
    plain = write_quantised(tmp_path / "packed", scheme)
    made = adapt(plain, tmp_path / "adapter", use_dora=True)._replace(model=tmp_path / "packed")
    check(made, ranks, ("live",), kernel=kernel)


@pytest.mark.parametrize("stacks", [["experts.gate_up_proj", "experts.down_proj"], []])
def test_quantised_experts(stacks: list[str], tmp_path: Path) -> None:
    """One expert's matrix is decoded at a time, as without an adapter, and its pair is added to the result."""
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    packed = tmp_path / "packed"
    model = write_quantised(packed, Scheme(order=True), "qwen3_moe", chosen=lambda name: ".experts." in name, **sizes)
    targets = [] if stacks else ["gate_proj", "up_proj", "down_proj"]
    made = adapt(model, tmp_path / "adapter", target_modules=targets, target_parameters=stacks or None)._replace(model=packed)
    check(made, (1, 2, 3), ("live",))
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(packed, adapters={"it": made.adapter}, adapter_mode="merged")
    assert caught.value.code == "LM-ADAPTER-MERGE"


@pytest.mark.parametrize("name", ["gptq-4b-g64-asym-act", "awq-4b-g64"])
def test_live_on_real_quantised_files(name: str, tmp_path: Path) -> None:
    """Against the dequantised weights as a plain model, with peft's adapter on top."""
    plain = lm.load_model(DATA / name, dtype="float32", kernel="dequant")
    state = {key: value for key, value in plain.state_dict().items() if "qweight" not in key}
    assert state
    ids = load_file(DATA / name / "expected" / "logits.safetensors")["input_ids"][0].tolist()
    with engine(DATA / name, DATA / "lora-r16-all", kernel="dequant") as alone:
        reference, base = alone.logits(ids, adapter="it"), alone.logits(ids)
    expected = _with_adapter(plain, ids)
    assert relative_error(reference, expected) < TOLERANCE
    assert relative_error(reference, base) > 100 * TOLERANCE
    for ranks in (2, 3):
        with engine(DATA / name, DATA / "lora-r16-all", ranks, kernel="dequant") as divided:
            assert relative_error(divided.logits(ids, adapter="it"), expected) < TOLERANCE


@pytest.mark.parametrize("name", ["gptq-4b-g64-asym-act", "awq-4b-g64"])
def test_dora_on_real_quantised_files(name: str, tmp_path: Path) -> None:
    """Against peft on a plain model with the dequantised weights."""
    packed = lm.load_model(DATA / name, dtype="float32", kernel="dequant")
    plain = AutoModelForCausalLM.from_pretrained(DATA / "base", dtype=torch.float32)
    plain.load_state_dict(packed.state_dict(), strict=False)
    for path, module in packed.named_modules():
        if isinstance(module, PackedLinear):
            plain.get_submodule(path).weight.data = module.weights()(0, module.out_features)
    made = adapt(save_model(plain, tmp_path / "plain"), tmp_path / "adapter", use_dora=True)
    check(made._replace(model=DATA / name), (1, 2), ("live",), kernel="dequant")


def _with_adapter(model: torch.nn.Module, ids: list[int]) -> Any:
    """Return the logits of a model whose every layer has the adapter's product added, computed here."""
    tensors = load_file(DATA / "lora-r16-all" / "adapter_model.safetensors")
    for name, a in tensors.items():
        if ".lora_A." in name:
            b = torch.from_numpy(tensors[name.replace(".lora_A.", ".lora_B.")])
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            delta = 0.5 * b @ torch.from_numpy(a)
            model.get_submodule(path).register_forward_hook(lambda _m, args, out, d=delta: out + args[0] @ d.T)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("mode", MODES)
def test_narrow_types_stay_close(mode: AdapterMode) -> None:
    """In bfloat16 the result differs from the one without an adapter by far more than rounding does."""
    expected = load_file(DATA / "lora-save-norm" / "expected" / "logits.safetensors")
    ids = expected["input_ids"][0].tolist()
    for ranks in (1, 2):
        with engine(DATA / "base", DATA / "lora-save-norm", ranks, mode, dtype="auto") as loaded:
            assert loaded.plan.data.dtype == "BF16"
            assert relative_error(loaded.logits(ids, adapter="it"), expected["logits"][0]) < 0.02


def test_live_beside_a_kernel_of_its_own_arithmetic() -> None:
    """The product of the quantised base may be computed in a narrow type: the adapter's change is the same."""
    ids = load_file(DATA / "gptq-4b-g64-sym" / "expected" / "logits.safetensors")["input_ids"][0].tolist()
    with engine(DATA / "gptq-4b-g64-sym", DATA / "lora-r16-all", kernel="dequant") as plain:
        reference = plain.logits(ids, adapter="it")
    with engine(DATA / "gptq-4b-g64-sym", DATA / "lora-r16-all", 2, dtype="bfloat16", kernel="auto") as loaded:
        assert relative_error(loaded.logits(ids, adapter="it"), reference) < 0.03
        assert relative_error(loaded.logits(ids), reference) > 0.03


def test_an_adapter_in_shards_beside_a_model(tmp_path: Path) -> None:
    made = make_adapter(tmp_path, modules_to_save=["norm"])
    tensors = adapter_tensors(made.adapter)
    names = sorted(tensors)
    (made.adapter / "adapter_model.safetensors").unlink()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = made.adapter / f"adapter_model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, file)
    shutil.copytree(made.model, made.adapter, dirs_exist_ok=True)
    check(made, (1, 2), ("live",))


def test_each_rank_reads_its_own_part(tmp_path: Path) -> None:
    made = make_adapter(tmp_path, target_modules=["q_proj", "down_proj"], r=4)
    (adapter,) = lm.plan(made.model, tensor_parallel=2, adapters={"it": made.adapter}).data.adapters
    shapes = [{each.parameter.split(".", 3)[3]: each.shape for each in rank.bindings} for rank in adapter.ranks]
    half = {
        "self_attn.q_proj.A": (4, 64),
        "self_attn.q_proj.B": (32, 4),
        "mlp.down_proj.A": (4, 88),
        "mlp.down_proj.B": (64, 4),
    }
    assert shapes == [half, half]
    assert [rank.bytes_charged for rank in adapter.ranks] != [rank.bytes_planned for rank in adapter.ranks]
    assert sum(rank.bytes_charged for rank in adapter.ranks) == adapter.ledger.bytes_total


def test_several_adapters_and_none_by_turns(tmp_path: Path) -> None:
    first = make_adapter(tmp_path, modules_to_save=["norm"])
    second = adapt(first.model, tmp_path / "second", seed=5, target_modules=["q_proj"], r=2, bias="all")
    folders = {"first": first.adapter, "second": second.adapter}
    with lm.Engine(first.model, adapters=folders, dtype="float32") as loaded:
        plain = loaded.logits(list(IDS))
        for _ in range(2):
            assert relative_error(loaded.logits(list(IDS), adapter="first"), first.logits) < TOLERANCE
            assert relative_error(loaded.logits(list(IDS), adapter="second"), second.logits) < TOLERANCE
            assert (loaded.logits(list(IDS)) == plain).all()
        answers = {name: loaded.generate([list(IDS)], max_tokens=8, temperature=0, adapter=name) for name in (*folders, None)}
        assert int(answers["first"][0].token_ids[0]) == int(first.logits[-1].argmax())
        assert int(answers["second"][0].token_ids[0]) == int(second.logits[-1].argmax())
        with pytest.raises(lm.UsageError) as caught:
            loaded.logits(list(IDS), adapter="third")
        assert caught.value.report.why == "loaded: first, second"
    with pytest.raises(lm.UsageError, match="only one adapter can be merged"):
        lm.plan(first.model, adapters=folders, adapter_mode="merged")
