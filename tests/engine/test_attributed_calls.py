"""Whatever fails inside an object of a plugin leaves the kernel as an error that names plugin and call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from bigram_family import TENSOR, BigramFamily, write_bigram_model
from loadmaster.checkpoints import Checkpoint, open_index
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.plugin import (
    CheckpointIndex,
    FileReader,
    FileRef,
    Finding,
    IntegrityError,
    Match,
    ModelOutline,
    ModelSpec,
    ModulePlacement,
    ModuleSpec,
    Placement,
    PluginError,
    RangeReader,
    ResourceError,
    Source,
    TensorMeta,
    Tokenizer,
    Topology,
    Unit,
    hookimpl,
)
from loadmaster_engine.plan import make_plan
from loadmaster_hookspecs.plan import PlanSettings


class Trap:
    """Breaks where it is told to, with the error it is told to raise."""

    def __init__(self, at: str, error: Exception | None = None) -> None:
        self.at = at
        self.error = error or ZeroDivisionError("division by zero")

    def __call__(self, at: str) -> None:
        if at == self.at:
            raise self.error


class TrapReader:
    def __init__(self, trap: Trap, reader: RangeReader) -> None:
        self.trap, self.reader = trap, reader

    def read_into(self, offset: int, view: memoryview) -> int:
        self.trap("read_into")
        return self.reader.read_into(offset, view)

    def mapping(self) -> memoryview | None:
        self.trap("mapping")
        return self.reader.mapping()

    def close(self) -> None:
        self.reader.close()
        self.trap("close")


class TrapFormat:
    name = "trap"

    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def detect(self, source: Source) -> Match | None:
        return Match(score=1.0, evidence="trap")

    def open(self, source: Source) -> CheckpointIndex:
        self.trap("open")
        size = source.size(f"{TENSOR}.npy")
        return CheckpointIndex(
            source=source.uri,
            format=self.name,
            files=(FileRef(id=0, name=f"{TENSOR}.npy", size=size, header_bytes=0, header_sha256=""),),
            tensors={TENSOR: TensorMeta(name=TENSOR, dtype="F32", shape=(8, 8), file=0, start=size - 256, stop=size)},
            config={"model_type": "bigram", "vocab_size": 8},
            fingerprint="",
        )

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        self.trap("reader")
        return TrapReader(self.trap, source.open(file.name))


class TrapFamily(BigramFamily):
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def outline(self, config: Mapping[str, Any]) -> ModelOutline:
        self.trap("outline")
        return super().outline(config)

    def describe(self, index: CheckpointIndex) -> ModelSpec:
        self.trap("describe")
        return super().describe(index)

    def build(self, config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> Any:
        self.trap("build")
        return super().build(config, dtype, placements)

    def tokenizer(self, index: CheckpointIndex, read: FileReader) -> Tokenizer:
        self.trap("tokenizer")
        return super().tokenizer(index, read)


class TrapStrategy:
    name = "tensor-parallel"

    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def check(self, outline: ModelOutline, topology: Topology) -> Sequence[Finding]:
        self.trap("check")
        return ()

    def place(self, module: ModuleSpec, units: Mapping[str, Unit], topology: Topology, rank: int) -> Placement:
        self.trap("place")
        return Placement()


class TrapCast:
    name, version = "cast", 1

    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def granule(self, args: Mapping[str, str | int]) -> tuple[int, int]:
        self.trap("granule")
        return 4, 2

    def apply(self, source: memoryview, dest: memoryview, args: Mapping[str, str | int]) -> Mapping[str, int]:
        self.trap("apply")
        return {}


class TrapPlugin:
    """Everything that a load needs and that can break."""

    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    @hookimpl
    def loadmaster_formats(self) -> Sequence[TrapFormat]:
        return [TrapFormat(self.trap)]

    @hookimpl
    def loadmaster_models(self) -> Sequence[TrapFamily]:
        return [TrapFamily(self.trap)]

    @hookimpl
    def loadmaster_shard_strategies(self) -> Sequence[TrapStrategy]:
        return [TrapStrategy(self.trap)]

    @hookimpl
    def loadmaster_transforms(self) -> Sequence[TrapCast]:
        return [TrapCast(self.trap)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bigram_model(tmp_path / "model")
    return tmp_path / "model"


REST = PluginSelection(blocked=("tensor-parallel", "transforms", "transformers"))


def load(folder: Path, trap: Trap, **settings: Any) -> lm.Engine:
    return lm.Engine(folder, executor="inline", selection=REST, plugins=[TrapPlugin(trap)], **settings)


CALLS = {
    "open": "open of format trap",
    "outline": "outline of model family bigram",
    "check": "check of shard strategy tensor-parallel",
    "describe": "describe of model family bigram",
    "place": "place for table of shard strategy tensor-parallel",
    "reader": "reader for table.weight.npy of format trap",
    "read_into": "read_into for table.weight.npy of format trap",
    "close": "close for table.weight.npy of format trap",
    "build": "build of model family bigram",
}


@pytest.mark.parametrize("at", CALLS)
def test_the_error_names_plugin_and_call(folder: Path, at: str) -> None:
    with pytest.raises(PluginError) as caught:
        load(folder, Trap(at), read_mode="direct")
    report = caught.value.report
    assert (report.code, report.exit_code) == ("LM-PLUGIN-FAILED", 4)
    assert report.where["call"] == CALLS[at]
    assert "TrapPlugin" in str(report.where["plugin"])
    assert report.why == "ZeroDivisionError: division by zero"
    assert "in __call__" in report.traceback


@pytest.mark.parametrize("at", ["granule", "apply"])
def test_a_transform_is_named_with_its_version(folder: Path, at: str) -> None:
    with pytest.raises(PluginError) as caught:
        load(folder, Trap(at), dtype="bfloat16")
    where = caught.value.report.where
    assert (where["call"], where["tensor"], where["rank"]) == (f"{at} of transform cast v1", TENSOR, 0)


def test_a_mapping_that_fails_is_the_formats_fault(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"failed in mapping for table\.weight\.npy of format trap"):
        load(folder, Trap("mapping"), read_mode="gathered")


def test_the_tokenizer_is_attributed(folder: Path) -> None:
    with load(folder, Trap("tokenizer")) as engine, pytest.raises(PluginError, match="tokenizer of model family bigram"):
        engine.generate(["hello"])


@pytest.mark.parametrize("at", ["open", "describe", "reader", "build"])
def test_errors_of_the_contract_pass_unchanged(folder: Path, at: str) -> None:
    error = IntegrityError("LM-TRAP", "meant for the user", where={"file": "x"})
    with pytest.raises(IntegrityError) as caught:
        load(folder, Trap(at, error))
    assert (caught.value.code, caught.value.report.summary) == ("LM-TRAP", "meant for the user")
    assert caught.value.report.where["file"] == "x"


def test_what_the_operating_system_reports_is_storage_and_no_fault_of_the_plugin(folder: Path) -> None:
    with pytest.raises(ResourceError, match="LM-STORAGE-READ") as caught:
        load(folder, Trap("read_into", OSError(5, "Input/output error")), read_mode="direct")
    assert "Input/output error" in caught.value.report.why


def test_inspecting_and_planning_without_an_engine(folder: Path) -> None:
    for at, call in (("open", CALLS["open"]), ("outline", CALLS["outline"]), ("describe", CALLS["describe"])):
        host = PluginHost(REST, [TrapPlugin(Trap(at))])
        with pytest.raises(PluginError) as caught:
            make_plan(host, open_index(host, folder), PlanSettings())
        assert caught.value.report.where["call"] == call


def test_pieces_of_a_checkpoint_are_read_under_the_formats_name(folder: Path) -> None:
    with (
        Checkpoint(PluginHost(REST, [TrapPlugin(Trap("read_into"))]), folder) as checkpoint,
        pytest.raises(PluginError, match="read_into for table"),
    ):
        list(checkpoint.pieces(TENSOR))
