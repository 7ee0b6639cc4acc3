"""The whole way of a request: the official client, the server as a process, the engine, and its two worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import openai
import pytest

import loadmaster as lm
from peft_adapters import adapt, adapter_tensors, write_adapter_tensors
from server_process import ServerProcess

PROMPTS: Final = [f"{word} and {word} again" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
TOKENS: Final = 12
ROUNDS: Final = 3
"""How often an adapter comes and goes."""

Answers = Mapping[tuple[str, str], str]
"""Greedy answers by adapter and prompt; the empty name is the model without one."""


@pytest.fixture(scope="module")
def adapters(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters that peft made, in one folder."""
    folder = tmp_path_factory.mktemp("adapters")
    return {name: adapt(served_model, folder / name, seed).adapter for seed, name in enumerate(("first", "second"), start=1)}


@pytest.fixture(scope="module")
def alone(served_model: Path, adapters: dict[str, Path]) -> Answers:
    made = {}
    with lm.Engine(served_model, dtype="float32", adapters=adapters) as engine:
        for adapter in ("", *adapters):
            for prompt in PROMPTS:
                (answer,) = engine.generate([prompt], max_tokens=TOKENS, temperature=0.0, adapter=adapter or None)
                made[adapter, prompt] = answer.text
    assert len(set(made.values())) == len(made), "all answers differ"
    return made


@pytest.fixture(scope="module")
def server(served_model: Path, adapters: dict[str, Path]) -> Iterator[ServerProcess]:
    given = ("--adapter", f"first={adapters['first']}", "--adapter-folder", str(adapters["first"].parent))
    with ServerProcess(served_model, "--tp", "2", "--max-running", "4", *given) as running:
        yield running
        assert running.drain() == 0


def answer(server: ServerProcess, prompt: str, *, adapter: str = "", stream: bool = False) -> str:
    """Return the greedy continuation of a prompt."""
    made: Any = server.client.completions.create(
        model=adapter or server.name, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=stream
    )
    return "".join(part.choices[0].text for part in made) if stream else made.choices[0].text


def post(server: ServerProcess, path: str, **body: object) -> dict[str, Any]:
    return server.client.post(path, cast_to=dict, body=body)


def test_many_clients_get_what_each_prompt_gives_alone(server: ServerProcess, alone: Answers) -> None:
    jobs = [(prompt, ("", "first")[number % 3 == 0], number % 2 == 0) for number, prompt in enumerate(PROMPTS * 3)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: answer(server, job[0], adapter=job[1], stream=job[2]), jobs))
    assert answers == [alone[adapter, prompt] for prompt, adapter, _ in jobs]


def test_adapters_come_and_go_beside_requests(server: ServerProcess, alone: Answers) -> None:
    before = server.metrics()
    asked = PROMPTS * 2

    def steadily(adapter: str) -> list[str]:
        return [answer(server, prompt, adapter=adapter, stream=True) for prompt in asked]

    with ThreadPoolExecutor(2) as pool:
        streams = {adapter: pool.submit(steadily, adapter) for adapter in ("", "first")}
        for prompt in PROMPTS[:ROUNDS]:
            loaded = post(server, "/load_lora_adapter", lora_name="hot", lora_path="second")
            assert [card.id for card in server.client.models.list()] == [server.name, "first", "hot"]
            assert answer(server, prompt, adapter="hot") == alone["second", prompt]
            assert post(server, "/load_lora_adapter", lora_name="hot", lora_path="first")["digest"] != loaded["digest"]
            assert answer(server, prompt, adapter="hot") == alone["first", prompt], "no cache of what had the name"
            assert post(server, "/unload_lora_adapter", lora_name="hot")["bytes"] == loaded["bytes"]
        for adapter, future in streams.items():
            assert future.result() == [alone[adapter, prompt] for prompt in asked]
    found = {name: value - before.get(name, 0) for name, value in server.metrics().items()}
    for adapter, times in (("", len(asked)), ("first", len(asked)), ("hot", 2 * ROUNDS)):
        assert found[f"loadmaster_adapter_requests_total{{adapter={adapter}}}"] == times
    assert found["loadmaster_adapters_loaded"] == 0, "one was there before, and one is there"
    with pytest.raises(openai.NotFoundError):
        answer(server, PROMPTS[0], adapter="hot")


def test_a_bad_adapter_is_refused_with_the_offenders(server: ServerProcess, adapters: dict[str, Path], alone: Answers) -> None:
    tensors = adapter_tensors(adapters["second"])
    write_adapter_tensors(adapters["second"], {name.replace("layers.1.", "layers.7."): tensors[name] for name in tensors})
    with pytest.raises(openai.UnprocessableEntityError, match=r"layers\.7\.") as caught:
        post(server, "/load_lora_adapter", lora_name="first", lora_path="second")
    write_adapter_tensors(adapters["second"], tensors)
    assert str(caught.value.code).startswith("LM-ADAPTER-")
    assert str(adapters["second"].parent) not in caught.value.message
    assert answer(server, PROMPTS[0], adapter="first") == alone["first", PROMPTS[0]], "what had the name is still there"
    with pytest.raises(openai.PermissionDeniedError):
        post(server, "/load_lora_adapter", lora_name="x", lora_path="..")
