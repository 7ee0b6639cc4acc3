"""Generation: equal to transformers' greedy search, whatever the batch; stop tokens; defaults that are announced."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loadmaster as lm
from loadmaster_engine.executors.group import GroupExecutor
from tiny_models import make_model, save_model

PROMPTS = [[3, 17, 200, 5], [9], [249, 8, 8, 90, 41, 2, 7, 30]]


def greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """Return transformers' greedy continuation without stopping."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)  # type: ignore[operator]
    return tuple(output[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("llama", eos_token_id=None)


@pytest.fixture(scope="module")
def folder(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model, tmp_path_factory.mktemp("llama"))


def with_generation(folder: Path, target: Path, **values: object) -> Path:
    """Return a copy of the model whose generation_config.json has these values."""
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        (target / name).symlink_to(folder / name) if name == "config.json" else (target / name).hardlink_to(folder / name)
    (target / "config.json").unlink()
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    (target / "generation_config.json").write_text(json.dumps(values))
    return target


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_of_different_lengths_equals_each_prompt_alone(model: torch.nn.Module, folder: Path, ranks: int) -> None:
    with lm.Engine(folder, tensor_parallel=ranks, executor="inline") as engine:
        answers = engine.generate(PROMPTS, max_tokens=12, temperature=0.0)
        alone = [engine.generate([prompt], max_tokens=12, temperature=0.0)[0] for prompt in PROMPTS]
    assert [answer.token_ids for answer in answers] == [greedy(model, prompt, 12) for prompt in PROMPTS]
    assert answers == alone
    assert {answer.finish_reason for answer in answers} == {"length"}


def test_a_stop_token_ends_an_answer_and_is_not_part_of_it(model: torch.nn.Module, folder: Path, tmp_path: Path) -> None:
    full = greedy(model, PROMPTS[0], 12)
    stop = full[4]
    copy = with_generation(folder, tmp_path / "m", eos_token_id=[stop])
    with lm.Engine(copy) as engine:
        (answer,) = engine.generate([PROMPTS[0]], max_tokens=12, temperature=0.0)
        assert f"stop tokens {stop} from generation_config.json" in engine.notices
    assert answer.token_ids == full[: full.index(stop)]
    assert answer.finish_reason == "stop"


def test_defaults_are_announced_once_and_the_request_wins(model: torch.nn.Module, folder: Path, tmp_path: Path) -> None:
    copy = with_generation(folder, tmp_path / "m", temperature=0.1, top_k=1)
    with lm.Engine(copy) as engine:
        lines = [notice for notice in engine.notices if "sampling defaults" in notice]
        assert lines == ["sampling defaults temperature=0.1, top_k=1 from generation_config.json"]
        # One token to choose from is greedy, whatever the temperature.
        assert engine.generate([PROMPTS[0]], max_tokens=6)[0].token_ids == greedy(model, PROMPTS[0], 6)
        wild = engine.generate([PROMPTS[0]] * 8, max_tokens=6, temperature=50.0, top_k=0, seed=1)
    assert len({answer.token_ids for answer in wild}) == 8


def test_a_seed_repeats_and_does_not_depend_on_the_ranks(folder: Path) -> None:
    answers = []
    for ranks in (1, 2, 3):
        with lm.Engine(folder, tensor_parallel=ranks, executor="inline") as engine:
            answers.append(engine.generate(PROMPTS, max_tokens=8, temperature=0.9, top_p=0.9, seed=7))
    assert answers[0] == answers[1] == answers[2]


def test_wrong_requests_are_refused_before_any_step(folder: Path) -> None:
    with lm.Engine(folder) as engine:
        for prompts, values, code in [
            ([[]], {}, "LM-USAGE-PROMPT"),
            ([[250]], {}, "LM-USAGE-PROMPT"),
            ([[1] * 129], {}, "LM-USAGE-PROMPT"),
            ([[1]], {"temperature": -1.0}, "LM-USAGE-SAMPLING"),
            ([[1]], {"top_p": 0.0}, "LM-USAGE-SAMPLING"),
            ([[1]], {"max_tokens": 0}, "LM-USAGE-SAMPLING"),
            (["text"], {}, "LM-TOKENIZER-MISSING"),
            ([[1]], {"chat": True}, "LM-USAGE-CHAT"),
        ]:
            with pytest.raises(lm.UsageError) as caught:
                engine.generate(prompts, **values)  # type: ignore[arg-type]
            assert caught.value.code == code
        assert engine.generate([], max_tokens=1) == []


def test_an_answer_ends_where_the_positions_end(folder: Path) -> None:
    with lm.Engine(folder) as engine:
        (answer,) = engine.generate([[5] * 126], max_tokens=50, temperature=0.0)
    assert len(answer.token_ids) == 3
    assert answer.finish_reason == "length"


def test_calls_from_several_threads_take_turns(folder: Path) -> None:
    with lm.Engine(folder, tensor_parallel=2, executor="inline") as engine:
        expected = [engine.generate([prompt], max_tokens=5, temperature=0.0) for prompt in PROMPTS]
        with ThreadPoolExecutor(3) as pool:
            answers = pool.map(lambda prompt: engine.generate([prompt], max_tokens=5, temperature=0.0), PROMPTS * 3)
            assert list(answers) == expected * 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_capped_attention_is_not_disturbed_by_padding(ranks: int, tmp_path: Path) -> None:
    model = make_model("gemma2", sliding_window=4, tie_word_embeddings=True, eos_token_id=None)
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
        answers = engine.generate(PROMPTS, max_tokens=8, temperature=0.0)
    assert [answer.token_ids for answer in answers] == [greedy(model, prompt, 8) for prompt in PROMPTS]


def test_a_null_stop_token_leaves_that_of_the_configuration(folder: Path, tmp_path: Path) -> None:
    copy = with_generation(folder, tmp_path / "m", eos_token_id=None)
    config = json.loads((copy / "config.json").read_text()) | {"eos_token_id": 7}
    (copy / "config.json").write_text(json.dumps(config))
    with lm.Engine(copy) as engine:
        assert "stop tokens 7 from config.json" in engine.notices


def test_defaults_that_are_not_applied_are_announced(folder: Path, tmp_path: Path) -> None:
    wrong = {"temperature": -1.0, "top_p": 0.0}
    copy = with_generation(folder, tmp_path / "m", do_sample=True, top_k=3, repetition_penalty=1.1, num_beams=1, **wrong)
    with lm.Engine(copy) as engine:
        (line,) = [notice for notice in engine.notices if "not applied" in notice]
        assert line == (
            "sampling defaults top_k=3, temperature=1 from generation_config.json; "
            "not applied: temperature=-1.0, top_p=0.0, repetition_penalty=1.1 from generation_config.json"
        )
        assert len(engine.generate([PROMPTS[0]], max_tokens=3, seed=1)[0].token_ids) == 3


def test_ids_may_come_in_arrays(model: torch.nn.Module, folder: Path) -> None:
    prompt: Any = np.array(PROMPTS[0])
    with lm.Engine(folder) as engine:
        (answer,) = engine.generate([prompt], max_tokens=4, temperature=0.0)
        assert engine.logits(prompt).shape == (4, 250)
    assert answer.token_ids == greedy(model, PROMPTS[0], 4)


def test_values_of_a_wrong_kind_leave_the_engine_usable(folder: Path) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [
        ([1, 2, 3], {}),
        ([[1.5, 2]], {}),
        ([["a"]], {}),
        (["\udcff"], {}),
        ([[1]], {"seed": 2**70}),
        ([[1]], {"max_tokens": "3"}),
        ([[1]], {"temperature": "hot"}),
        ([[1]], {"temperature": float("inf")}),
    ]
    with lm.Engine(folder) as engine:
        for prompts, values in calls:
            with pytest.raises(lm.UsageError, match=r"LM-USAGE-(PROMPT|SAMPLING)"):
                engine.generate(prompts, **values)
        assert len(engine.generate([[1, 2]], max_tokens=2)[0].token_ids) == 2


def test_an_observer_that_fails_after_the_load_ends_the_ranks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_late(event: object) -> None:
        if "stop tokens" in getattr(event, "text", ""):
            raise ValueError("late")

    stopped: list[str] = []
    monkeypatch.setattr(GroupExecutor, "stop", lambda self: stopped.append(self.name))
    with pytest.raises(ValueError, match="late"):
        lm.Engine(with_generation(folder, tmp_path / "m", eos_token_id=[7]), on_event=fail_late)
    assert stopped == ["inline"]
