"""64 clients at once, as long as LOADMASTER_LOAD_SECONDS says: nothing is lost, nothing is changed, and the counters add up.

They stream or wait for the whole, complete texts or chat, are greedy or draw, use an adapter or none, and some leave early.

For a minute, with the figures: LOADMASTER_LOAD_SECONDS=60 pytest -s tests/integration/test_server_load.py
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from openai import AsyncOpenAI

import loadmaster as lm
from live_server import eventually
from peft_adapters import adapt
from server_process import WAIT_SECONDS, ServerProcess

CLIENTS: Final = 64
SECONDS: Final = float(os.environ.get("LOADMASTER_LOAD_SECONDS", "2"))
STORY: Final = "Once upon a time there was a server with many clients, and "
"""The beginning of half of the prompts: it is shared through the prefix cache."""

ADAPTER: Final = "mine"
ENDLESS: Final = 300
"""Tokens of an answer whose client leaves."""


class Asked(NamedTuple):
    """A request: its adapter or none, a text to continue or a turn of a chat, and how its tokens are drawn."""

    adapter: str
    chat: bool
    text: str
    max_tokens: int
    seed: int | None


class Answered(NamedTuple):
    """What came back."""

    text: str
    finish: str | None
    prompt_tokens: int
    tokens: int


REQUESTS: Final = [
    Asked(("", ADAPTER)[number % 3 == 0], number % 4 == 3, f"{STORY * (number % 2)}number {number}", 6 + number, seed)
    for number in range(12)
    for seed in (None, 7)
]


async def create(client: AsyncOpenAI, model: str, asked: Asked, *, stream: bool, **more: Any) -> Any:
    """Send a request. Greedy without a seed, sampled with one."""
    sampling = {"temperature": 0} if asked.seed is None else {"temperature": 1, "seed": asked.seed}
    fields = {"model": asked.adapter or model, "max_tokens": asked.max_tokens, "stream": stream, **sampling, **more}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    if asked.chat:
        return await client.chat.completions.create(messages=[{"role": "user", "content": asked.text}], **fields)
    return await client.completions.create(prompt=asked.text, **fields)


def read(choice: Any) -> str:
    """Return the text of a choice, or of a piece of it."""
    if hasattr(choice, "text"):
        return choice.text  # type: ignore[no-any-return]
    return (choice.delta if hasattr(choice, "delta") else choice.message).content or ""


async def complete(client: AsyncOpenAI, model: str, asked: Asked, *, stream: bool) -> Answered:
    """Return the whole answer to a request."""
    made = await create(client, model, asked, stream=stream)
    parts = [part async for part in made] if stream else [made]
    choices = [choice for part in parts for choice in part.choices]
    usage = parts[-1].usage
    text = "".join(map(read, choices))
    return Answered(text, choices[-1].finish_reason, usage.prompt_tokens, usage.completion_tokens)


async def leave(client: AsyncOpenAI, model: str, asked: Asked, expected: Answered) -> None:
    """Begin an answer that would take long and go away after its first piece."""
    endless = asked._replace(max_tokens=ENDLESS)
    made = await create(client, model, endless, stream=True, extra_body={"ignore_eos": True})
    try:
        async for part in made:
            if piece := read(part.choices[0]):
                assert expected.text.startswith(piece[: len(expected.text)])
                return
    finally:
        await made.close()


class Load:
    """All clients, and what they have counted."""

    def __init__(self, model: str, expected: dict[Asked, Answered]) -> None:
        self.count: Counter[str] = Counter()
        self._model = model
        self._expected = expected

    async def run(self, url: str, seconds: float) -> None:
        """Ask for that long; whoever has begun then gets its whole answer."""
        end = time.monotonic() + seconds
        async with (
            AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=WAIT_SECONDS) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(CLIENTS):
                group.create_task(self._ask(client, random.Random(number), end))

    async def _ask(self, client: AsyncOpenAI, dice: random.Random, end: float) -> None:
        while time.monotonic() < end:
            asked = dice.choice(REQUESTS)
            expected = self._expected[asked]
            if dice.random() < 0.1:
                await leave(client, self._model, asked, expected)
                self.count["left"] += 1
            else:
                answered = await complete(client, self._model, asked, stream=dice.random() < 0.5)
                assert answered == expected, asked
                self.count.update(done=1, tokens=answered.tokens)
            self.count["prompt"] += expected.prompt_tokens


async def each_alone(url: str, model: str) -> dict[Asked, Answered]:
    """Return the server's answer to every request when there is no other."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=WAIT_SECONDS) as client:
        return {asked: await complete(client, model, asked, stream=False) for asked in REQUESTS}


def check_alone(model: Path, adapter: Path, expected: dict[Asked, Answered]) -> None:
    """Compare the greedy answers with those of an engine without a server."""
    with lm.Engine(model, dtype="float32", adapters={ADAPTER: adapter}) as engine:
        for asked, answered in expected.items():
            if asked.seed is None:
                options: dict[str, Any] = {"max_tokens": asked.max_tokens, "chat": asked.chat, "adapter": asked.adapter or None}
                assert engine.generate([asked.text], temperature=0.0, **options)[0].text == answered.text, asked


def test_a_load_of_64_clients_loses_nothing(served_model: Path, tmp_path: Path) -> None:
    adapter = adapt(served_model, tmp_path / "adapter").adapter
    options = ("--max-running", "32", "--kv-bytes", "2MiB", "--max-model-len", "448", "--adapter", f"{ADAPTER}={adapter}")
    # The cache is small, so that most requests wait, and some that run are put back and computed again.
    with ServerProcess(served_model, *options) as server:
        expected = asyncio.run(each_alone(server.url, server.name))
        check_alone(served_model, adapter, expected)
        load = Load(server.name, expected)
        before = server.metrics()
        begin = time.monotonic()
        asyncio.run(load.run(server.url, SECONDS))
        took = time.monotonic() - begin
        assert eventually(lambda: not server.metrics()["loadmaster_requests_running"], 20)
        found = {name: value - before.get(name, 0) for name, value in server.metrics().items()}
        count = load.count
        generated, preemptions = found["loadmaster_generated_tokens_total"], found["loadmaster_preemptions_total"]
        print(
            f"\n{CLIENTS} clients, {took:.1f} s: {count['done']} answers, {count['left']} broken off; "
            f"{count['tokens'] / took:.0f} tokens/s of answers, {generated / took:.0f} in all; {preemptions:.0f} preemptions"
        )
        check_counters(found, count)
        assert server.metrics()["loadmaster_kv_blocks_used"] == 0
        assert server.drain() == 0


def check_counters(found: dict[str, float], count: Counter[str]) -> None:
    """Compare what the server has counted with what the clients have."""
    ended = {outcome: found[f"loadmaster_requests_total{{outcome={outcome}}}"] for outcome in ("done", "cancelled", "failed")}
    assert (ended["done"], ended["cancelled"], ended["failed"]) == (count["done"], count["left"], 0)
    assert min(count["done"], count["left"]) > 0
    assert found["loadmaster_prompt_tokens_total"] == count["prompt"]
    assert found["loadmaster_generated_tokens_total"] >= count["tokens"] + count["left"]
    assert found["loadmaster_time_to_first_token_seconds_count"] == count["done"] + count["left"]
    route = "loadmaster_http_responses_total{path=/v1/c"
    responses = {name: value for name, value in found.items() if name.startswith(route)}
    assert all(name.endswith("{status=200}") for name in responses), responses
    assert sum(responses.values()) == count["done"] + count["left"]
