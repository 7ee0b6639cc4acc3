"""Adapters as models: the official client asks them by name, and plain HTTP loads and unloads them while requests run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, NotFoundError, OpenAI
from openai.types import Completion

from fake_adapters import BUDGET, shift_of, write_fake_adapter
from fake_serving import FakeServingEngine, expected_text
from live_server import MODEL, Live, client_of, eventually, live_server
from loadmaster.serving.http.errors import ApiError
from loadmaster.serving.http.fields import decode
from loadmaster.serving.http.requests import LoadAdapterRequest

HELLO = [ord(character) for character in "hello"]
CHAT = [ord(character) for character in "user=hi\n"]
ONE, TWO = b"one", b"another"

Posted = tuple[int, dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the adapters `one` and `two`, and `wrong`, which fits no model."""
    write_fake_adapter(tmp_path / "adapters" / "one", ONE)
    write_fake_adapter(tmp_path / "adapters" / "two", TWO)
    where = tmp_path / "adapters" / "wrong" / "adapter_model.safetensors"
    write_fake_adapter(where.parent, b"w", unmatched=f"layers.9.q_proj in {where}, nearest: layers.1.q_proj")
    return tmp_path / "adapters"


@pytest.fixture
def live(folder: Path) -> Iterator[Live]:
    with live_server(FakeServingEngine(step=0.002), adapter_folder=str(folder)) as running:
        yield running


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with client_of(live) as made:
        yield made


