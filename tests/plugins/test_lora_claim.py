"""What a LoRA's configuration and names mean: effective scales, repaired prefixes, and refusals that name the offender."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

import loadmaster as lm
from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, StoredAdapter
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_plugins.lora.fields import Fields
from loadmaster_plugins.lora.kind import Lora
from loadmaster_plugins.lora.product import live, merge
from loadmaster_plugins.lora.settings import IRRELEVANT
from loadmaster_plugins.patterns import takes_long
from loadmaster_plugins.peft_files.config import ORIGIN
from loadmaster_plugins.peft_files.names import Repair, find_repair
from peft_adapters import Made, adapter_tensors, edit_adapter_config, make_adapter, write_adapter_tensors
from tiny_models import IDS, relative_error

PEFT = "base_model.model."
TINY = {"num_hidden_layers": 1}


def meta(name: str, *shape: int) -> TensorMeta:
    return TensorMeta(name=name, dtype="F32", shape=shape, file=0, start=0, stop=0)


def module(path: str, out: int = 8, columns: int = 8, **more: Any) -> AdapterModule:
    return AdapterModule(
        path=path, kind="linear", out_features=out, in_features=columns, parameters={"weight": (out, columns)}, **more
    )


def claim(modules: list[AdapterModule], paths: list[str], rank: int = 8, out: int = 8, **config: Any) -> AdapterClaim:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj"], **config}
    tensors = [
        tensor
        for path in paths
        for tensor in (
            meta(f"{PEFT}{path}.lora_A.weight", rank, 8),
            meta(f"{PEFT}{path}.lora_B.weight", out, rank),
        )
    ]
    stored = StoredAdapter(name="it", config=config, tensors={tensor.name: tensor for tensor in tensors})
    return Lora().claim(stored, modules)


class Layer:
    """A whole layer with nothing to share."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.module.weight.data = weight

    def weight(self, start: int, stop: int) -> torch.Tensor:
        return self.module.weight.data[start:stop]

    def total(self, partial: torch.Tensor) -> torch.Tensor:
        return partial


def part(scale: float) -> AdapterPart:
    return AdapterPart(path="x", kind="linear", scale=scale, axes={"rank": 1}, tensors={}, layouts=())


def test_rslora_scales_by_the_root_of_the_rank() -> None:
    claimed = claim([module("l.q_proj")], ["l.q_proj"], rank=16, r=16, lora_alpha=32, use_rslora=True)
    assert claimed.parts[0].scale == 8.0
    ones = {"A": torch.ones(16, 3), "B": torch.ones(2, 16)}
    changed = merge(claimed.parts[0], ones, Layer(torch.zeros(2, 3)))["weight"](0, 2, torch.zeros(2, 3))
    assert (changed == 128).all()


def test_dora_turns_3_4_with_magnitude_10_into_6_8() -> None:
    tensors = {"A": torch.ones(1, 2), "B": torch.zeros(1, 1), "magnitude": torch.tensor([10.0])}
    layer = Layer(torch.tensor([[3.0, 4.0]]))
    assert torch.equal(merge(part(1.0), tensors, layer)["weight"](0, 1, layer.weight(0, 1)), torch.tensor([[6.0, 8.0]]))
    x = torch.eye(2)
    with torch.no_grad():
        change = live(part(1.0), tensors, layer).result
        assert change is not None
        assert torch.allclose(change(x, layer.module(x)), torch.tensor([[6.0], [8.0]]))


def test_a_tensor_rank_that_is_not_the_configured_one_is_refused() -> None:
    with pytest.raises(lm.IntegrityError) as caught:
        claim([module("l.k_proj")], ["l.k_proj"], rank=4)
    assert caught.value.code == "LM-ADAPTER-SHAPE"
    assert caught.value.report.where["module"] == "l.k_proj"
    assert "tensor rank 4, configured rank 8" in caught.value.report.why


