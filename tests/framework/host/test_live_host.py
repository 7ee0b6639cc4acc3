"""Ranks in the caller's process get the caller's host itself, so that plugins may be any objects."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import bigram_family
import loadmaster as lm
from bigram_family import TENSOR, BigramFamily, write_bigram_model
from loadmaster.bringup import record_for
from loadmaster.host import PluginHost, PluginSelection, live, live_record
from loadmaster.plugin import CheckpointIndex, FileRef, FormatLoader, Match, RangeReader, Source, TensorMeta, hookimpl
from loadmaster_engine.plugin_host import rebuild_host
from loadmaster_hookspecs import PluginError
from loadmaster_hookspecs.executors import HostRecord

ALONE = PluginSelection(allowed=(), blocked=("loadmaster",))
START = 128
"""Bytes before the array in a small file that numpy wrote."""


class BigramFile:
    """A format for one known file; counts what ranks open. Not importable by name: every instance differs."""

    name = "bigram-file"

    def __init__(self) -> None:
        self.opened: list[str] = []

    def detect(self, source: Source) -> Match | None:
        return Match(score=1.0, evidence="given by hand")

    def open(self, source: Source) -> CheckpointIndex:
        size = source.size(f"{TENSOR}.npy")
        return CheckpointIndex(
            source=source.uri,
            format=self.name,
            files=(FileRef(id=0, name=f"{TENSOR}.npy", size=size, header_bytes=0, header_sha256=""),),
            tensors={TENSOR: TensorMeta(name=TENSOR, dtype="F32", shape=(8, 8), file=0, start=START, stop=size)},
            config={"model_type": "bigram", "vocab_size": 8},
            fingerprint="",
        )

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        self.opened.append(threading.current_thread().name)
        return source.open(file.name)


class Holder:
    def __init__(self) -> None:
        self.format = BigramFile()
        self.calls = 0

    @hookimpl
    def loadmaster_formats(self) -> Sequence[FormatLoader]:
        self.calls += 1
        return [self.format]


def test_the_record_stands_for_the_very_host() -> None:
    host = PluginHost(ALONE, [Holder()])
    record = live_record(host)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=HostRecord) == record
    assert rebuild_host(record) is host
    assert live(live_record(host)) is host
    other = PluginHost(ALONE)
    assert live(live_record(other)) is other
    assert live(record) is host


def test_the_record_does_not_keep_the_host_alive() -> None:
    record = live_record(PluginHost(ALONE))
    gc.collect()
    with pytest.raises(PluginError) as caught:
        live(record)
    assert (caught.value.code, caught.value.exit_code) == ("LM-PLUGIN-HOST-GONE", 4)


def test_another_process_is_told_that_it_cannot_have_the_host() -> None:
    host = PluginHost(ALONE)
    code = f"""
from loadmaster_engine.plugin_host import rebuild_host
from loadmaster_hookspecs.executors import HostRecord
rebuild_host(HostRecord(factory="loadmaster.host:live", extra={live_record(host).extra!r}))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "LM-PLUGIN-HOST-GONE" in ended.stderr


def test_where_ranks_run_decides_the_record() -> None:
    host = PluginHost(ALONE, ["bigram_family"])
    assert record_for(True, host) == host.record()
    assert record_for(False, host).factory == "loadmaster.host:live"
    with pytest.raises(PluginError, match="LM-PLUGIN-NOT-IMPORTABLE"):
        record_for(True, PluginHost(ALONE, [Holder()]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_inline_engine_uses_the_objects_it_was_given(tmp_path: Path, ranks: int) -> None:
    table = write_bigram_model(tmp_path / "model")
    holder = Holder()
    plugins: list[object] = [holder, bigram_family]
    with lm.Engine(tmp_path / "model", tensor_parallel=ranks, executor="inline", plugins=plugins) as engine:
        assert engine.plan.data.format == "bigram-file"
        assert (engine.logits([1, 2, 3]) == table[[1, 2, 3]]).all()
    # The planner opens files too, to see whether they can be mapped.
    assert len(set(holder.format.opened)) >= ranks
    assert holder.calls == 1


def test_a_hook_is_called_once_whichever_threads_ask_first() -> None:
    barrier = threading.Barrier(4)

    class Slow:
        calls = 0

        @hookimpl
        def loadmaster_models(self) -> Sequence[BigramFamily]:
            Slow.calls += 1
            threading.Event().wait(0.05)
            return [BigramFamily()]

    host = PluginHost(ALONE, [Slow()])
    found: list[object] = []

    def ask() -> None:
        barrier.wait(timeout=10)
        found.append(host.family("bigram"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert Slow.calls == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
