"""Generation: equal to transformers' greedy search, whatever the batch; stop tokens; defaults that are announced."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import loadmaster as lm
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
