"""Imports can begin before the first rank is asked for; what began ends with the executor, whatever became of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.executors.process_watch import becomes_true, marked
from engine.executors.toy_services import encode, specs
from loadmaster_engine.executors.inline import InlineFactory
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.errors import WorkerError
from loadmaster_hookspecs.executors import Executor


def make(*preload: str) -> Executor:
    return MultiprocessFactory().create(preload=preload, on_event=lambda event: None)


def test_preparing_imports_without_any_rank_and_ranks_use_what_it_began(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "imports.txt"
    (tmp_path / "noted_module.py").write_text(f"open({str(log)!r}, 'a').write('imported\\n')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = make("noted_module")
    assert not marked(mark), "creating an executor starts nothing"
    executor.prepare()
    executor.prepare()
    assert becomes_true(log.exists, 10.0)
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    executor.start(specs(2), timeout=20)
    executor.stop()
    assert log.read_text() == "imported\n"


def test_preparing_does_not_wait_and_what_it_began_can_be_stopped(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleepy_module.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = make("sleepy_module")
    begin = time.monotonic()
    executor.prepare()
    assert len(marked(mark)) == 1
    executor.stop()
    assert time.monotonic() - begin < 10
    assert not marked(mark)


def test_an_executor_that_is_forgotten_after_preparing_leaves_nothing(mark: str) -> None:
    executor = make()
    executor.prepare()
    assert len(marked(mark)) == 1
    del executor
    assert becomes_true(lambda: not marked(mark), 5.0)


def test_what_fails_while_preparing_is_told_by_the_next_start(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sick_module.py").write_text("raise OSError('bad weather')")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = make("sick_module")
    executor.prepare()
    assert becomes_true(lambda: "loadmaster-fork" not in marked(mark).values(), 10.0)
    with pytest.raises(WorkerError, match="bad weather") as caught:
        executor.start(specs(1), timeout=20)
    assert caught.value.report.where["preload"] == "sick_module"
    executor.stop()


def test_inline_has_nothing_to_prepare(mark: str) -> None:
    executor = InlineFactory().create(preload=["nowhere_to_be_found"], on_event=lambda event: None)
    executor.prepare()
    assert not marked(mark)
    executor.stop()


def test_imports_are_not_interrupted_by_collections_and_workers_collect_again(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "collector.txt"
    (tmp_path / "asking_module.py").write_text(f"import gc\nopen({str(log)!r}, 'a').write(str(gc.isenabled()))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = make("asking_module")
    executor.start(specs(1), timeout=20)
    (answer,) = executor.call("collector", b"", timeout=5)
    executor.stop()
    assert log.read_text() == "False"
    assert answer.body == encode([True, True]), "workers collect, and leave alone what the server imported"