@pytest.mark.parametrize(
    ("stored", "model", "repair", "said"),
    [
        ("model.layers.{}", "language_model.model.layers.{}", Repair("", "language_model."), "prefix language_model. added"),
        ("language_model.layers.{}", "layers.{}", Repair("language_model.", ""), "prefix language_model. removed"),
        ("model.layers.{}", "model.text.layers.{}", Repair("model.", "model.text."), "prefix model. replaced by model.text."),
    ],
)
def test_a_prefix_is_repaired_and_said(stored: str, model: str, repair: Repair, said: str) -> None:
    ends = ["0.q_proj", "0.k_proj", "1.q_proj", "1.k_proj"]
    modules = [module(model.format(end)) for end in ends]
    assert find_repair([stored.format(end) for end in ends], [each.path for each in modules]) == repair
    claimed = claim(modules, [stored.format(end) for end in ends])
    assert [each.path for each in claimed.parts] == [each.path for each in modules]
    assert [finding.message for finding in claimed.findings] == [f"4/4 pairs, {said}"]


def test_two_possible_repairs_are_none() -> None:
    modules = [module(f"{tower}.layers.0.q_proj") for tower in ("text", "vision")]
    with pytest.raises(lm.PlanError) as caught:
        claim(modules, ["layers.0.q_proj"])
    assert "0 of 1 pairs match" in caught.value.report.summary
    assert "nearest: text.layers.0.q_proj" in caught.value.report.why


def test_every_offender_is_listed_and_nothing_is_applied_by_half() -> None:
    with pytest.raises(lm.PlanError) as caught:
        claim([module("l.q_proj"), module("l.k_proj")], ["l.q_proj", "l.kproj", "l.experts.3.up_proj"])
    assert caught.value.code == "LM-ADAPTER-UNMATCHED"
    assert "2 parts" in caught.value.report.summary
    assert "l.kproj (nearest: l.k_proj)" in caught.value.report.why
    assert "l.experts.3.up_proj" in caught.value.report.why


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        ({"target_modules": ["q_proj"]}, "LM-ADAPTER-TARGET", "l.k_proj"),
        ({"target_modules": ["q_proj", "k_proj", "v_proj"]}, "LM-ADAPTER-MISSING", "l.v_proj"),
        ({"modules_to_save": ["norm"]}, "LM-ADAPTER-MISSING", "norm"),
        ({"modules_to_save": ["norm"], "target_modules": None}, "LM-ADAPTER-MISSING", "norm"),
        ({"use_dora": True}, "LM-ADAPTER-MISSING", "magnitude"),
        ({"lora_bias": True}, "LM-ADAPTER-MISSING", "B_bias"),
    ],
)
def test_tensors_that_contradict_the_configuration(config: dict[str, Any], code: str, named: str) -> None:
    modules = [module(f"l.{name}_proj") for name in "qkv"]
    with pytest.raises(lm.IntegrityError) as caught:
        claim(modules, ["l.q_proj", "l.k_proj"], **config)
    assert caught.value.code == code
    assert named in caught.value.report.why


REFUSED: dict[str, Any] = {
    "alora_invocation_tokens": [3],
    "arrow_config": {"top_k": 2},
    "ensure_weight_tying": True,
    "init_lora_weights": "pissa",
    "kasa_config": {"a": 1},
    "layer_replication": [[0, 1]],
    "megatron_config": {"a": 1},
    "monteclora_config": {"a": 1},
    "trainable_token_indices": [1, 2],
    "use_bdlora": {"a": 1},
    "use_qalora": True,
    "velora_config": {"a": 1},
}
"""Fields that are refused where they are switched on, with such a value."""


def test_every_field_of_peft_is_honoured_without_effect_or_refused() -> None:
    honoured = {*Fields.__struct_fields__, "peft_type"}
    classes = [honoured, IRRELEVANT | ORIGIN, REFUSED.keys()]
    known = {field.name for field in dataclasses.fields(LoraConfig)}
    assert sorted(name for each in classes for name in each) == sorted(known)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *REFUSED.items(),
        *(("init_lora_weights", value) for value in ("loftq", "olora", "corda", "lora_ga", "pissa_niter_4")),
        ("a_field_of_the_future", 7),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(lm.PlanError) as caught:
        claim([module("l.q_proj")], ["l.q_proj"], **{field: value})
    assert caught.value.code == "LM-ADAPTER-FIELD"
    assert caught.value.report.why == f"{field} = {value!r}"


def test_unknown_fields_that_are_off_are_named() -> None:
    claimed = claim([module("l.q_proj")], ["l.q_proj"], a_field_of_the_future=None, target_modules=["q_proj"])
    assert "a_field_of_the_future" in claimed.findings[0].message


