"""The official client against a server on a real socket: what it asks for, it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, InternalServerError, OpenAI

from fake_serving import FakeServingEngine, expected_text
from live_server import MODEL, Live, client_of, live_server

HELLO = [ord(character) for character in "hello"]
MESSAGES: list[Any] = [{"role": "system", "content": "brief"}, {"role": "user", "content": "hi"}]
CHAT = [ord(character) for character in "system=brief\nuser=hi\n"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[OpenAI]:
    with client_of(live) as made:
        yield made


def test_the_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "loadmaster"


def test_a_completion(client: OpenAI, live: Live) -> None:
    answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=7)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (expected_text(HELLO, 7), "length", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 7, 12)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert live.engine.asked[-1].temperature == 1.0


def test_a_completion_has_sixteen_tokens_unless_it_says(client: OpenAI) -> None:
    assert len(client.completions.create(model=MODEL, prompt="hello").choices[0].text) == 16


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (["hello", "b"], [HELLO, [98]]),
        (HELLO, [HELLO]),
        ([HELLO, [98, 99]], [HELLO, [98, 99]]),
    ],
)
def test_prompts_come_in_four_forms_and_choices_in_their_order(client: OpenAI, prompt: Any, ids: list[list[int]]) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, n=2, seed=10)
    expected = [expected_text(prompt, 4, seed) for prompt in ids for seed in (10, 11)]
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert answer.usage.completion_tokens == 4 * len(expected)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == sum(len(prompt) // 4 for prompt in ids)


def test_sampling_reaches_the_engine(client: OpenAI, live: Live) -> None:
    client.completions.create(
        model=MODEL,
        prompt="x",
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        stop=["!"],
        seed=-1,
        extra_body={"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "stop_token_ids": [2]},
    )
    asked = live.engine.asked[-1]
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (3, 0.5, 0.9, 5, 0.05)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty) == (0.1, -0.2, 1.1)
    assert (asked.stop, asked.stop_ids, asked.ignore_eos, asked.logprobs) == (("!",), (2,), True, None)
    assert asked.seed == (1 << 62) - 1


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    text = expected_text(HELLO, 12)
    choice = client.completions.create(model=MODEL, prompt="hello", max_tokens=12, stop=text[5:8]).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(text[5:8])], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_in_front(client: OpenAI, stream: bool) -> None:
    answer: Any = client.completions.create(model=MODEL, prompt=HELLO, max_tokens=3, echo=True, stream=stream)
    pieces = [chunk.choices[0].text for chunk in answer] if stream else [answer.choices[0].text]
    assert "".join(pieces) == "hello" + expected_text(HELLO, 3)


def test_logprobs_of_a_completion_are_lists(client: OpenAI) -> None:
    text = expected_text(HELLO, 3)
    whole = client.completions.create(model=MODEL, prompt="hello", max_tokens=3, logprobs=5).choices[0].logprobs
    assert whole is not None
    assert whole.tokens == list(text)
    assert whole.token_logprobs == [-0.5] * 3
    assert whole.text_offset == [0, 1, 2]
    assert whole.top_logprobs == [{"A": -1, "B": -2, "C": -3, "D": -4, "E": -9999, letter: -0.5} for letter in text]
    chunks = list(client.completions.create(model=MODEL, prompt="hello", max_tokens=3, logprobs=0, stream=True))
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    assert [offset for part in streamed if part for offset in part.text_offset or []] == [0, 1, 2]
    assert [top for part in streamed if part for top in part.top_logprobs or []] == [{letter: -0.5} for letter in text]


def test_a_chat(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=6, user="me")
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected_text(CHAT, 6))
    assert (choice.finish_reason, choice.logprobs) == ("length", None)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(CHAT)


def test_a_chat_may_fill_the_context(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len(answer.choices[0].message.content or "") == live.engine.max_model_len - len(CHAT)


def test_messages_may_have_parts_and_an_answer_can_be_sent_back(client: OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2).choices[0].message
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[Any] = [{"role": "developer", "content": "d"}, first.model_dump(), {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    rendered = f"system=d\nassistant={expected_text(CHAT, 2)}\nuser=ab\n"
    assert answer.choices[0].message.content == expected_text([ord(character) for character in rendered], 5)


def test_a_streamed_chat_comes_token_by_token_with_usage_last(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True, stream_options=options)
    )
    *pieces, last = chunks
    deltas = [chunk.choices[0].delta for chunk in pieces]
    assert [delta.role for delta in deltas] == ["assistant", *[None] * 5]
    assert [delta.content for delta in deltas] == ["", *expected_text(CHAT, 4), None]
    assert [chunk.choices[0].finish_reason for chunk in pieces] == [*[None] * 5, "length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in pieces)
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(CHAT), 4)


def test_streamed_choices_are_told_apart(client: OpenAI) -> None:
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=3, seed=1, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [expected_text(CHAT, 5, seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_are_records(client: OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=1, stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert [(token.token, token.logprob, token.bytes) for token in tokens] == [
        (letter, -0.5, [ord(letter)]) for letter in expected_text(CHAT, 2)
    ]
    assert [[(top.token, top.logprob) for top in token.top_logprobs] for token in tokens] == [[("A", -1.0)]] * 2


def test_an_engine_that_fails_is_an_error_for_the_client() -> None:
    engine = FakeServingEngine()
    engine.fail_at = 2
    with live_server(engine) as live, client_of(live) as client:
        with pytest.raises(InternalServerError, match="rank 1 died") as caught:
            client.completions.create(model=MODEL, prompt="hello", max_tokens=5)
        assert caught.value.code == "engine_error"


def test_an_engine_that_fails_in_a_stream_is_an_error_after_what_came() -> None:
    engine = FakeServingEngine()
    engine.fail_at = 2
    pieces: list[str] = []
    with live_server(engine) as live, client_of(live) as client:
        stream = client.completions.create(model=MODEL, prompt="hello", max_tokens=5, stream=True)
        with pytest.raises(APIError, match="rank 1 died") as caught:
            pieces.extend(chunk.choices[0].text for chunk in stream)
        assert caught.value.code == "engine_error"
    assert "".join(pieces) == expected_text(HELLO, 2)


def test_many_clients_at_once_lose_nothing() -> None:
    """64 clients, half of them streaming, ask five times each; every answer is the one for its own prompt."""

    async def ask(client: AsyncOpenAI, number: int) -> None:
        for turn in range(5):
            prompt = [100 + number, 200 + turn]
            if number % 2:
                stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, stream=True)
                text = "".join([chunk.choices[0].text async for chunk in stream])
            else:
                text = (await client.completions.create(model=MODEL, prompt=prompt, max_tokens=12)).choices[0].text
            assert text == expected_text(prompt, 12)

    async def ask_all(url: str) -> None:
        async with (
            AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(64):
                group.create_task(ask(client, number))

    with live_server(FakeServingEngine(step=0.001)) as live:
        asyncio.run(ask_all(live.url))
        assert (live.engine.done, live.engine.cancelled, live.engine.failed, live.engine.running) == (320, 0, 0, 0)
