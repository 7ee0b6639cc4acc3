"""Requests with different adapters in one step get what peft computes for each alone: whole prompts, pieces, single tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from adapter_workers import Piece, Workers
from loadmaster_engine.run.adapters import axes
from loadmaster_hookspecs.adapters import Replacement
from loadmaster_hookspecs.errors import LoadmasterError
from peft_adapters import adapt
from tiny_models import IDS, make_model, save_model

TOLERANCE: Final = 1e-5
BIASED: Final = {"attention_bias": True, "mlp_bias": True}
EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


class Scene(NamedTuple):
    """A family with three adapters of different kinds."""

    family: str
    sizes: dict[str, Any]
    adapters: tuple[dict[str, Any], ...]


SCENES: Final = {
    "llama": Scene(
        "llama",
        BIASED,
        (
            {"use_dora": True, "bias": "lora_only"},
            {"target_modules": ["embed_tokens", "o_proj", "lm_head"]},
            {"target_modules": ["v_proj"], "bias": "all", "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"]},
        ),
    ),
    "qwen3_moe": Scene(
        "qwen3_moe",
        EXPERTS,
        (
            {"target_modules": ["q_proj", "o_proj"], "lora_bias": False},
            {"target_modules": ["v_proj"], "modules_to_save": ["mlp.gate", "experts"]},
            {
                "target_modules": ["k_proj"],
                "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight"],
                "use_rslora": True,
                "r": 8,
            },
        ),
    ),
    # Norms of heads that are given [1, heads, tokens, size], with as many heads as the last step has tokens.
    "gemma3": Scene(
        "gemma3_text",
        {"query_pre_attn_scalar": 16, "sliding_window": 6},
        (
            {"target_modules": ["q_proj", "embed_tokens"]},
            {"target_modules": ["v_proj"], "modules_to_save": ["q_norm", "k_norm", "norm"]},
            {"target_modules": ["down_proj"], "use_dora": True},
        ),
    ),
    "phi3": Scene(
        "phi3",
        {},
        (
            {"target_modules": ["qkv_proj", "gate_up_proj"]},
            {"target_modules": ["qkv_proj", "down_proj"], "use_dora": True},
            {"target_modules": ["o_proj"], "lora_bias": False, "modules_to_save": ["embed_tokens"]},
        ),
    ),
}


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    made: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return made


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_row_of_a_mixed_step_gets_its_own(name: str, ranks: int, tmp_path: Path) -> None:
    scene = SCENES[name]
    model = save_model(make_model(scene.family, **scene.sizes), tmp_path / "model")
    ids = list(IDS)
    with Workers(model, ranks) as workers:
        expected = [log_softmax(workers.engine.logits(ids)[-1])]
        for number, config in enumerate(scene.adapters, 1):
            made = adapt(model, tmp_path / str(number), seed=number, **config)
            assert all(state.ready for state in workers.bring(number, made.adapter))
            expected.append(log_softmax(made.logits[-1]))
        everyone = range(len(expected))
        whole = workers.step(*(Piece(number, ids, 0, number) for number in everyone))
        # Pieces of four tokens, then last tokens beside the rest of other prompts, in an order of neither kind.
        workers.step(*(Piece(number, ids[:4], 0, number) for number in everyone))
        workers.step(*(Piece(number, ids[4:-1], 4, number) for number in (2, 0)))
        last = [Piece(n, ids[-1:], len(ids) - 1, n) if n % 2 == 0 else Piece(n, ids[4:], 4, n) for n in (3, 0, 1, 2)]
        pieces = dict(zip((3, 0, 1, 2), workers.step(*last), strict=True))
        tokens = workers.step(*(Piece(number, ids[-1:], len(ids) - 1, number) for number in everyone))
        for number in everyone:
            alone = workers.step(Piece(number, ids, 0, number))[0]
            for found in (alone, whole[number], pieces[number], tokens[number]):
                assert np.abs(found - expected[number]).max() < TOLERANCE, number
        assert all(np.abs(expected[a] - expected[b]).max() > 0.1 for a in everyone for b in everyone if a < b)


def test_rows_that_draw_nothing_and_rows_of_one_adapter_twice(tmp_path: Path) -> None:
    model = save_model(make_model("llama"), tmp_path / "model")
    made = adapt(model, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    ids = list(IDS)
    with Workers(model) as workers:
        workers.bring(5, made.adapter)
        base = log_softmax(workers.engine.logits(ids)[-1])
        assert workers.step(Piece(0, ids[:6], 0, 5, draws=False), Piece(1, ids[:6], 0, 0, draws=False)) == []
        only = workers.step(
            Piece(0, ids[6:], 6, 5), Piece(1, ids[6:8], 6, 0, draws=False), Piece(2, ids[:3], 0, 0, draws=False)
        )
        assert np.abs(only[0] - log_softmax(made.logits[-1])).max() < TOLERANCE
        mixed = workers.step(Piece(3, ids, 0, 5), Piece(1, ids[8:], 8, 0), Piece(4, ids, 0, 5))
        for found, expected in zip(mixed, (log_softmax(made.logits[-1]), base, log_softmax(made.logits[-1])), strict=True):
            assert np.abs(found - expected).max() < TOLERANCE


def test_a_row_cannot_name_an_adapter_that_is_not_ready(tmp_path: Path) -> None:
    model = save_model(make_model("llama"), tmp_path / "model")
    with Workers(model) as workers, pytest.raises(LoadmasterError, match="LM-SERVICE-ADAPTER"):
        workers.step(Piece(0, IDS, 0, 1), Piece(1, IDS))


def test_an_adapter_of_the_load_is_looked_at_when_serving_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_model(make_model("llama"), tmp_path / "model")
    made = adapt(model, tmp_path / "adapter", target_modules=["q_proj"])
    monkeypatch.setattr(axes, "ROUTED", re.compile("q_proj"))
    with pytest.raises(LoadmasterError, match="LM-ADAPTER-ALONE"):
        Workers(model, adapters={"it": made.adapter})


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("model.layers.0.self_attn", "more with its parameters"),
        ("model.layers.0.mlp.experts.1.up_proj", "that a router sends"),
        ("model.layers.1.self_attn.gate_proj", "does not call it"),
    ],
)
def test_what_cannot_be_told_apart_by_token_is_refused_by_name(path: str, why: str, tmp_path: Path) -> None:
    model = save_model(make_model("llama"), tmp_path / "model")
    made = adapt(model, tmp_path / "adapter", target_modules=["q_proj"])
    with Workers(model) as workers:
        plan = workers.plan(made.adapter)
        if path.endswith("self_attn"):
            plan = msgspec.structs.replace(plan, replacements=(Replacement(path=path, name="sinks", tensor="sinks"),))
        else:
            plan = msgspec.structs.replace(plan, parts=(msgspec.structs.replace(plan.parts[0], path=path),))
        (state,) = workers.open(1, plan)
        assert state.error is not None
        assert state.error.code == "LM-ADAPTER-ALONE"
        assert state.error.where["module"] == path
        assert why in state.error.why
        workers.close(1)
        workers.step(Piece(0, IDS))