@pytest.mark.parametrize(
    "config",
    [
        {"r": 0},
        {"lora_alpha": "8"},
        {"bias": "some"},
        {"rank_pattern": {"(": 2}},
        {"target_modules": "("},
        {"target_modules": [1]},
        {"rank_pattern": [1]},
        {"layers_to_transform": "x"},
        {"modules_to_save": "norm"},
        {"lora_alpha": float("nan")},
        {"exclude_modules": "["},
        {"rank_pattern": {"(?i)q_proj": 4}},
        {"modules_to_save": ["("]},
        {"target_modules": "q.*", "layers_to_transform": [1]},
    ],
)
def test_values_that_make_no_sense(config: dict[str, Any]) -> None:
    with pytest.raises(lm.PlanError, match="LM-ADAPTER-CONFIG"):
        claim([module("l.q_proj")], ["l.q_proj"], **config)


UNSLOTH = (
    r"(?:.*?(?:vision|image|visual|patch|embed|adapter|language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
    r".*?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\."
    r"(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)))"
)
"""What a widely used tool writes: too many choices to be bounded beforehand, and quick."""


def test_an_expression_that_looks_slow_is_tried() -> None:
    paths = [f"model.layers.{number}.self_attn.{name}_proj" for number in range(3) for name in "qkvo"]
    assert takes_long(UNSLOTH)
    assert len(claim([module(path) for path in paths], paths, target_modules=UNSLOTH).parts) == len(paths)


@pytest.mark.parametrize("config", [{"target_modules": ".*(a+)+!"}, {"alpha_pattern": {"(a+)+!": 4}}])
def test_an_expression_that_takes_very_long_is_refused(config: dict[str, Any]) -> None:
    path = f"layers.17.{40 * 'a'}.q_proj"
    with pytest.raises(lm.PlanError, match="LM-ADAPTER-CONFIG") as caught:
        claim([module(path)], [path], **config)
    assert "(a+)+!', which takes more than 1 s to be matched with 2 names" in caught.value.report.why
    assert caught.value.hints == ("write it without repetitions inside of repetitions, or as a list of names",)


def test_patterns_may_be_null() -> None:
    claimed = claim([module("l.q_proj")], ["l.q_proj"], rank_pattern=None, alpha_pattern=None, target_modules=["q_proj"])
    assert claimed.parts[0].scale == 2.0


def test_scales_that_differ_and_patterns_without_effect_are_said() -> None:
    modules = [module("l.q_proj"), module("l.k_proj")]
    claimed = claim(modules, ["l.q_proj", "l.k_proj"], alpha_pattern={"q_proj": 4, "nothing": 2})
    messages = [finding.message for finding in claimed.findings]
    assert messages[0].startswith("scales differ: scale 0.5 (r 8, alpha 4) on 1 modules, first l.q_proj; scale 2 ")
    assert messages[1] == "alpha_pattern has 'nothing', which fits no module of the adapter"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_adapter(tmp_path_factory.mktemp("adapter"), sizes=TINY)


def test_keys_without_a_wrappers_prefix_change_the_result(made: Made, tmp_path: Path) -> None:
    """The model's modules are under `model.`, the adapter was trained on its inner part."""
    write_copy(made, tmp_path, lambda name: name.replace(f"{PEFT}model.", PEFT))
    with lm.Engine(made.model, adapters={"it": tmp_path}, dtype="float32") as loaded:
        assert relative_error(loaded.logits(list(IDS), adapter="it"), made.logits) < 1e-5
        assert "adapter it: 7/7 pairs, prefix model. added" in loaded.notices


def test_an_adapter_of_a_wider_model_is_refused_before_anything_is_loaded(made: Made, tmp_path: Path) -> None:
    other = make_adapter(tmp_path, sizes={**TINY, "intermediate_size": 184})
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(made.model, adapters={"it": other.adapter})
    assert caught.value.code == "LM-ADAPTER-SHAPE"
    assert "needed" in caught.value.report.why


def test_full_paths_and_all_linear_equal_the_list(made: Made, tmp_path: Path) -> None:
    write_copy(made, tmp_path, lambda name: name)
    listed = lm.plan(made.model, adapters={"it": made.adapter}).data.adapters[0].parts
    paths = [part.path for part in listed]
    for targets in ("all-linear", paths):
        edit_adapter_config(tmp_path, target_modules=targets)
        assert lm.plan(made.model, adapters={"it": tmp_path}).data.adapters[0].parts == listed


