"""Against peft: its own file gives its own logits, live and merged, on one rank and two; what does not fit is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import loadmaster as lm
import numpy as np
import pytest
import torch
from peft import VeraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

IDS = [3, 17, 200, 5]
SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 250}


class Files(NamedTuple):
    """A model's folder, an adapter's folder, and peft's logits of `IDS` with both."""

    model: Path
    adapter: Path
    logits: Any


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Write a random model and a VeRA of it."""
    folder = tmp_path_factory.mktemp("vera")
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_hidden_layers=2)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    base.save_pretrained(folder / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
        model = get_peft_model(base, VeraConfig(r=8, target_modules=targets)).eval()
        for name, parameter in model.named_parameters():
            if "vera_lambda" in name:
                torch.nn.init.normal_(parameter)
        with torch.inference_mode():
            logits = model(torch.tensor([IDS])).logits[0].numpy()
        model.save_pretrained(folder / "adapter")
    return Files(folder / "model", folder / "adapter", logits)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["live", "merged"])
def test_logits_are_pefts(made: Files, mode: Any, ranks: int) -> None:
    options: dict[str, Any] = {"adapters": {"it": made.adapter}, "adapter_mode": mode, "executor": "inline"}
    with lm.Engine(made.model, tensor_parallel=ranks, **options) as engine:
        error = np.abs(engine.logits(IDS, adapter="it") - made.logits).max() / np.abs(made.logits).max()
    assert error < 1e-5


def test_every_byte_is_read_once_and_what_is_cut_alike_is_held_once(made: Files) -> None:
    (plan,) = lm.plan(made.model, tensor_parallel=2, adapters={"it": made.adapter}).data.adapters
    assert sum(rank.bytes_charged for rank in plan.ranks) == plan.ledger.bytes_unique == plan.ledger.bytes_total
    shared = {name for name, target in plan.ledger.aliased.items() if target == "model.layers.0.self_attn.q_proj.A"}
    assert "model.layers.0.mlp.up_proj.A" in shared
    assert "model.layers.1.self_attn.q_proj.A" in shared
    assert "model.layers.0.mlp.down_proj.A" not in shared


def changed(made: Files, folder: Path, **values: Any) -> Path:
    """Return a copy of the adapter with other fields in its configuration."""
    config = json.loads((made.adapter / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **values}))
    save_file(load_file(made.adapter / "adapter_model.safetensors"), folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("values", "code", "named"),
    [
        ({"save_projection": False}, "LM-VERA-FIELD", "save_projection = False"),
        ({"bias": "all"}, "LM-VERA-FIELD", "bias = 'all'"),
        ({"of_the_future": 7}, "LM-VERA-FIELD", "of_the_future = 7"),
        ({"r": 0}, "LM-VERA-CONFIG", "`int` >= 1"),
        ({"r": 4}, "LM-VERA-TENSORS", "vera_lambda_d is (8,), not (4,)"),
        ({"target_modules": ["q_proj"]}, "LM-VERA-TENSORS", "o_proj.vera_lambda_b belongs to no targeted layer"),
        ({"target_modules": ".*_proj"}, "LM-VERA-TENSORS", "gate_proj.vera_lambda_b is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    made: Files, tmp_path: Path, values: dict[str, Any], code: str, named: str
) -> None:
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(made.model, adapters={"it": changed(made, tmp_path, **values)})
    assert caught.value.code == code
    assert named in caught.value.report.why
