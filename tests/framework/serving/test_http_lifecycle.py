"""How requests and servers end: clients that leave, clients that do not read, servers that are asked to stop."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from openai import APIError, APITimeoutError, InternalServerError

from fake_serving import FakeServingEngine, expected_text
from live_server import MODEL, Live, client_of, eventually, live_server

LONG = {"model": MODEL, "prompt": "hello", "max_tokens": 200}
HELLO = [ord(character) for character in "hello"]


def _health(live: Live) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{live.root}/health", timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _raw_post(live: Live, body: object, *, receive_buffer: int = 0) -> socket.socket:
    """Send a request on a socket of its own and read nothing."""
    host, _, port = live.root.removeprefix("http://").partition(":")
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    connection.sendall(head.encode() + text)
    return connection


def test_a_client_that_leaves_a_stream_cancels_its_request() -> None:
    with live_server(FakeServingEngine(step=0.02)) as live, client_of(live) as client:
        stream = client.completions.create(**LONG, stream=True)  # type: ignore[call-overload]
        next(iter(stream))
        assert live.engine.running == 1
        stream.close()
        assert eventually(lambda: live.engine.cancelled == 1)
        assert live.engine.running == 0
        assert live.engine.generated < 100


def test_a_client_that_gives_up_waiting_cancels_all_its_choices() -> None:
    with live_server(FakeServingEngine(step=0.02)) as live, client_of(live) as client:
        with pytest.raises(APITimeoutError):
            client.with_options(timeout=0.3).completions.create(**LONG, n=3)  # type: ignore[call-overload]
        assert eventually(lambda: live.engine.cancelled == 3)
        assert live.engine.running == 0
        assert client.completions.create(model=MODEL, prompt="hello", max_tokens=2).choices[0].text == expected_text(HELLO, 2)


def test_a_client_that_does_not_read_is_given_up() -> None:
    engine = FakeServingEngine(max_model_len=100_000)
    body = {"model": MODEL, "prompt": "x" * 90_000, "max_tokens": 5, "n": 100, "echo": True, "stream": True}
    with live_server(engine, send_seconds=0.3) as live, _raw_post(live, body, receive_buffer=4096):
        assert eventually(lambda: len(engine.asked) == 100)
        assert eventually(lambda: engine.running == 0)
        begin = time.monotonic()
        live.stop()
        live.thread.join(5)
        assert time.monotonic() - begin < 4, "the connection is held open"


def test_a_client_that_does_not_send_its_body_is_told() -> None:
    with live_server(body_seconds=0.2) as live:
        host, _, port = live.root.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_server_that_is_to_stop_ends_what_runs_and_takes_nothing_new() -> None:
    engine = FakeServingEngine(step=0.02)
    with live_server(engine) as live, client_of(live) as client, client_of(live) as late:
        stream = client.completions.create(model=MODEL, prompt="hello", max_tokens=50, stream=True)
        pieces = [next(iter(stream)).choices[0].text]
        live.stop()
        assert eventually(lambda: _health(live)[0] == 503)
        assert _health(live)[1]["status"] == "draining"
        with pytest.raises(InternalServerError) as caught:
            late.completions.create(model=MODEL, prompt="late")
        assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
        pieces += [chunk.choices[0].text for chunk in stream]
        assert "".join(pieces) == expected_text(HELLO, 50)
        live.thread.join(10)
        assert not live.thread.is_alive()
    assert (engine.done, engine.cancelled, engine.closed, len(engine.drained)) == (1, 0, 1, 1)
    assert 0 < engine.drained[0] <= 30


def test_what_does_not_end_in_time_is_cut_off_and_told() -> None:
    engine = FakeServingEngine(step=0.05)
    begin = time.monotonic()
    with live_server(engine, drain_seconds=0.3) as live, client_of(live) as client:
        stream = client.completions.create(**LONG, stream=True)  # type: ignore[call-overload]
        pieces = [next(iter(stream)).choices[0].text]
        live.stop()
        with pytest.raises(APIError, match="shutting down") as caught:
            pieces.extend(chunk.choices[0].text for chunk in stream)
    assert caught.value.code == "cancelled"
    assert 1 < len(pieces) < 100
    assert "".join(pieces) == expected_text(HELLO, len(pieces))
    assert engine.closed == 1
    assert time.monotonic() - begin < 8, "all 200 tokens take 10 seconds"


def test_an_idle_server_stops_at_once() -> None:
    with live_server() as live, client_of(live) as client:
        client.models.list()  # leaves a connection that is kept open
        begin = time.monotonic()
        live.stop()
        live.thread.join(5)
        assert time.monotonic() - begin < 4
    assert live.engine.closed == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_counted(stream: bool) -> None:
    with live_server(FakeServingEngine(step=0.5)) as live:
        _raw_post(live, {**LONG, "stream": stream}).close()
        assert eventually(lambda: live.engine.cancelled == 1)
        counted = b'loadmaster_http_responses_total{path="/v1/completions",status="499"} 1.0'
        with urllib.request.urlopen(f"{live.root}/metrics", timeout=5) as response:
            assert counted in response.read()


def test_the_engine_is_relieved_of_its_statistics_though_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.serving.http.server.STATS_SECONDS", 0)
    with live_server() as live, client_of(live) as client:
        client.completions.create(model=MODEL, prompt="hello")
        assert eventually(lambda: not live.engine.first_token)
        with urllib.request.urlopen(f"{live.root}/metrics", timeout=5) as response:
            assert b"loadmaster_time_to_first_token_seconds_count 1.0" in response.read()
