"""The format against arrays that numpy itself wrote, and against files that must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loadmaster.plugin import IntegrityError, open_checkpoint
from numpy.lib import format as numpy_format

ARRAYS = {
    "F64": np.linspace(0, 1, 6, dtype="<f8").reshape(2, 3),
    "F32": np.arange(24, dtype="<f4").reshape(2, 3, 4),
    "F16": np.arange(5, dtype="<f2"),
    "I64": np.array(-7, dtype="<i8"),
    "I32": np.arange(3, dtype="<i4"),
    "I16": np.zeros((4, 0), dtype="<i2"),
    "I8": np.array([-1, 2], dtype="i1"),
    "U64": np.array([2**63], dtype="<u8"),
    "U32": np.arange(3, dtype="<u4"),
    "U16": np.arange(3, dtype="<u2"),
    "U8": np.arange(3, dtype="u1"),
    "BOOL": np.array([True, False]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "toy", "scale": Infinity}')
    return tmp_path


def refusal(folder: Path) -> IntegrityError:
    with pytest.raises(IntegrityError) as caught:
        open_checkpoint(folder)
    return caught.value


def test_every_element_type_that_numpy_writes(folder: Path) -> None:
    for dtype, array in ARRAYS.items():
        np.save(folder / f"layer.{dtype}.npy", array)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.index.format == "npy"
        assert checkpoint.index.config["model_type"] == "toy"
        for dtype, array in ARRAYS.items():
            tensor = checkpoint.index.tensors[f"layer.{dtype}"]
            assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, array.shape, array.nbytes)
            assert b"".join(bytes(piece) for piece in checkpoint.pieces(tensor.name)) == array.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(folder: Path, version: tuple[int, int]) -> None:
    with (folder / "weight.npy").open("wb") as stream:
        numpy_format.write_array(stream, ARRAYS["F32"], version=version)
    with open_checkpoint(folder) as checkpoint:
        assert b"".join(bytes(piece) for piece in checkpoint.pieces("weight")) == ARRAYS["F32"].tobytes()


def test_planning_costs_headers_only(folder: Path) -> None:
    np.save(folder / "weight.npy", np.zeros((1000, 1000), dtype="<f4"))
    config = (folder / "config.json").stat().st_size
    assert open_checkpoint(folder).index.bytes_read == 128 + config


def test_types_that_numpy_lacks(folder: Path) -> None:
    np.save(folder / "brain.npy", ARRAYS["U16"])
    np.save(folder / "plain.npy", ARRAYS["U16"])
    plain = open_checkpoint(folder).index
    (folder / "dtypes.json").write_text('{"brain": "BF16"}')
    index = open_checkpoint(folder).index
    assert (index.tensors["brain"].dtype, index.tensors["plain"].dtype) == ("BF16", "U16")
    assert index.fingerprint != plain.fingerprint
    for wrong in ("F8_E4M3", "F32", "nonsense", ["BF16"]):
        (folder / "dtypes.json").write_text(json.dumps({"brain": wrong}))
        assert refusal(folder).code == "LM-NPY-STAND-IN"


def fortran(path: Path) -> None:
    np.save(path, np.asfortranarray(ARRAYS["F64"]))


def objects(path: Path) -> None:
    np.save(path, np.array([print, None], dtype=object), allow_pickle=True)


def big_endian(path: Path) -> None:
    np.save(path, ARRAYS["F32"].astype(">f4"))


def records(path: Path) -> None:
    np.save(path, np.zeros(3, dtype=[("a", "<f4"), ("b", "<i4")]))


def pickled_fields(path: Path) -> None:
    np.save(path, np.zeros(3, dtype=[("a", object)]), allow_pickle=True)


def complex_numbers(path: Path) -> None:
    np.save(path, np.zeros(3, dtype="<c8"))


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (fortran, "LM-NPY-FORTRAN"),
        (objects, "LM-NPY-OBJECT"),
        (big_endian, "LM-NPY-ENDIAN"),
        (records, "LM-NPY-DTYPE"),
        (pickled_fields, "LM-NPY-OBJECT"),
        (complex_numbers, "LM-NPY-DTYPE"),
    ],
)
def test_arrays_that_are_not_read(folder: Path, write: Callable[[Path], None], code: str) -> None:
    np.save(folder / "a.sound.npy", ARRAYS["F32"])
    write(folder / "weight.npy")
    error = refusal(folder)
    assert (error.code, error.exit_code, error.report.where["file"]) == (code, 5, "weight.npy")


def header(text: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "LM-NPY-MAGIC"),
        (b"\x93NUMPY\x01\x00", "LM-NPY-MAGIC"),
        (b"PK\x03\x04" + bytes(60), "LM-NPY-MAGIC"),
        (header("{}", version=4), "LM-NPY-MAGIC"),
        (header(""), "LM-NPY-MAGIC"),
        (header(" " * 5000), "LM-NPY-HEADER"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(60), "LM-NPY-HEADER"),
        (header("not a literal at all"), "LM-NPY-HEADER"),
        (header("[1, 2, 3]"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'shape': (2,)}"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': [2]}"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}"), "LM-NPY-HEADER"),
        (header("__import__('os').abort()"), "LM-NPY-HEADER"),
        (header("(" * 4000), "LM-NPY-HEADER"),
        (header("-" * 4000 + "1"), "LM-NPY-HEADER"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") + bytes(7), "LM-NPY-SIZE"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") + bytes(9), "LM-NPY-SIZE"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 8)}"), "LM-NPY-SIZE"),
    ],
)
def test_files_that_are_damaged_or_hostile(folder: Path, content: bytes, code: str) -> None:
    (folder / "weight.npy").write_bytes(content)
    error = refusal(folder)
    assert (error.code, error.report.where["file"]) == (code, "weight.npy")


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "\udcff", "[" * 100_000])
def test_documents_that_are_damaged(folder: Path, text: str) -> None:
    np.save(folder / "weight.npy", ARRAYS["F32"])
    (folder / "config.json").write_text(text, errors="surrogateescape")
    assert refusal(folder).code == "LM-NPY-JSON"


def test_a_file_that_changed_after_it_was_judged(folder: Path) -> None:
    np.save(folder / "weight.npy", ARRAYS["F32"])
    for other in (ARRAYS["F32"].reshape(24), ARRAYS["F32"][:1]):
        with open_checkpoint(folder) as checkpoint:
            np.save(folder / "weight.npy", other)
            with pytest.raises(IntegrityError, match="LM-NPY-CHANGED"):
                list(checkpoint.pieces("weight"))
        np.save(folder / "weight.npy", ARRAYS["F32"])


def test_a_folder_without_arrays_is_not_claimed(folder: Path) -> None:
    assert refusal(folder).code == "LM-FORMAT-UNKNOWN"
