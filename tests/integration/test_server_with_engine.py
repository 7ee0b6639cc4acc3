"""The whole way of a request: the official client, the server as a process, the engine, and its two worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

import loadmaster as lm
from runnable_model import write_runnable_model
from server_process import ServerProcess

PROMPTS: Final = [f"{word} and {word} again" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
TOKENS: Final = 12


def answer(server: ServerProcess, prompt: str, *, stream: bool) -> str:
    """Return the greedy continuation of a prompt."""
    made: Any = server.client.completions.create(
        model=server.name, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=stream
    )
    return "".join(part.choices[0].text for part in made) if stream else made.choices[0].text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, str]:
    with lm.Engine(model, dtype="float32") as engine:
        made = [engine.generate([prompt], max_tokens=TOKENS, temperature=0.0)[0] for prompt in PROMPTS]
    return dict(zip(PROMPTS, (answer.text for answer in made), strict=True))


@pytest.fixture
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model, "--tp", "2", "--max-running", "4") as running:
        yield running


def test_many_clients_get_what_each_prompt_gives_alone(server: ServerProcess, alone: dict[str, str]) -> None:
    jobs = [(prompt, number % 2 == 0) for number, prompt in enumerate(PROMPTS * 3)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: answer(server, job[0], stream=job[1]), jobs))
    assert answers == [alone[prompt] for prompt, _ in jobs]
    assert server.drain() == 0
