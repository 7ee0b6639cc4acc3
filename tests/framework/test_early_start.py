"""Workers' imports begin before the checkpoint is indexed, and end with an engine that does not come up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.executors.process_watch import becomes_true, marked
from loadmaster import Engine
from loadmaster.host import PluginHost
from loadmaster.preloading import CONFIG_BYTES, early_modules, modules_for
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, PlanError, UsageError
from loadmaster_hookspecs.events import Event, StageFinished, StageStarted
from runnable_model import write_runnable_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("early") / "model")


class Watch:
    """Notes which of a test's processes live when the host's stages start and end. `some`: one lives for certain."""

    def __init__(self, mark: str, *, some: bool = False) -> None:
        self.mark = mark
        self.some = some
        self.seen: list[tuple[str, bool, int]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted | StageFinished):
            if self.some:  # the environment of a process that has just begun is empty for a moment
                becomes_true(lambda: bool(marked(self.mark)), 0.5)
            self.seen.append((event.stage, isinstance(event, StageFinished), len(marked(self.mark))))


def test_a_checkpoint_that_is_damaged_is_refused_while_imports_run_and_nothing_stays(
    mark: str, model: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(model, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    watch = Watch(mark, some=True)
    with pytest.raises(IntegrityError):
        Engine(damaged, tensor_parallel=2, on_event=watch)
    assert watch.seen == [("index", False, 1)]
    assert not marked(mark)


def test_a_split_that_does_not_exist_is_refused_while_imports_run_and_nothing_stays(mark: str, model: Path) -> None:
    watch = Watch(mark, some=True)
    with pytest.raises(PlanError):
        Engine(model, tensor_parallel=4096, on_event=watch)
    assert watch.seen == [("index", False, 1)]
    assert not marked(mark)


def test_bad_addresses_start_nothing(mark: str, model: Path, tmp_path: Path) -> None:
    watch = Watch(mark)
    with pytest.raises(UsageError):
        Engine(model, tensor_parallel=2, distributed_init_method="tcp://", on_event=watch)
    with pytest.raises(LoadmasterError):
        Engine(tmp_path / "nowhere", tensor_parallel=2, on_event=watch)
    assert all(count == 0 for _, _, count in watch.seen)


def test_one_rank_in_this_process_starts_no_other(mark: str, model: Path) -> None:
    watch = Watch(mark)
    with Engine(model, on_event=watch):
        pass
    assert all(count == 0 for _, _, count in watch.seen)


def test_the_configuration_alone_says_what_to_import(model: Path) -> None:
    host = PluginHost()
    early = early_modules(host, host.record(), model)
    assert early == modules_for(host, host.record(), json.loads((model / "config.json").read_text()))
    assert {"torch", "loadmaster_engine.run.service", "loadmaster_engine.run.planning"} <= set(early)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"model_type": 3}', b'{"model_type": "llama"}' + b" " * CONFIG_BYTES, b"\xff"]
)
def test_a_configuration_that_says_nothing_is_left_to_the_index(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    host = PluginHost()
    assert early_modules(host, host.record(), tmp_path) == ()


def test_a_model_without_a_readable_configuration_starts_no_process_before_its_index(
    mark: str, model: Path, tmp_path: Path
) -> None:
    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "config.json").unlink()
    watch = Watch(mark)
    with pytest.raises(LoadmasterError):
        Engine(bare, tensor_parallel=2, on_event=watch)
    assert all(count == 0 for _, _, count in watch.seen)
