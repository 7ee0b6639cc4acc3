"""`loadmaster serve`: its settings, its refusals, and the whole command as a process that gets signals."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from command_line import Invoke
from fake_adapters import write_fake_adapter
from fake_serving import FakeServingEngine, expected_text
from loadmaster.cli.serve_options import ByteCount
from loadmaster.serving.http import launch
from loadmaster.serving.http.settings import ServerSettings
from runnable_model import write_runnable_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("serve") / "tiny-model")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FakeServingEngine, ServerSettings]]:
    """Take the fake engine and serve nobody; returns what would have been served."""
    found: list[tuple[FakeServingEngine, ServerSettings]] = []

    def run_server(engine: Any, settings: ServerSettings, listening: socket.socket, on_start: Any) -> None:
        found.append((engine, settings))
        on_start()

    monkeypatch.setattr(launch, "ENGINE", "fake_serving:FakeServingEngine")
    monkeypatch.setattr(launch, "SETTINGS", "builtins:dict")
    monkeypatch.setattr(launch, "run_server", run_server)
    monkeypatch.delenv("LOADMASTER_API_KEY", raising=False)
    return found


def test_options_reach_engine_and_server(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path
) -> None:
    options = "--tp 2 --dtype float32 --executor multiprocess --port 0 --drain-seconds 5"
    settings_given = "--kv-bytes 64MiB --max-model-len 100 --max-running 4 --max-batch-tokens 99 --no-prefix-cache"
    settings_given += " --max-waiting 0 --adapter-bytes 1MiB --max-adapter-rank 16"
    names = ("--served-model-name", "a", "--served-model-name", "b")
    outcome = invoke("serve", str(model), *options.split(), *settings_given.split(), *names, "--api-key", "k")
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    assert re.search(r"^serving   a, b at http://127\.0\.0\.1:\d+/v1$", outcome.err, re.MULTILINE)
    ((engine, settings),) = served
    assert engine.path == str(model)
    assert engine.settings == {
        "kv_bytes": 64 << 20,
        "max_model_len": 100,
        "max_running": 4,
        "max_waiting": 0,
        "max_batch_tokens": 99,
        "prefix_cache": False,
        "adapter_bytes": 1 << 20,
        "max_adapter_rank": 16,
    }
    assert engine.options.items() >= {"tensor_parallel": 2, "dtype": "float32", "executor": "multiprocess"}.items()
    assert settings.report == engine.model.report
    assert (settings.models, settings.key, settings.drain_seconds) == (("a", "b"), "k", 5.0)


def test_adapters_reach_the_engine_and_their_folder_the_server(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, tmp_path: Path
) -> None:
    given = {name: str(write_fake_adapter(tmp_path / name, name.encode())) for name in ("a", "b")}
    adapters = [part for name, path in given.items() for part in ("--adapter", f"{name}={path}")]
    outcome = invoke("serve", str(model), "--port", "0", *adapters, "--adapter-folder", str(tmp_path))
    assert outcome.code == 0, outcome.err
    assert "serving   tiny-model, a, b at http" in outcome.err
    ((engine, settings),) = served
    assert (engine.options["adapters"], engine.options["adapter_mode"]) == (given, "live")
    assert (settings.models, settings.adapter_folder) == (("tiny-model",), str(tmp_path))
    assert invoke("serve", str(model), "--adapter-folder", str(tmp_path / "none")).code == 2


@pytest.mark.parametrize(("given", "names"), [((), ("mine",)), (("--served-model-name", "both"), ("both",))])
def test_a_merged_adapter_gives_the_model_its_name(
    invoke: Invoke,
    served: list[tuple[FakeServingEngine, ServerSettings]],
    model: Path,
    given: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    merged = ("--adapter", "mine=folder", "--adapter-mode", "merged")
    assert invoke("serve", str(model), "--port", "0", *merged, *given).code == 0
    assert served[0][1].models == names


@pytest.mark.parametrize("given", [(), ("--served-model-name", "other", "--served-model-name", "tiny-model")])
def test_an_adapter_cannot_be_called_like_the_model(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, given: tuple[str, ...]
) -> None:
    outcome = invoke("serve", str(model), "--port", "0", "--adapter", "tiny-model=folder", *given)
    assert outcome.code == 2
    assert "LM-SERVE-NAME" in outcome.err
    assert not served


def test_what_is_not_said_is_left_to_the_engine(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path
) -> None:
    assert invoke("serve", str(model), "--port", "0").code == 0
    ((engine, settings),) = served
    assert engine.settings == {}
    assert engine.options["executor"] is None
    assert (settings.models, settings.key) == (("tiny-model",), "")
    assert {"localhost", "127.0.0.1", "[::1]"} <= set(settings.hosts)


def test_a_loopback_server_answers_under_the_address_it_was_given(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path
) -> None:
    assert invoke("serve", str(model), "--port", "0", "--host", "127.0.0.9").code == 0
    assert "127.0.0.9" in served[0][1].hosts


def test_the_key_may_come_from_the_environment(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_API_KEY", "from-outside")
    outcome = invoke("serve", str(model), "--port", "0", "--host", "0.0.0.0")
    assert (served[0][1].key, served[0][1].hosts) == ("from-outside", ())
    assert "notice" not in outcome.err


def test_an_open_address_without_a_key_is_noticed(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path
) -> None:
    assert "everybody who reaches 0.0.0.0" in invoke("serve", str(model), "--port", "0", "--host", "0.0.0.0").err
    assert "everybody" not in invoke("serve", str(model), "--port", "0", "--host", "localhost").err


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ("{}", (1.0, 0, 1.0)),
        ('{"temperature": 0.6, "top_p": 0.9, "top_k": 20}', (0.6, 20, 0.9)),
        ('{"do_sample": false, "temperature": 0.6}', (0.0, 0, 1.0)),
    ],
)
def test_the_model_decides_how_it_samples_by_default(
    invoke: Invoke,
    served: list[tuple[FakeServingEngine, ServerSettings]],
    tmp_path: Path,
    generation: str,
    expected: tuple[float, int, float],
) -> None:
    folder = write_runnable_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")
    assert invoke("serve", str(folder), "--port", "0").code == 0
    defaults = served[0][1].defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == expected


def test_a_taken_port_is_refused_before_anything_is_loaded(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = invoke("serve", str(model), "--port", str(taken.getsockname()[1]))
    assert outcome.code == 2
    assert "LM-SERVE-ADDRESS" in outcome.err
    assert "in use" in outcome.err
    assert not served


def test_an_unknown_host_and_a_missing_model_are_refused(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, tmp_path: Path
) -> None:
    assert "LM-SERVE-ADDRESS" in invoke("serve", str(model), "--host", "no such host").err
    assert invoke("serve", str(tmp_path / "none"), "--port", "0").code != 0
    assert not served


@pytest.mark.parametrize("key", ["", "two words", "sch\u00f6n"])
def test_a_key_that_no_header_carries_is_refused(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, key: str
) -> None:
    outcome = invoke("serve", str(model), "--port", "0", "--api-key", key)
    assert outcome.code == 2
    assert "printable ASCII" in outcome.err


def test_a_missing_extra_is_named(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    outcome = invoke("serve", str(model))
    assert outcome.code == 2
    assert "LM-SERVE-EXTRA" in outcome.err
    assert "missing: uvicorn" in outcome.err
    assert "pip install 'loadmaster[serve]'" in outcome.err


@pytest.mark.parametrize(
    ("text", "nbytes"), [("1024", 1024), ("1.5GiB", 3 << 29), ("2gb", 2_000_000_000), ("3 kB", 3000), ("7MiB", 7 << 20)]
)
def test_bytes_are_read_with_units(text: str, nbytes: int) -> None:
    assert ByteCount().convert(text, None, None) == nbytes


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "1TBB", "1e9"])
def test_other_byte_counts_are_refused(
    invoke: Invoke, served: list[tuple[FakeServingEngine, ServerSettings]], model: Path, text: str
) -> None:
    outcome = invoke("serve", str(model), "--kv-bytes", text)
    assert outcome.code == 2
    assert "not a number of bytes" in outcome.err


@contextmanager
def _served_process(model: Path, step: float, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the whole command over the fake engine; gives the process and its base URL."""
    code = (
        "import functools, sys, fake_serving\n"
        "from loadmaster.serving.http import launch\n"
        f"fake_serving.Slow = functools.partial(fake_serving.FakeServingEngine, step={step})\n"
        "launch.ENGINE, launch.SETTINGS = 'fake_serving:Slow', 'builtins:dict'\n"
        "from loadmaster.cli.program import run\n"
        f"sys.exit(run(['serve', {str(model)!r}, '--port', '0', '-q', *{options!r}]))\n"
    )
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.fullmatch(r"serving   tiny-model at (http://\S+)\n", line)
        assert found, line + process.stderr.read()
        yield process, found[1]
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_server_and_the_command_ends_well(model: Path, number: signal.Signals) -> None:
    with _served_process(model, 0.02) as (process, url), OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="tiny-model", prompt="hello", max_tokens=40, stream=True)
        pieces = [next(iter(stream)).choices[0].text]
        process.send_signal(number)
        pieces += [chunk.choices[0].text for chunk in stream]
        assert "".join(pieces) == expected_text([ord(character) for character in "hello"], 40)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_second_interrupt_stops_at_once(model: Path) -> None:
    with _served_process(model, 0.05) as (process, url), OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="tiny-model", prompt="hello", max_tokens=200, stream=True)
        next(iter(stream))
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.4)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert time.monotonic() - begin < 5
        stream.close()
