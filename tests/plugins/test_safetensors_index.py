"""From files to a checkpoint index: single files, shards, stale indexes, extras, duplicates, and back in a worker."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save, save_file

from checkpoints import (
    CONFIG,
    INDEX,
    MemorySource,
    hub_cache,
    open_index,
    refusal,
    shard_name,
    tensors,
    three_parts,
    write_index,
    write_json,
    write_shards,
    write_single,
)
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef
from loadmaster_plugins.hf_safetensors import loadmaster_formats
from loadmaster_plugins.hf_safetensors.loader import HfSafetensors, fingerprint
from loadmaster_plugins.local_source.provider import LocalProvider


def homes(index: CheckpointIndex) -> dict[str, str]:
    """Return the file that each tensor is taken from."""
    return {name: index.files[tensor.file].name for name, tensor in index.tensors.items()}


def assert_equals_library(index: CheckpointIndex, folder: Path) -> None:
    """Compare every tensor of the index, bytes included, with what the safetensors library reads from the same file."""
    for name, meta in index.tensors.items():
        path = folder / index.files[meta.file].name
        with safe_open(path, framework="np") as file:
            expected = file.get_tensor(name)
            assert file.get_slice(name).get_dtype() == meta.dtype
        assert meta.shape == expected.shape
        assert path.read_bytes()[meta.start : meta.stop] == expected.tobytes()


def test_the_hook_provides_the_loader() -> None:
    assert [loader.name for loader in loadmaster_formats()] == ["hf-safetensors"]


class TestSingleFile:
    def test_tensors_files_and_config_are_found(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path)
        write_json(folder / "generation_config.json", {"temperature": 0.1})
        index = open_index(folder)
        assert set(index.tensors) == set(tensors())
        assert_equals_library(index, folder)
        assert index.config == CONFIG
        assert index.generation == {"temperature": 0.1}
        assert (index.format, index.source) == ("hf-safetensors", str(folder))
        assert not index.ignored
        assert not index.findings

    def test_the_file_record_describes_size_and_header(self, tmp_path: Path) -> None:
        content = (write_single(tmp_path) / "model.safetensors").read_bytes()
        (file,) = open_index(tmp_path).files
        length = 8 + int.from_bytes(content[:8], "little")
        assert (file.id, file.name, file.size, file.header_bytes) == (0, "model.safetensors", len(content), length)
        assert file.header_sha256 == hashlib.sha256(content[:length]).hexdigest()

    def test_only_headers_and_documents_are_read(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path, {"large": np.zeros(1_000_000, np.float32)})
        source = LocalProvider().open(str(folder))
        index = HfSafetensors().open(source)
        assert source.bytes_read == index.files[0].header_bytes + (folder / "config.json").stat().st_size

    def test_a_file_given_by_path_is_read_alone(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        index = open_index(write_single(tmp_path) / "model.safetensors")
        assert set(homes(index).values()) == {"model.safetensors"}
        assert index.source == str(tmp_path / "model.safetensors")

    def test_nothing_but_the_source_protocol_is_needed(self, tmp_path: Path) -> None:
        folder = write_shards(tmp_path, three_parts())
        memory = MemorySource({path.name: path.read_bytes() for path in folder.iterdir()})
        assert HfSafetensors().open(memory).tensors == open_index(folder).tensors


class TestShards:
    @pytest.mark.parametrize("with_index", [True, False])
    def test_all_shards_together_are_the_checkpoint(self, tmp_path: Path, with_index: bool) -> None:
        index = open_index(write_shards(tmp_path, three_parts(), index=with_index))
        assert homes(index) == {f"layers.{i}.{letter}": shard_name(i + 1, 3) for i in range(3) for letter in ("a", "b")}
        assert [file.id for file in index.files] == [0, 1, 2]
        assert_equals_library(index, tmp_path)
        assert index.findings == ()

    def test_deleted_shards_are_named_before_anything_else_happens(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        for number in (1, 3):
            (tmp_path / shard_name(number, 3)).unlink()
        error = refusal(tmp_path)
        assert error.code == "LM-SHARD-MISSING"
        assert shard_name(1, 3) in error.report.summary
        assert shard_name(3, 3) in error.report.summary
        assert shard_name(2, 3) not in error.report.summary
        assert "4 tensors of 6" in error.report.why

    def test_a_gap_in_numbered_names_is_noticed_without_an_index(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts(), index=False)
        (tmp_path / shard_name(2, 3)).unlink()
        error = refusal(tmp_path)
        assert error.code == "LM-SHARD-MISSING"
        assert shard_name(2, 3) in error.report.summary

    def test_many_missing_shards_are_folded(self, tmp_path: Path) -> None:
        write_single(tmp_path, tensors(), shard_name(1, 500))
        error = refusal(tmp_path)
        assert "499 shards missing" in error.report.summary
        assert "and 495 more" in error.report.summary

    def test_an_index_of_another_name_is_found(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        (tmp_path / INDEX).rename(tmp_path / "model.fp16.safetensors.index.json")
        save_file(tensors(("extra",)), tmp_path / "extra.safetensors")
        assert "extra" not in open_index(tmp_path).tensors

    def test_two_indexes_of_other_names_are_ambiguous(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        (tmp_path / INDEX).rename(tmp_path / "a.safetensors.index.json")
        shutil.copy(tmp_path / "a.safetensors.index.json", tmp_path / "b.safetensors.index.json")
        assert refusal(tmp_path).code == "LM-INDEX-AMBIGUOUS"
        (tmp_path / "a.safetensors.index.json").rename(tmp_path / INDEX)
        assert len(open_index(tmp_path).tensors) == 6

    def test_an_indexed_file_in_a_sub_folder_is_read_by_name(self, tmp_path: Path) -> None:
        write_single(tmp_path / "weights", tensors(("a",)), "part.safetensors")
        write_single(tmp_path, tensors(("b",)))
        write_index(tmp_path, {"a": "weights/part.safetensors", "b": "model.safetensors"})
        index = open_index(tmp_path)
        assert homes(index) == {"a": "weights/part.safetensors", "b": "model.safetensors"}
        assert_equals_library(index, tmp_path)


class TestStaleIndex:
    """The index names files that are not there; what the headers of the files present hold decides."""

    def stale(self, folder: Path, parts: int = 2) -> None:
        content = tensors([f"t{i:02}" for i in range(30)])
        write_index(folder, {name: shard_name(i + 1, 30) for i, name in enumerate(content)})
        items = list(content.items())
        half = len(items) // parts
        for number in range(parts):
            save_file(dict(items[number * half : (number + 1) * half]), folder / f"part{number}.safetensors")
        write_json(folder / "config.json", CONFIG)

    def test_a_complete_set_under_other_names_is_used_with_a_warning(self, tmp_path: Path) -> None:
        self.stale(tmp_path)
        index = open_index(tmp_path)
        assert len(index.tensors) == 30
        assert set(homes(index).values()) == {"part0.safetensors", "part1.safetensors"}
        assert_equals_library(index, tmp_path)
        (finding,) = index.findings
        assert (finding.level, finding.code, finding.where) == ("warning", "LM-INDEX-STALE", INDEX)
        assert "index stale" in finding.message
        assert "30 files that it names absent" in finding.message

    def test_one_tensor_short_is_refused_naming_it(self, tmp_path: Path) -> None:
        self.stale(tmp_path)
        held = [f"t{i:02}" for i in range(15, 30) if i != 20]
        save_file(tensors(held), tmp_path / "part1.safetensors")
        error = refusal(tmp_path)
        assert error.code == "LM-SHARD-MISSING"
        assert shard_name(21, 30) in error.report.summary
        assert "'t20'" in error.report.why

    def test_a_tensor_held_twice_elsewhere_is_refused(self, tmp_path: Path) -> None:
        self.stale(tmp_path)
        save_file(tensors(("t00",)), tmp_path / "copy.safetensors")
        error = refusal(tmp_path)
        assert error.code == "LM-TENSOR-DUPLICATE"
        assert error.report.where["files"] == "copy.safetensors, part0.safetensors"
        assert "'t00'" in error.report.why

    def test_a_broken_extra_file_does_not_stand_in_the_way(self, tmp_path: Path) -> None:
        self.stale(tmp_path)
        (tmp_path / "broken.safetensors").write_bytes(b"broken")
        save_file(tensors(("unrelated",)), tmp_path / "unrelated.safetensors")
        index = open_index(tmp_path)
        assert len(index.tensors) == 30
        assert {ignored.name for ignored in index.ignored} == {"broken.safetensors", "unrelated.safetensors"}

    def test_a_tensor_in_another_indexed_file_is_found_with_a_warning(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        document = json.loads((tmp_path / INDEX).read_text())
        document["weight_map"]["layers.0.a"] = shard_name(2, 3)
        write_json(tmp_path / INDEX, document)
        index = open_index(tmp_path)
        assert homes(index)["layers.0.a"] == shard_name(1, 3)
        assert [finding.code for finding in index.findings] == ["LM-INDEX-STALE"]

    def test_an_indexed_file_that_holds_nothing_of_use_is_left_out_by_name(self, tmp_path: Path) -> None:
        write_single(tmp_path, tensors(("a",)), "right.safetensors")
        write_single(tmp_path, tensors(("b",)), "wrong.safetensors")
        write_index(tmp_path, {"a": "wrong.safetensors"})
        index = open_index(tmp_path)
        assert homes(index) == {"a": "right.safetensors"}
        assert [file.name for file in index.files] == ["right.safetensors"]
        assert [ignored.name for ignored in index.ignored] == ["wrong.safetensors"]

    def test_a_tensor_in_no_file_is_refused_naming_the_file_it_should_be_in(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        document = json.loads((tmp_path / INDEX).read_text())
        document["weight_map"]["layers.9.a"] = shard_name(2, 3)
        write_json(tmp_path / INDEX, document)
        error = refusal(tmp_path)
        assert error.code == "LM-TENSOR-MISSING"
        assert error.report.where["file"] == shard_name(2, 3)
        assert "'layers.9.a'" in error.report.why


FILE_NAMES = st.sampled_from(["a.safetensors", "b.safetensors", "c.safetensors"])
TENSOR_NAMES = st.sampled_from(["t0", "t1", "t2", "t3"])


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(FILE_NAMES, st.sets(TENSOR_NAMES), max_size=3),
    st.dictionaries(TENSOR_NAMES, FILE_NAMES, min_size=1),
)
def test_any_index_over_any_files_gives_exactly_its_tensors_or_a_refusal(
    held: dict[str, set[str]], listed: dict[str, str]
) -> None:
    """Where a tensor is taken from follows from who holds it: its own file, else the only other one, else nobody."""
    files = {name: save(tensors(sorted(content))) for name, content in held.items()}
    source = MemorySource(files | {INDEX: json.dumps({"weight_map": listed}).encode(), "config.json": b"{}"})
    holders = {tensor: [name for name, content in held.items() if tensor in content] for tensor in listed}
    if any(file not in holders[tensor] and len(holders[tensor]) != 1 for tensor, file in listed.items()):
        with pytest.raises(IntegrityError, match=r"LM-SHARD-MISSING|LM-TENSOR-MISSING|LM-TENSOR-DUPLICATE"):
            HfSafetensors().open(source)
        return
    index = HfSafetensors().open(source)
    assert homes(index) == {t: file if file in holders[t] else holders[t][0] for t, file in listed.items()}
    assert bool(index.findings) == (homes(index) != listed)


class TestExtrasAndDuplicates:
    def test_an_extra_file_is_not_even_opened_when_the_index_is_right(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        for name in ("consolidated.safetensors", "other.safetensors"):
            (tmp_path / name).write_bytes(b"opening this would fail")
        index = open_index(tmp_path)
        assert_equals_library(index, tmp_path)
        found = {ignored.name: ignored.notable for ignored in index.ignored}
        assert found == {"consolidated.safetensors": False, "other.safetensors": True}

    def test_the_index_decides_between_copies(self, tmp_path: Path) -> None:
        write_shards(tmp_path, [tensors(("a", "b")), tensors(("b", "a"))], index=False)
        write_index(tmp_path, {"a": shard_name(2, 2), "b": shard_name(1, 2)})
        index = open_index(tmp_path)
        assert homes(index) == {"a": shard_name(2, 2), "b": shard_name(1, 2)}
        assert {ignored.name for ignored in index.ignored} == {f"{shard_name(1, 2)}:a", f"{shard_name(2, 2)}:b"}
        assert_equals_library(index, tmp_path)

    def test_a_tensor_that_the_index_does_not_list_is_left_out(self, tmp_path: Path) -> None:
        write_shards(tmp_path, [tensors(("a", "not.listed")), tensors(("b",))], index=False)
        write_index(tmp_path, {"a": shard_name(1, 2), "b": shard_name(2, 2)})
        index = open_index(tmp_path)
        assert set(index.tensors) == {"a", "b"}
        (ignored,) = index.ignored
        assert (ignored.name, ignored.notable) == ("not.listed", True)
        assert shard_name(1, 2) in ignored.reason

    def test_without_an_index_a_tensor_in_two_files_is_refused_with_the_overlap(self, tmp_path: Path) -> None:
        write_single(tmp_path, tensors(("a", "b", "c")), "one.safetensors")
        write_single(tmp_path, tensors(("b", "c", "d")), "two.safetensors")
        error = refusal(tmp_path)
        assert error.code == "LM-TENSOR-DUPLICATE"
        assert error.report.summary.startswith("2 tensors")
        assert error.report.where["files"] == "one.safetensors, two.safetensors"
        assert error.report.why == "'b', 'c'"
        assert set(open_index(tmp_path / "two.safetensors").tensors) == {"b", "c", "d"}

    def test_without_an_index_known_companions_stay_closed(self, tmp_path: Path) -> None:
        write_single(tmp_path)
        for name in ("consolidated.safetensors", "adapter_model.safetensors"):
            (tmp_path / name).write_bytes(b"opening this would fail")
        index = open_index(tmp_path)
        assert set(index.tensors) == set(tensors())
        assert {(ignored.name, ignored.notable) for ignored in index.ignored} == {
            ("consolidated.safetensors", False),
            ("adapter_model.safetensors", False),
        }

    def test_harmless_and_unknown_tensors_are_left_to_the_planner(self, tmp_path: Path) -> None:
        write_single(tmp_path, tensors(("a", "layers.0.rotary_emb.inv_freq", "model.foo.weight")))
        assert set(open_index(tmp_path).tensors) == {"a", "layers.0.rotary_emb.inv_freq", "model.foo.weight"}


class TestHubCache:
    def test_a_snapshot_of_links_loads(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path / "cache", write_shards(tmp_path / "plain", three_parts()))
        index = open_index(snapshot)
        assert len(index.tensors) == 6
        assert_equals_library(index, snapshot)

    def test_removed_blobs_are_refused_naming_links_and_targets(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path / "cache", write_single(tmp_path / "plain"))
        shutil.rmtree(snapshot.parent.parent / "blobs")
        error = refusal(snapshot)
        assert error.code == "LM-LINK-DANGLING"
        assert error.report.where["link"] == str(snapshot / "model.safetensors")
        assert error.report.where["target"] == str(snapshot.parent.parent / "blobs" / "blob01")

    def test_several_removed_blobs_are_one_error(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path / "cache", write_shards(tmp_path / "plain", three_parts()))
        for number in (1, 3):
            os.unlink((snapshot / shard_name(number, 3)).resolve())
        error = refusal(snapshot)
        assert error.code == "LM-LINK-DANGLING"
        assert error.report.summary.startswith("2 files of 3")
        assert str(snapshot / shard_name(1, 3)) in error.report.why
        assert str(snapshot.parent.parent / "blobs") in error.report.why

    def test_a_dangling_readme_harms_nobody(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path)
        (folder / "README.md").symlink_to("nowhere")
        assert len(open_index(folder).tensors) == 3


class TestFingerprint:
    def test_it_is_the_same_wherever_and_whenever_the_files_lie(self, tmp_path: Path) -> None:
        first = write_shards(tmp_path / "a", three_parts())
        second = shutil.copytree(first, tmp_path / "deeper" / "b")
        (second / "README.md").write_text("beside the point")
        os.utime(second / shard_name(1, 3), (1, 1))
        write_json(second / "config.json", dict(reversed(CONFIG.items())))
        assert open_index(first).fingerprint == open_index(second).fingerprint
        snapshot = hub_cache(tmp_path / "cache", second)
        assert open_index(snapshot).fingerprint == open_index(first).fingerprint

    @pytest.mark.parametrize(
        "change",
        [
            lambda folder: write_single(folder, tensors(("model.embed_tokens.weight", "x", "lm_head.weight"))),
            lambda folder: write_json(folder / "config.json", CONFIG | {"num_hidden_layers": 3}),
            lambda folder: (folder / "model.safetensors").rename(folder / "other.safetensors"),
        ],
    )
    def test_it_changes_with_headers_names_and_configuration(self, tmp_path: Path, change: Callable[[Path], object]) -> None:
        before = open_index(write_single(tmp_path)).fingerprint
        change(tmp_path)
        assert open_index(tmp_path).fingerprint != before

    def test_it_is_a_known_value(self) -> None:
        """Pin the recipe: another value would make every stored plan look foreign."""
        file = FileRef(id=0, name="m.safetensors", size=10, header_bytes=10, header_sha256="ab")
        expected = hashlib.sha256(b'[[["m.safetensors",10,"ab"]],{"a":1,"b":[2.5,"\\u00fc"]}]').hexdigest()
        assert fingerprint([file], {"b": [2.5, "\u00fc"], "a": 1}) == expected


class TestReader:
    def test_it_reads_tensor_bytes_of_the_planned_file(self, tmp_path: Path) -> None:
        source = LocalProvider().open(str(write_single(tmp_path)))
        index = HfSafetensors().open(source)
        meta = index.tensors["model.norm.weight"]
        reader = HfSafetensors().reader(source, index.files[meta.file])
        buffer = bytearray(meta.nbytes)
        assert reader.read_into(meta.start, memoryview(buffer)) == meta.nbytes
        assert buffer == tensors()["model.norm.weight"].tobytes()
        reader.close()

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda content: content[:-1], "bytes when the plan was made"),
            (lambda content: content + b"x", "bytes when the plan was made"),
            (lambda content: content.replace(b"norm", b"mron"), "header differs"),
            (lambda content: b"\xff" + content[1:], "header differs"),
        ],
    )
    def test_a_file_that_changed_since_the_plan_is_refused(
        self, tmp_path: Path, change: Callable[[bytes], bytes], why: str
    ) -> None:
        source = LocalProvider().open(str(write_single(tmp_path)))
        (file,) = HfSafetensors().open(source).files
        path = tmp_path / file.name
        path.write_bytes(change(path.read_bytes()))
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(IntegrityError, match="LM-FILE-CHANGED") as caught:
            HfSafetensors().reader(source, file)
        assert why in caught.value.report.why
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_file_that_is_gone_is_refused(self, tmp_path: Path) -> None:
        source = LocalProvider().open(str(write_single(tmp_path)))
        (file,) = HfSafetensors().open(source).files
        (tmp_path / file.name).unlink()
        with pytest.raises(IntegrityError, match="LM-FILE-MISSING"):
            HfSafetensors().reader(source, file)


class TestDetect:
    @pytest.mark.parametrize(
        ("names", "score"),
        [
            (["model.safetensors"], 0.9),
            ([INDEX], 0.9),
            (["pytorch_model.bin", "config.json"], 0.1),
            (["config.json", "README.md"], None),
            ([], None),
        ],
    )
    def test_names_alone_decide(self, names: list[str], score: float | None) -> None:
        source = MemorySource(dict.fromkeys(names, b"anything"))
        match = HfSafetensors().detect(source)
        assert (match.score if match else None) == score
        assert source.bytes_read == 0
