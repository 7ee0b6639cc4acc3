"""What the server refuses: with the right status, in the shape of the OpenAI API, naming the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from fake_serving import FakeServingEngine
from loadmaster.serving.http.app import make_app
from loadmaster.serving.http.settings import ServerSettings
from loadmaster_hookspecs.errors import ResourceError, WorkerError

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def engine() -> FakeServingEngine:
    return FakeServingEngine(max_model_len=20)


@pytest.fixture(scope="module")
def client(engine: FakeServingEngine) -> Iterator[TestClient]:
    settings = ServerSettings(models=("tiny", "alias"), max_body_bytes=2000, max_choices=8)
    with TestClient(make_app(engine, settings), raise_server_exceptions=False) as made:
        yield made


def _error(client: TestClient, path: str, body: object) -> tuple[int, str | None, str | None, str]:
    """Return status, param, code and message of a refusal, whose shape is checked."""
    response = client.post(path, json=body)
    document = response.json()
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if response.status_code < 500 else "server_error")
    return response.status_code, error["param"], error["code"], error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"prompt": "hi"}, "prompt", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": -1}, "top_k", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 9}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": 2}, "logprobs", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unsupported_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*USER, {**USER[0], "tool_call_id": "1"}]}, "messages[1].tool_call_id", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "LM-CHAT-TEMPLATE"),
    ],
)
def test_a_chat_is_refused_by_the_name_of_the_field(client: TestClient, fields: Any, param: str, code: str) -> None:
    status, told, told_code, message = _error(client, CHAT, {"model": "tiny", "messages": USER, **fields})
    assert (status, told, told_code) == (400, param, code)
    assert param.rpartition(".")[2].split("[")[0] in message or code == "LM-CHAT-TEMPLATE"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_type"),
        ({"prompt": [[1], "a"]}, "prompt", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": [0x110000]}, None, "LM-USAGE-PROMPT"),
        ({"prompt": ["a"] * 9}, "n", "invalid_value"),
        ({"echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"max_completion_tokens": 2}, "max_completion_tokens", "unknown_parameter"),
        ({"model": 5}, "model", "invalid_type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_refused_alike_streamed_or_not(
    client: TestClient, fields: Any, param: str | None, code: str, stream: bool
) -> None:
    status, told, told_code, _ = _error(client, TEXT, {"model": "tiny", "prompt": "x", "stream": stream, **fields})
    assert (status, told, told_code) == (400, param, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "response_format": {"type": "text"}},
        {"logit_bias": {}, "service_tier": "auto", "store": False, "modalities": ["text"], "functions": None},
        {"user": "me", "metadata": {"a": "b"}, "temperature": None, "stop": None, "seed": None, "stream_options": None},
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(client: TestClient, fields: Any) -> None:
    response = client.post(CHAT, json={"model": "alias", "messages": USER, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == "alias"


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_an_unknown_model_is_not_found(client: TestClient, path: str) -> None:
    content: dict[str, Any] = {"prompt": "x"} if path == TEXT else {"messages": USER}
    status, param, code, message = _error(client, path, {"model": "gpt-4", **content})
    assert (status, param, code) == (404, "model", "model_not_found")
    assert "'gpt-4'" in message
    assert "'tiny', 'alias'" in message
    assert client.get("/v1/models/gpt-4").status_code == 404


def test_too_long_a_prompt_is_refused_with_the_numbers(client: TestClient) -> None:
    status, _, code, message = _error(client, TEXT, {"model": "tiny", "prompt": "x" * 20, "max_tokens": 1})
    assert (status, code) == (400, "context_length_exceeded")
    assert "20 tokens; the request has 20 tokens in the prompt and 1 for the answer, 21 together; shorten the prompt" in message
    status, _, code, message = _error(client, TEXT, {"model": "tiny", "prompt": "x" * 15, "max_tokens": 6})
    assert (status, code) == (400, "context_length_exceeded")
    assert "15 tokens in the prompt and 6 for the answer, 21 together; ask for 5 tokens at most" in message
    assert client.post(TEXT, json={"model": "tiny", "prompt": "x" * 15, "max_tokens": 5}).status_code == 200
    # Without a wish the answer is as long as there is room for.
    assert client.post(TEXT, json={"model": "tiny", "prompt": "x" * 18}).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"\xff",
        b'{"model": "\\ud800"}',
        b"[" * 1500,
        b'{"model": NaN}',
        b'{"a": 1, "model": "tiny"} x',
    ],
)
def test_what_is_not_a_json_object_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_bodies_are_limited_in_size(client: TestClient, engine: FakeServingEngine) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 2000})
    response = client.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert "2000 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(client: TestClient, kind: str) -> None:
    response = client.post(TEXT, content=b'{"model": "tiny", "prompt": "x"}', headers={"content-type": kind} if kind else {})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_unknown_paths_and_methods_have_the_same_shape(client: TestClient) -> None:
    missing = client.get("/v1/engines")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    wrong = client.get(TEXT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


class BrokenEngine(FakeServingEngine):
    """Fails before the first token."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def generate(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (WorkerError("LM-WORKER-DIED", "rank 1 died"), 500, "LM-WORKER-DIED"),
        (ResourceError("LM-ENGINE-DRAINING", "no more requests"), 503, "LM-ENGINE-DRAINING"),
        (ValueError("secret detail"), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_engine_has_a_status_and_tells_no_secrets(error: Exception, status: int, code: str, stream: bool) -> None:
    app = make_app(BrokenEngine(error), ServerSettings(models=("tiny",)))
    with TestClient(app, raise_server_exceptions=False) as client:
        told = _error(client, TEXT, {"model": "tiny", "prompt": "x", "stream": stream})
    assert (told[0], told[2]) == (status, code)
    assert "secret" not in told[3]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_too_many_requests(stream: bool) -> None:
    error = ResourceError("LM-ENGINE-BUSY", "too many requests", why="5 are there", hints=["ask again later"])
    with TestClient(make_app(BrokenEngine(error), ServerSettings(models=("tiny",)))) as client:
        response = client.post(TEXT, json={"model": "tiny", "prompt": "x", "stream": stream})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"] == {
        "message": "too many requests: 5 are there; ask again later",
        "type": "rate_limit_error",
        "param": None,
        "code": "LM-ENGINE-BUSY",
    }