def test_an_unknown_kind_is_refused(made: Made, tmp_path: Path) -> None:
    write_copy(made, tmp_path, lambda name: name)
    edit_adapter_config(tmp_path, peft_type="VERA")
    with pytest.raises(lm.PlanError, match="no plugin understands an adapter of type VERA"):
        lm.plan(made.model, adapters={"it": tmp_path})


def write_copy(made: Made, folder: Path, rename: Any) -> None:
    (folder / "adapter_config.json").write_text((made.adapter / "adapter_config.json").read_text())
    write_adapter_tensors(folder, {rename(name): tensor for name, tensor in adapter_tensors(made.adapter).items()})


def experts(shapes: dict[str, tuple[int, ...]], factors: dict[str, tuple[int, int]], **config: Any) -> AdapterClaim:
    """Return the claim of an adapter that has these factors, by the ends of their names, of a module with these stacks."""
    module = AdapterModule(path="l.experts", kind="experts", parameters=shapes)
    tensors = {f"{PEFT}l.{end}.weight": meta(f"{PEFT}l.{end}.weight", *shape) for end, shape in factors.items()}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [], **config}
    return Lora().claim(StoredAdapter(name="it", config=config, tensors=tensors), [module])


UP = {"experts.lora_A": (6, 5), "experts.lora_B": (7, 6)}


def test_a_stack_is_read_as_its_factors_show() -> None:
    plain = experts({"up": (3, 7, 5)}, UP, target_parameters=["experts.up"]).parts[0]
    turned = experts({"up": (3, 5, 7)}, UP, target_parameters=["experts.up"]).parts[0]
    assert (plain.params["transposed"], turned.params["transposed"]) == (False, True)
    assert plain.axes == turned.axes == {"up.rank": 6}
    assert [[dim.axis for dim in layout.dims] for layout in plain.layouts] == [["up.rank", "up.2"], ["up.1", "up.rank"]]
    assert [[dim.axis for dim in layout.dims] for layout in turned.layouts] == [["up.rank", "up.1"], ["up.2", "up.rank"]]


@pytest.mark.parametrize(
    ("shapes", "factors", "config", "code"),
    [
        ({"up": (3, 7, 5)}, UP, {"target_parameters": ["other.up"]}, "LM-ADAPTER-UNMATCHED"),
        ({}, UP, {"target_parameters": ["experts.up"]}, "LM-ADAPTER-UNMATCHED"),
        ({"up": (3, 7, 4)}, UP, {"target_parameters": ["experts.up"]}, "LM-ADAPTER-SHAPE"),
        ({"up": (4, 7, 5)}, UP, {"target_parameters": ["experts.up"]}, "LM-ADAPTER-SHAPE"),
        ({"up": (3, 7, 5)}, UP, {"target_parameters": ["experts.up"], "r": 3}, "LM-ADAPTER-SHAPE"),
        ({"up": (3, 7, 5)}, UP, {"target_parameters": ["experts.up"], "use_dora": True}, "LM-ADAPTER-DORA"),
        ({"up": (3, 7, 5), "down": (3, 5, 7)}, UP, {"target_parameters": ["up", "down"]}, "LM-ADAPTER-TARGET"),
        ({"up": (3, 7, 5)}, UP | {"experts.base_layer.lora_A": (6, 5)}, {"target_parameters": ["up"]}, "LM-ADAPTER-TARGET"),
        ({"up": (3, 7, 5)}, {"experts.lora_A": (6, 5)}, {"target_parameters": ["up"]}, "LM-ADAPTER-MISSING"),
        ({"up": (3, 7, 5)}, {}, {"target_parameters": ["up"]}, "LM-ADAPTER-MISSING"),
        (
            {"up": (3, 7, 7)},
            {"experts.lora_A": (6, 7), "experts.lora_B": (7, 6)},
            {"target_parameters": ["up"]},
            "LM-ADAPTER-SHAPE",
        ),
    ],
)
def test_pairs_of_stacks_that_do_not_fit(shapes: Any, factors: Any, config: dict[str, Any], code: str) -> None:
    with pytest.raises(lm.LoadmasterError) as caught:
        experts(shapes, factors, **config)
    assert caught.value.code == code


def test_a_target_that_fits_no_parameter_is_named() -> None:
    claimed = experts({"up": (3, 7, 5)}, UP, target_parameters=["experts.up", "experts.gone"])
    assert "'experts.gone'" in claimed.findings[0].message
