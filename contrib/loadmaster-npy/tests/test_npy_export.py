"""The command: every tensor arrives bit for bit, and a failure leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import numpy as np
import pytest
from loadmaster.plugin import IntegrityError, UsageError, open_checkpoint

from loadmaster_npy.export import export, npy_export

TENSORS = {
    "model.embed.weight": ("F32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
    "model.norm.weight": ("BF16", (4,), np.array([1, 2, 3, 65535], dtype="<u2").tobytes()),
    "model.scale": ("F8_E4M3", (3,), bytes([1, 2, 255])),
    "model.count": ("I64", (), np.int64(-5).tobytes()),
}


def write_checkpoint(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """Write a safetensors checkpoint."""
    entries, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    head = json.dumps(entries).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    (folder / "config.json").write_text('{"model_type": "toy"}')
    (folder / "generation_config.json").write_text('{"top_k": 3}')
    (folder / "tokenizer.json").write_text("anything")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", TENSORS)


def test_every_tensor_arrives_bit_for_bit(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "npy"
    result = click.testing.CliRunner().invoke(npy_export, [str(source), str(target)])
    assert (result.exit_code, result.output) == (0, f"4 tensors, 43 bytes in {target}\n")
    assert np.array_equal(np.load(target / "model.embed.weight.npy"), [[0, 1, 2], [3, 4, 5]])
    with open_checkpoint(target) as checkpoint:
        index = checkpoint.index
        assert (index.format, index.config, index.generation) == ("npy", {"model_type": "toy"}, {"top_k": 3})
        for name, (dtype, shape, content) in TENSORS.items():
            assert (index.tensors[name].dtype, index.tensors[name].shape) == (dtype, shape)
            assert b"".join(bytes(piece) for piece in checkpoint.pieces(name)) == content
    assert (target / "tokenizer.json").read_text() == "anything"
    assert [path.name for path in target.parent.iterdir()] == ["npy"]


def test_an_existing_destination_is_left_alone(source: Path, tmp_path: Path) -> None:
    with open_checkpoint(source) as checkpoint, pytest.raises(UsageError, match="LM-NPY-EXISTS"):
        export(checkpoint, tmp_path)


def test_a_name_that_is_no_file_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", {"a/../b": ("U8", (1,), b"x")})
    with open_checkpoint(source) as checkpoint, pytest.raises(UsageError, match="LM-NPY-TENSOR"):
        export(checkpoint, tmp_path / "parent" / "npy")
    assert not (tmp_path / "parent").exists()


def test_a_source_that_fails_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        with (source / "model.safetensors").open("ab") as stream:
            stream.write(b"x")
        with pytest.raises(IntegrityError):
            export(checkpoint, tmp_path / "npy")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
