"""Health, metrics and the key."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from fake_adapters import write_fake_adapter
from fake_api import sample_report
from fake_serving import FakeServingEngine
from loadmaster.serving.http.app import make_app
from loadmaster.serving.http.gate import Gate
from loadmaster.serving.http.host import LOOPBACK
from loadmaster.serving.http.settings import ServerSettings

BODY = {"model": "tiny", "prompt": "x" * 8, "max_tokens": 3}


def _samples(client: TestClient) -> dict[str, float]:
    """Return all samples of `/metrics` as `name{label=value}`."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_health_tells_stage_and_heartbeat() -> None:
    engine = FakeServingEngine()
    with TestClient(make_app(engine, ServerSettings(models=("tiny",)))) as client:
        response = client.get("/health")
        assert response.status_code == 200
        assert response.json() == {
            "healthy": True,
            "status": "ok",
            "stage": "serve",
            "last_step_age": 0.5,
            "running": 0,
            "waiting": 3,
        }
        engine.alive = False
        response = client.get("/health")
    assert response.status_code == 503
    assert (response.json()["healthy"], response.json()["status"]) == (False, "dead")


def test_a_closing_server_is_not_healthy_and_takes_no_requests() -> None:
    gate = Gate()
    with TestClient(make_app(FakeServingEngine(), ServerSettings(models=("tiny",)), gate)) as client:
        assert asyncio.run(gate.close(1.0))  # nobody is inside
        refused = client.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) > 0
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")


def test_metrics_add_up() -> None:
    engine = FakeServingEngine()
    settings = ServerSettings(models=("tiny",), report=sample_report())
    with TestClient(make_app(engine, settings)) as client:
        for _ in range(3):
            assert client.post("/v1/completions", json=BODY).status_code == 200
        assert client.post("/v1/completions", json={}).status_code == 400
        client.get("/health")  # it reads the engine too, and must not swallow times to first token
        client.get("/made-up")
        found = _samples(client)
    assert found["loadmaster_http_responses_total{path=/v1/completions}{status=200}"] == 3
    assert found["loadmaster_http_responses_total{path=/v1/completions}{status=400}"] == 1
    assert found["loadmaster_http_responses_total{path=other}{status=404}"] == 1
    assert found["loadmaster_requests_total{outcome=done}"] == 3
    assert found["loadmaster_requests_waiting"] == 3
    assert (found["loadmaster_prompt_tokens_total"], found["loadmaster_generated_tokens_total"]) == (24, 9)
    assert (found["loadmaster_kv_use_ratio"], found["loadmaster_prefix_hit_ratio"]) == (0.25, 0.25)
    assert found["loadmaster_time_to_first_token_seconds_count"] == 3
    assert found["loadmaster_time_to_first_token_seconds_sum"] == 0.75
    assert found["loadmaster_time_to_first_token_seconds_bucket{le=0.15}"] == 0
    assert found["loadmaster_time_to_first_token_seconds_bucket{le=0.3}"] == 3
    assert found["loadmaster_up"] == 1
    assert found["loadmaster_load_seconds{stage=load}"] == 0.5
    assert found["loadmaster_load_bytes{kind=read}"] == 200_000_000
    assert found["loadmaster_load_amplification"] == 1.0


def test_adapters_are_counted_apart(tmp_path: Path) -> None:
    write_fake_adapter(tmp_path / "one", b"one")
    engine = FakeServingEngine()
    with TestClient(make_app(engine, ServerSettings(models=("tiny",), adapter_folder=str(tmp_path)))) as client:
        asked = {"lora_name": "mine", "lora_path": "one"}
        assert client.post("/v1/load_lora_adapter", json=asked).status_code == 200
        for model, times in (("tiny", 1), ("mine", 2)):
            for _ in range(times):
                assert client.post("/v1/completions", json=BODY | {"model": model}).status_code == 200
        found = _samples(client)
        assert found["loadmaster_adapter_requests_total{adapter=}"] == 1
        assert found["loadmaster_adapter_requests_total{adapter=mine}"] == 2
        assert found["loadmaster_adapter_prompt_tokens_total{adapter=mine}"] == 16
        assert found["loadmaster_adapter_cached_tokens_total{adapter=mine}"] == 4
        assert found["loadmaster_adapter_prefix_hit_ratio{adapter=mine}"] == 0.25
        assert (found["loadmaster_adapters_loaded"], found["loadmaster_adapter_bytes{adapter=mine}"]) == (1, 3)
        assert found["loadmaster_http_responses_total{path=/v1/load_lora_adapter}{status=200}"] == 1
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
        found = _samples(client)
        assert found["loadmaster_adapters_loaded"] == 0
        assert "loadmaster_adapter_bytes{adapter=mine}" not in found
        assert found["loadmaster_adapter_requests_total{adapter=mine}"] == 2, "counters do not go back"


def test_responses_are_logged_on_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    with (
        TestClient(make_app(FakeServingEngine(), ServerSettings(models=("tiny",)))) as client,
        caplog.at_level(logging.INFO, "loadmaster.serving"),
    ):
        client.get("/v1/models/a%0Ab")
    assert caplog.messages == [r"GET '/v1/models/a\nb' 404"]


def test_two_servers_in_one_process_do_not_share_metrics() -> None:
    for _ in range(2):
        with TestClient(make_app(FakeServingEngine(), ServerSettings(models=("tiny",)))) as client:
            client.post("/v1/completions", json=BODY)
            assert _samples(client)["loadmaster_requests_total{outcome=done}"] == 1


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer s3cret2", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer sch\u00f6n", 401),
        ("Bearer s3cret", 200),
        ("bearer  s3cret", 200),
    ],
)
def test_a_key_is_demanded_everywhere_but_for_health(header: str | None, status: int) -> None:
    headers = {"authorization": header.encode("latin-1")} if header else None
    with TestClient(make_app(FakeServingEngine(), ServerSettings(models=("tiny",), key="s3cret"))) as client:
        for path in ("/v1/models", "/metrics"):
            response = client.get(path, headers=headers)  # type: ignore[arg-type]
            assert response.status_code == status
        response = client.post("/v1/completions", json=BODY, headers=headers)  # type: ignore[arg-type]
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("", 421),
    ],
)
def test_a_server_that_relies_on_loopback_answers_under_its_names_only(host: str, status: int) -> None:
    app = make_app(FakeServingEngine(), ServerSettings(models=("tiny",), hosts=LOOPBACK))
    with TestClient(app) as client:
        for path in ("/v1/models", "/health", "/metrics"):
            assert client.get(path, headers={"host": host}).status_code == status
        assert client.post("/v1/completions", json=BODY, headers={"host": host}).status_code == status
