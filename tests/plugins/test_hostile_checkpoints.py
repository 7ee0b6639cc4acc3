"""Checkpoints that are damaged, incomplete or made to do harm: refused with a clear error, cheaply, the rest untouched."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from safetensors.numpy import save, save_file

from checkpoints import (
    CONFIG,
    INDEX,
    POINTER,
    entry,
    header,
    open_index,
    refusal,
    shard_name,
    tensors,
    three_parts,
    write_index,
    write_json,
    write_raw,
    write_shards,
    write_single,
)

TRACE = """
import json, sys
from loadmaster_plugins.hf_safetensors.loader import HfSafetensors
from loadmaster_plugins.local_source.provider import LocalProvider

folder = sys.argv[1]
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
source = LocalProvider().open(folder)
index = HfSafetensors().open(source)
for file in index.files:
    HfSafetensors().reader(source, file).close()
print(json.dumps([sorted({p[len(folder) + 1:] for p in opened if p.startswith(folder)}), source.bytes_read]))
"""


class TestJunk:
    def test_only_the_checkpoints_own_files_are_opened(self, tmp_path: Path) -> None:
        folder = write_shards(tmp_path, three_parts())
        for sub in ("original", ".git", "metal"):
            write_single(folder / sub)
        for name in ("training_args.bin", "optimizer.pt", "pytorch_model.bin", "scheduler.pt", "rng_state.pth", "model.gguf"):
            (folder / name).write_bytes(b"junk")
        (folder / "consolidated.safetensors").write_bytes(b"junk")
        run = subprocess.run([sys.executable, "-c", TRACE, str(folder)], capture_output=True, text=True, timeout=60, check=True)
        opened, bytes_read = json.loads(run.stdout)
        assert opened == sorted([INDEX, "config.json", *(shard_name(i, 3) for i in (1, 2, 3))])
        assert bytes_read < sum((folder / name).stat().st_size for name in opened) * 1.02

    def test_what_stays_closed_is_listed_with_a_reason(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path)
        for name in ("optimizer.pt", "pytorch_model.bin", "model.gguf", "README.md", "tokenizer.json"):
            (folder / name).write_bytes(b"junk")
        ignored = {record.name: record.reason for record in open_index(folder).ignored}
        assert set(ignored) == {"optimizer.pt", "pytorch_model.bin", "model.gguf"}
        assert "code" in ignored["optimizer.pt"]

    def test_pickle_alone_is_refused_and_never_loaded(self, tmp_path: Path) -> None:
        marker = tmp_path / "marker"

        call_of_system = f"cposix\nsystem\n(S'touch {marker}'\ntR."  # the opcodes of a pickle that runs a command
        (tmp_path / "pytorch_model.bin").write_text(call_of_system)
        write_json(tmp_path / "config.json", CONFIG)
        error = refusal(tmp_path)
        assert error.code == "LM-FORMAT-PICKLE"
        assert "pytorch_model.bin" in error.report.summary
        assert "run any code" in error.report.why
        assert any("save_file" in hint for hint in error.hints)
        assert not marker.exists()

    def test_a_folder_without_weights_says_what_it_has(self, tmp_path: Path) -> None:
        write_json(tmp_path / "config.json", CONFIG)
        error = refusal(tmp_path)
        assert error.code == "LM-FORMAT-EMPTY"
        assert "config.json" in error.report.why

    def test_a_file_without_tensors_is_no_checkpoint(self, tmp_path: Path) -> None:
        assert refusal(write_raw(tmp_path, header({}))).code == "LM-FORMAT-EMPTY"


class TestPointers:
    def test_a_pointer_is_recognised_with_what_to_do(self, tmp_path: Path) -> None:
        error = refusal(write_raw(tmp_path, POINTER))
        assert error.code == "LM-FILE-LFS-POINTER"
        assert error.report.where["file"] == "model.safetensors"
        assert "4976698672 bytes" in error.report.why
        assert "git lfs pull" in error.hints[0]

    def test_recognising_a_pointer_takes_no_memory(self, tmp_path: Path) -> None:
        folder = write_raw(tmp_path, POINTER)
        refusal(folder)
        tracemalloc.start()
        refusal(folder)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000

    def test_several_pointers_are_one_folded_error(self, tmp_path: Path) -> None:
        names = [f"part{i}.safetensors" for i in range(7)]
        for name in names:
            write_raw(tmp_path, POINTER, name)
        write_index(tmp_path, {f"t{i}": name for i, name in enumerate(names)})
        error = refusal(tmp_path)
        assert error.code == "LM-FILE-LFS-POINTER"
        assert error.report.summary.startswith("7 files of 7")
        assert "and 3 more" in str(error.report.where["files"])

    @pytest.mark.parametrize("name", ["config.json", INDEX])
    def test_documents_can_be_pointers_too(self, tmp_path: Path, name: str) -> None:
        write_shards(tmp_path, three_parts())
        (tmp_path / name).write_bytes(POINTER)
        error = refusal(tmp_path)
        assert (error.code, error.report.where["file"]) == ("LM-FILE-LFS-POINTER", name)


class TestSeveralFaults:
    def test_faults_of_one_kind_are_listed_and_other_kinds_mentioned(self, tmp_path: Path) -> None:
        write_shards(tmp_path, [tensors((f"t{i}",)) for i in range(4)])
        for number in (1, 3):
            path = tmp_path / shard_name(number, 4)
            path.write_bytes(path.read_bytes()[:-1])
        (tmp_path / shard_name(4, 4)).write_bytes(POINTER)
        error = refusal(tmp_path)
        assert error.code == "LM-FILE-TRUNCATED"
        assert error.report.summary.startswith("2 files of 4")
        assert error.report.where["files"] == f"{shard_name(1, 4)}, {shard_name(3, 4)}"
        assert f"{shard_name(4, 4)} (LM-FILE-LFS-POINTER)" in error.report.why

    def test_one_fault_names_file_expected_and_actual_bytes(self, tmp_path: Path) -> None:
        content = save(tensors())
        error = refusal(write_raw(tmp_path, content[:-3]))
        assert error.report.where["file"] == "model.safetensors"
        assert str(len(content)) in error.report.why
        assert str(len(content) - 3) in error.report.why

    def test_a_hostile_header_in_one_shard_stops_the_whole_checkpoint(self, tmp_path: Path) -> None:
        write_shards(tmp_path, three_parts())
        (tmp_path / shard_name(2, 3)).write_bytes(header({"layers.1.a": entry([2**31, 2**31, 2**31], 0, 8)}) + bytes(8))
        error = refusal(tmp_path)
        assert (error.code, error.report.where["file"]) == ("LM-HEADER-SHAPE", shard_name(2, 3))


BAD_PATHS = [
    "../outside.safetensors",
    "a/../../outside.safetensors",
    "/etc/model.safetensors",
    "a\\b.safetensors",
    "..\\outside.safetensors",
    "a//b.safetensors",
    "./a.safetensors",
    "a\0.safetensors",
    "a\n.safetensors",
    "pytorch_model.bin",
    "/etc/passwd",
    "",
]


class TestHostileIndex:
    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_paths_that_leave_the_folder_or_are_no_tensor_files(self, tmp_path: Path, path: str) -> None:
        folder = write_single(tmp_path / "model")
        write_single(tmp_path, tensors(("t",)), "outside.safetensors")
        write_index(folder, {"model.norm.weight": "model.safetensors", "t": path})
        error = refusal(folder)
        assert (error.code, error.report.where["file"]) == ("LM-INDEX-PATH", INDEX)

    def test_all_bad_paths_are_in_one_error(self, tmp_path: Path) -> None:
        write_single(tmp_path)
        write_index(tmp_path, {f"t{i}": path for i, path in enumerate(BAD_PATHS)})
        error = refusal(tmp_path)
        assert f"{len(BAD_PATHS)} bad paths" in error.report.why
        assert "'../outside.safetensors'" in error.report.why

    def test_an_indexed_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path / "model")
        save_file(tensors(("t",)), tmp_path / "outside.safetensors")
        (folder / "link.safetensors").symlink_to("../outside.safetensors")
        write_index(folder, {"t": "link.safetensors"})
        assert refusal(folder).code == "LM-LINK-OUTSIDE"

    def test_an_indexed_link_in_a_sub_folder_that_dangles_is_named(self, tmp_path: Path) -> None:
        write_single(tmp_path)
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "t.safetensors").symlink_to("../gone")
        write_index(tmp_path, {"t": "sub/t.safetensors"})
        error = refusal(tmp_path)
        assert error.code == "LM-LINK-DANGLING"
        assert error.report.where["target"] == str(tmp_path / "gone")

    @pytest.mark.parametrize(
        "document",
        [
            [],
            {},
            {"weight_map": []},
            {"weight_map": {}},
            {"weight_map": {"t": 1}},
            {"weight_map": {"t": None}},
            {"weight_map": {"t": ["model.safetensors"]}},
            {"weight_map": {"": "model.safetensors"}},
        ],
    )
    def test_documents_of_another_shape(self, tmp_path: Path, document: object) -> None:
        write_single(tmp_path)
        write_json(tmp_path / INDEX, document)
        error = refusal(tmp_path)
        assert (error.code, error.report.where["file"]) == ("LM-INDEX-INVALID", INDEX)


BROKEN_DOCUMENTS = {
    "empty": b"",
    "not json": b"{'single': 1}",
    "cut short": b'{"weight_map": {"a": "model.safe',
    "not utf-8": b'{"a": "\xff"}',
    "an array": b"[1]",
    "nested beyond the parser": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested deeply": b'{"a":' * 70 + b"1" + b"}" * 70,
    "same key twice": b'{"a": 1, "b": {"c": 1, "c": 2}}',
    "endless number": b'{"a": ' + b"1" * 100_000 + b".0e" + b"1" * 100_000 + b"x}",
    "half a surrogate pair": rb'{"a": "\udfff"}',
}


class TestBrokenDocuments:
    @pytest.mark.parametrize("case", BROKEN_DOCUMENTS)
    @pytest.mark.parametrize(
        ("name", "code"),
        [("config.json", "LM-CONFIG-INVALID"), ("generation_config.json", "LM-CONFIG-INVALID"), (INDEX, "LM-INDEX-INVALID")],
    )
    def test_broken_documents_are_refused_by_name(self, tmp_path: Path, name: str, code: str, case: str) -> None:
        write_single(tmp_path)
        (tmp_path / name).write_bytes(BROKEN_DOCUMENTS[case])
        error = refusal(tmp_path)
        assert (error.code, error.report.where["file"]) == (code, name)
        assert error.report.why

    def test_a_missing_configuration_is_refused(self, tmp_path: Path) -> None:
        write_single(tmp_path)
        (tmp_path / "config.json").unlink()
        assert refusal(tmp_path).code == "LM-CONFIG-MISSING"

    def test_an_endless_configuration_is_refused_unread(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path)
        with open(folder / "config.json", "wb") as file:
            file.truncate(2**40)  # sparse: takes no space
        error = refusal(folder)
        assert error.code == "LM-CONFIG-INVALID"
        assert str(2**40) in error.report.why

    def test_numbers_that_only_python_writes_are_read(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path)
        (folder / "config.json").write_text('{"limit": [0.0, Infinity], "longest": 1000000000000000019884624838656, "n": -5}')
        config = open_index(folder).config
        assert config == {"limit": [0.0, float("inf")], "longest": 1e30, "n": -5}
        assert isinstance(config["longest"], float)
        assert isinstance(config["n"], int)
