"""The whole way of a request: the official client, the server as a process, the engine, and its worker processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import openai
import pytest

import loadmaster as lm
from runnable_model import write_runnable_model

PROMPTS: Final = [f"{word} and {word} again" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
TOKENS: Final = 12
START_SECONDS: Final = 120


class Server:
    """A running `loadmaster serve`."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "loadmaster.cli", "serve", str(model), "--port", "0", "--dtype", "float32", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"at (http://\S+)", line):
                self.client = openai.OpenAI(base_url=found[1], api_key="none", max_retries=0, timeout=START_SECONDS)
                self.name = self.client.models.list().data[0].id
                return
        raise AssertionError("".join(said))

    def answer(self, prompt: str, *, stream: bool = False) -> str:
        """Return the greedy continuation of a prompt."""
        if not stream:
            made = self.client.completions.create(model=self.name, prompt=prompt, max_tokens=TOKENS, temperature=0)
            return made.choices[0].text
        parts = self.client.completions.create(model=self.name, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True)
        return "".join(part.choices[0].text for part in parts)

    def end(self) -> int:
        """Ask it to drain and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=60)
        assert "Traceback" not in rest
        return self.process.returncode


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, str]:
    with lm.Engine(model, dtype="float32") as engine:
        made = [engine.generate([prompt], max_tokens=TOKENS, temperature=0.0)[0] for prompt in PROMPTS]
    return dict(zip(PROMPTS, (answer.text for answer in made), strict=True))


@pytest.fixture(params=["1", "2"], ids=["one rank", "two ranks"])
def server(model: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    running = Server(model, "--tp", request.param, "--max-running", "4")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_many_clients_get_what_each_prompt_gives_alone(server: Server, alone: dict[str, str]) -> None:
    jobs = [(prompt, number % 2 == 0) for number, prompt in enumerate(PROMPTS * 3)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: server.answer(job[0], stream=job[1]), jobs))
    assert answers == [alone[prompt] for prompt, _ in jobs]
    assert server.end() == 0