def post(live: Live, path: str, **body: object) -> Posted:
    """Return status and document of a POST of JSON."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{live.url}/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def load(live: Live, name: str, path: str, **fields: object) -> Posted:
    return post(live, "load_lora_adapter", lora_name=name, lora_path=path, **fields)


def unload(live: Live, name: str) -> Posted:
    return post(live, "unload_lora_adapter", lora_name=name)


def answer(client: OpenAI, model: str, **fields: Any) -> str:
    made: Completion = client.completions.create(model=model, prompt="hello", max_tokens=8, **fields)
    return made.choices[0].text


def test_a_loaded_adapter_is_a_model_with_a_parent(live: Live, client: OpenAI, folder: Path) -> None:
    assert load(live, "mine", "one", pinned=True)[0] == 200
    base, mine = client.models.list().data
    assert base.model_dump().items() >= {"id": MODEL, "root": MODEL, "parent": None, "max_model_len": 256}.items()
    assert mine == client.models.retrieve("mine")
    assert mine.model_dump().items() >= {"id": "mine", "root": "one", "parent": MODEL, "bytes": 3, "pinned": True}.items()
    assert str(folder.parent) not in mine.model_dump_json()
    assert "digest" not in base.model_dump()


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_of_a_request_selects_the_adapter(live: Live, client: OpenAI, stream: bool) -> None:
    load(live, "org/one", "one")
    load(live, "two", "two")
    for model, shift in ((MODEL, 0), ("org/one", shift_of(ONE)), ("two", shift_of(TWO))):
        made: Any = client.completions.create(model=model, prompt="hello", max_tokens=8, n=2, seed=3, stream=stream)
        texts = ["", ""]
        for part in made if stream else [made]:
            assert part.model == model
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == [expected_text(HELLO, 8, seed, shift) for seed in (3, 4)]
    assert client.models.retrieve("org/one").id == "org/one"
    chat = client.chat.completions.create(model="two", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
    assert chat.choices[0].message.content == expected_text(CHAT, 5, shift=shift_of(TWO))


def test_an_unknown_model_is_told_what_there_is(live: Live, client: OpenAI) -> None:
    load(live, "mine", "one")
    with pytest.raises(NotFoundError) as caught:
        answer(client, "yours")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "'yours'" in caught.value.message
    assert "'tiny', 'mine'" in caught.value.message
    with pytest.raises(NotFoundError):
        client.models.retrieve("yours")


def test_of_many_models_some_are_told(live: Live, client: OpenAI) -> None:
    for number in range(25):
        load(live, f"a{number}", "one")
    with pytest.raises(NotFoundError, match="'a18' and 6 more"):
        answer(client, "yours")


def test_a_load_tells_what_was_loaded_and_an_unload_what_came_back(live: Live, client: OpenAI) -> None:
    status, loaded = load(live, "mine", "two")
    assert status == 200
    assert loaded.items() >= {"id": "mine", "kind": "fake", "summary": "2/2 pairs", "bytes": 7, "pinned": False}.items()
    assert len(loaded["digest"]) == 64
    assert load(live, "mine", "two") == (200, loaded)
    status, replaced = load(live, "mine", "one")
    assert (status, replaced["bytes"]) == (200, 3)
    assert replaced["digest"] != loaded["digest"]
    assert answer(client, "mine") == expected_text(HELLO, 8, shift=shift_of(ONE))
    assert unload(live, "mine") == (200, {"id": "mine", "object": "adapter.deleted", "deleted": True, "bytes": 3})
    status, refused = unload(live, "mine")
    assert (status, refused["error"]["code"], refused["error"]["type"]) == (404, "LM-USAGE-ADAPTER", "invalid_request_error")
    with pytest.raises(NotFoundError):
        answer(client, "mine")
    assert answer(client, MODEL) == expected_text(HELLO, 8)


def test_requests_that_run_keep_what_they_began_with(live: Live, client: OpenAI) -> None:
    load(live, "mine", "one")
    stream = client.completions.create(model="mine", prompt="hello", max_tokens=100, stream=True)
    pieces = [next(iter(stream)).choices[0].text]
    load(live, "mine", "two")
    assert answer(client, "mine") == expected_text(HELLO, 8, shift=shift_of(TWO))
    pieces += [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == expected_text(HELLO, 100, shift=shift_of(ONE))


def test_an_unload_waits_for_those_who_use_the_adapter(live: Live, client: OpenAI) -> None:
    load(live, "mine", "one")
    stream = client.completions.create(model="mine", prompt="hello", max_tokens=60, stream=True)
    pieces = [next(iter(stream)).choices[0].text]
    assert unload(live, "mine")[0] == 200
    assert live.engine.running == 0
    pieces += [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == expected_text(HELLO, 60, shift=shift_of(ONE))


@pytest.mark.parametrize(
    ("name", "content", "status", "code", "told"),
    [
        ("wrong", None, 422, "LM-ADAPTER-UNMATCHED", ": layers.9.q_proj in wrong/adapter_model.safetensors,"),
        ("empty", None, 422, "LM-ADAPTER-CONFIG", "adapter_config.json"),
        ("huge", b"h" * (BUDGET + 1), 503, "LM-ADAPTER-BUDGET", f"{BUDGET + 1} bytes"),
    ],
)
def test_a_bad_adapter_is_refused_and_touches_nothing(
    live: Live, client: OpenAI, folder: Path, name: str, content: bytes | None, status: int, code: str, told: str
) -> None:
    (folder / name).mkdir(exist_ok=True)
    if content:
        write_fake_adapter(folder / name, content)
    load(live, "mine", "one")
    before = client.models.list().data
    stream = client.completions.create(model="mine", prompt="hello", max_tokens=50, stream=True)
    pieces = [next(iter(stream)).choices[0].text]
    for taken in ("mine", "bad"):
        found, document = load(live, taken, name)
        assert (found, document["error"]["code"]) == (status, code)
        assert told in document["error"]["message"]
    assert client.models.list().data == before
    pieces += [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == expected_text(HELLO, 50, shift=shift_of(ONE))
    assert live.engine.failed == 0


def test_an_adapter_cannot_take_the_name_of_the_model(live: Live, client: OpenAI) -> None:
    status, document = load(live, MODEL, "one")
    assert (status, document["error"]["code"], document["error"]["param"]) == (409, "name_taken", "lora_name")
    assert answer(client, MODEL) == expected_text(HELLO, 8)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"lora_name": "x"}, "lora_path", "missing_required_parameter"),
        ({"lora_path": "one"}, "lora_name", "missing_required_parameter"),
        ({"lora_name": "", "lora_path": "one"}, "lora_name", "invalid_value"),
        ({"lora_name": "a b", "lora_path": "one"}, "lora_name", "invalid_value"),
        ({"lora_name": "a\nb", "lora_path": "one"}, "lora_name", "invalid_value"),
        ({"lora_name": "x\n", "lora_path": "one"}, "lora_name", "invalid_value"),
        ({"lora_name": "x" * 257, "lora_path": "one"}, "lora_name", "invalid_value"),
        ({"lora_name": 5, "lora_path": "one"}, "lora_name", "invalid_type"),
        ({"lora_name": "x", "lora_path": ""}, "lora_path", "invalid_value"),
        ({"lora_name": "x", "lora_path": "one", "pinned": "yes"}, "pinned", "invalid_type"),
        ({"lora_name": "x", "lora_path": "one", "trust": True}, "trust", "unknown_parameter"),
    ],
)
def test_a_wrong_field_is_named(live: Live, fields: dict[str, object], param: str, code: str) -> None:
    status, document = post(live, "load_lora_adapter", **fields)
    assert (status, document["error"]["param"], document["error"]["code"]) == (400, param, code)
    assert live.engine.adapters.list() == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora_name": "a b"}, "invalid lora_name: a name without spaces and control characters is expected"),
        ({"lora_name": ""}, "invalid lora_name: a text of at least 1 characters is expected"),
        ({"lora_name": 5}, "invalid lora_name: a text is expected, not an integer"),
        ({"lora_name": "x", "pinned": "yes"}, "invalid pinned: true or false is expected, not a text"),
    ],
)
def test_a_refusal_says_in_plain_words_what_is_expected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(json.dumps({"lora_path": "one", **fields}).encode(), LoadAdapterRequest)
    assert caught.value.detail.message == message


def test_bodies_are_bounded(folder: Path) -> None:
    with live_server(adapter_folder=str(folder), max_body_bytes=200) as live:
        assert load(live, "x", "one", more="x" * 200)[0] == 413
        assert post(live, "unload_lora_adapter", lora_name="x" * 200)[0] == 413


def test_without_a_folder_nothing_is_loaded_or_unloaded(folder: Path) -> None:
    with live_server() as live:
        for status, document in (load(live, "mine", str(folder / "one")), unload(live, "mine")):
            assert (status, document["error"]["code"]) == (403, "adapters_not_enabled")
            assert "--adapter-folder DIR" in document["error"]["message"]
        assert live.engine.adapters.list() == ()


def test_a_load_needs_the_key(folder: Path) -> None:
    with live_server(adapter_folder=str(folder), key="k") as live:
        assert load(live, "mine", "one")[0] == 401
        assert unload(live, "mine")[0] == 401


def test_an_adapter_that_goes_while_a_request_comes_is_not_found(live: Live, client: OpenAI) -> None:
    """The name was there when the request was read, and is not when the engine looks."""
    load(live, "gone", "one")
    before = live.engine.adapters.list()
    unload(live, "gone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live.engine.adapters, "list", lambda: before)
        with pytest.raises(APIStatusError) as caught:
            answer(client, "gone")
    assert (caught.value.status_code, caught.value.code) == (404, "LM-USAGE-ADAPTER")


def test_a_client_that_leaves_does_not_stop_a_load(live: Live, client: OpenAI) -> None:
    live.engine.adapters.seconds = 0.3
    request = urllib.request.Request(
        f"{live.url}/load_lora_adapter",
        json.dumps({"lora_name": "mine", "lora_path": "one"}).encode(),
        {"content-type": "application/json"},
    )
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=0.1)
    assert eventually(lambda: len(live.engine.adapters.list()) == 1)
    assert answer(client, "mine") == expected_text(HELLO, 8, shift=shift_of(ONE))
