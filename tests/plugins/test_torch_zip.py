"""Adapters in pickles: what torch writes is found where it lies, and whatever is more than that is refused unread."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_plugins.local_source.provider import LocalProvider
from loadmaster_plugins.torch_zip.loader import TorchZip
from loadmaster_plugins.torch_zip.machine import run
from loadmaster_plugins.torch_zip.tensors import Contents, examine


def examined(path: Path) -> Contents:
    raw = path.read_bytes()
    return examine(lambda offset, count: raw[offset : offset + count], len(raw))


def forged(path: Path, pickled: bytes, *, members: dict[str, bytes] | None = None, compressed: bool = False) -> Path:
    """Write an archive around a pickle."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, content in (members or {"data/0": bytes(64)}).items():
            archive.writestr(aligned(archive, f"a/{name}", kind), content)
    return path


def aligned(archive: zipfile.ZipFile, name: str, kind: int) -> zipfile.ZipInfo:
    """Return the entry of a member whose content begins at a multiple of 64, as torch's do."""
    info = zipfile.ZipInfo(name)
    info.compress_type = kind
    padding = -(archive.start_dir + 34 + len(name)) % 64
    info.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
    return info


class Storage(tuple):  # type: ignore[type-arg]
    """What stands for a storage in a forged pickle."""


class Forger(pickle._Pickler):  # the one written in Python writes storages like torch
    def persistent_id(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, Storage) else None


def rebuilt(*arguments: Any) -> Any:
    """Return an object whose pickle is a call of torch's function that makes tensors."""

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, arguments

    return Tensor()


def written(value: Any, protocol: int = 2) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    Forger(buffer, protocol).dump(value)
    return buffer.getvalue()


def tensor(
    offset: Any = 0, shape: Any = (2, 3), strides: Any = (3, 1), count: Any = 16, kind: Any = torch.FloatStorage, key: Any = "0"
) -> Any:
    return rebuilt(Storage(("storage", kind, key, "cpu", count)), offset, shape, strides, False, OrderedDict())


def test_every_type_that_torch_writes_is_found_where_it_lies(tmp_path: Path) -> None:
    types = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
    table = {name: (torch.arange(6) % 2).reshape(2, 3).to(getattr(torch, TORCH_NAMES[name])) for name in types}
    torch.save(table | {"scalar": torch.tensor(2.0), "none": torch.empty(0, 4)}, tmp_path / "x")
    raw = (tmp_path / "x").read_bytes()
    found = {each.name: each for each in examined(tmp_path / "x").tensors}
    for name, value in table.items():
        each = found[name]
        assert (each.dtype, each.shape) == (name, (2, 3))
        assert raw[each.start : each.stop] == value.contiguous().view(torch.uint8).numpy().tobytes()
    assert found["scalar"].shape == ()
    assert found["none"].start == found["none"].stop


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_parameters_and_state_dictionaries(protocol: int, tmp_path: Path) -> None:
    table = torch.nn.Linear(3, 2).state_dict(keep_vars=True)
    torch.save(table, tmp_path / "x", pickle_protocol=protocol)
    assert {each.name: each.shape for each in examined(tmp_path / "x").tensors} == {"weight": (2, 3), "bias": (2,)}


def test_parts_of_one_storage(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    torch.save({"b": whole[2:], "a": whole[:2]}, tmp_path / "x")
    raw = (tmp_path / "x").read_bytes()
    for each, value in zip(examined(tmp_path / "x").tensors, (whole[:2], whole[2:]), strict=True):
        assert np.array_equal(np.frombuffer(raw[each.start : each.stop], "<f4").reshape(2, 3), value.numpy())


class Attack:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def deep() -> bytes:
    """A tuple of two of the tuple before it, and so on: its hash and its text would take forever."""
    return b"\x80\x02}U\x01a" + b")" + b"q\x00h\x00\x86" * 60 + b"s."


PICKLES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a command": (lambda: written({"a": Attack(os.system, ("touch /tmp/never",))}), "system"),
    "getattr": (lambda: written({"a": Attack(getattr, ("a", "b"))}), "getattr"),
    "eval": (lambda: written({"a": Attack(eval, ("1",))}), "eval"),
    "another function of torch": (lambda: written({"a": Attack(torch._utils._rebuild_sparse_tensor, (1, 2))}), "sparse"),
    "a dotted name": (lambda: b"\x80\x04}\x8c\x01a\x8c\x0ctorch._utils\x8c\x1b_rebuild_tensor_v2.__call__\x93)Rs.", "__call__"),
    "a call of a storage": (lambda: b"\x80\x02}X\x01\x00\x00\x00actorch\nFloatStorage\n)Rs.", "a call of torch FloatStorage"),
    "a call of a text": (lambda: b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x00b)Rs.", "no name"),
    "an ordered dictionary of something": (
        lambda: written(OrderedDict(a=1), 2).replace(b")R", b"K\x01\x85R"),
        "with arguments",
    ),
    "state of a tensor": (lambda: written({"a": Attack(torch._utils._rebuild_tensor_v2, (), {"x": 1})}), "no table"),
    "old instructions": (lambda: b"(i__main__\nx\n.", "instruction INST"),
    "an extension": (lambda: b"\x80\x02\x82\x01.", "instruction EXT1"),
    "a list": (lambda: pickle.dumps([1, 2], 2), "instruction EMPTY_LIST"),
    "a number": (lambda: pickle.dumps(3, 2), "no table"),
    "numbers in a table": (lambda: pickle.dumps({"a": 3}, 2), "no table"),
    "a nested table": (lambda: pickle.dumps({"a": {}}, 2), "no table"),
    "a number as a key": (lambda: pickle.dumps({1: 2}, 2), "as a key"),
    "a key twice": (lambda: b"\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x01u.", "twice"),
    "a memo bomb": (lambda: b"\x80\x02}r\xff\xff\xff\x7fj\xfe\xff\xff\x7f.", "damaged"),
    "a tuple that doubles": (lambda: deep().replace(b"U\x01a", b"X\x01\x00\x00\x00a"), "no table"),
    "a tuple that doubles as a name": (lambda: b"\x80\x04}" + b")" + b"q\x00h\x00\x86" * 60 + b"q\x01h\x01\x93.", "no text"),
    "a text without end": (lambda: b"\x80\x02X\xff\xff\xff\x7fa.", "damaged"),
    "no end": (lambda: b"\x80\x02}", "damaged"),
    "an empty stack": (lambda: b"\x80\x02s.", "damaged"),
    "marks as values": (lambda: b"\x80\x02((\x86.", "lacks its values"),
    "nothing": (lambda: b"", "damaged"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_are_more_than_a_table_of_tensors(name: str, tmp_path: Path) -> None:
    make, why = PICKLES[name]
    with pytest.raises(lm.IntegrityError) as caught:
        examined(forged(tmp_path / "x", make()))
    assert caught.value.code == "LM-ARCHIVE-PICKLE"
    assert why in caught.value.report.why


TENSORS: dict[str, tuple[Any, str]] = {
    "elements beyond the storage": (tensor(offset=11), "elements 11 to 17"),
    "a huge shape": (tensor(shape=(1 << 62, 1 << 62), strides=(1 << 62, 1)), "elements 0 to"),
    "a huge storage": (tensor(count=1 << 60), "storage of 1152921504606846976"),
    "a negative offset": (tensor(offset=-1), "whole numbers"),
    "a truth value as an offset": (tensor(offset=True), "whole numbers"),
    "a negative size": (tensor(shape=(-2, 3)), "whole numbers"),
    "repeated elements": (tensor(strides=(0, 1)), "strides"),
    "a transposed tensor": (tensor(strides=(1, 2)), "strides"),
    "too few strides": (tensor(strides=(1,)), "strides"),
    "too many dimensions": (tensor(shape=(1,) * 65, strides=(1,) * 65), "strides"),
    "an unknown storage": (tensor(kind=torch.ComplexFloatStorage), ""),
    "a member outside": (tensor(key="../version"), "named as torch does"),
    "no storage": (rebuilt(3, 0, (2,), (1,), False, OrderedDict()), "no storage"),
    "too few fields": (rebuilt(1), "no tensor"),
    "a storage of another size": (tensor(count=15), "storage of 15"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_not_what_the_archive_has(name: str, tmp_path: Path) -> None:
    value, why = TENSORS[name]
    with pytest.raises(lm.IntegrityError) as caught:
        examined(forged(tmp_path / "x", written({"a": value})))
    assert caught.value.code in ("LM-ARCHIVE-TENSOR", "LM-ARCHIVE-PICKLE")
    assert why in caught.value.report.why


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    with pytest.raises(lm.IntegrityError, match="shares bytes with a"):
        examined(forged(tmp_path / "x", written({"a": tensor(), "b": tensor(offset=5)})))
    assert len(examined(forged(tmp_path / "x", written({"a": tensor(), "b": tensor(offset=6)}))).tensors) == 2


def test_archives_that_torch_never_writes(tmp_path: Path) -> None:
    sound = written({"a": tensor()})
    with pytest.raises(lm.IntegrityError, match="is compressed"):
        examined(forged(tmp_path / "x", sound, compressed=True))
    with pytest.raises(lm.IntegrityError, match="no member 'data/0'"):
        examined(forged(tmp_path / "x", sound, members={"data/1": bytes(64)}))
    with pytest.raises(lm.IntegrityError, match="byte order"):
        examined(forged(tmp_path / "x", sound, members={"data/0": bytes(64), "byteorder": b"big"}))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = forged(tmp_path / "x", sound, members={"data/0": bytes(64), "data.pkl": sound})
    with pytest.raises(lm.IntegrityError, match="one name"):
        examined(twice)


def test_old_formats_and_other_files_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "x", _use_new_zipfile_serialization=False)
    with pytest.raises(lm.IntegrityError, match=r"torch before 1\.6") as caught:
        examined(tmp_path / "x")
    assert caught.value.code == "LM-ARCHIVE-LEGACY"
    (tmp_path / "x").write_bytes(b"data".ljust(257, b"\0") + b"ustar".ljust(1000, b"\0"))
    with pytest.raises(lm.IntegrityError, match="tar format"):
        examined(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(lm.IntegrityError, match="version https"):
        examined(tmp_path / "x")


@pytest.mark.parametrize("change", [lambda raw: raw.replace(b"lora_A", b"lora_B"), lambda raw: raw + b"x"])
def test_a_file_that_changed_since_the_plan_is_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    torch.save({"lora_A": torch.ones(2)}, tmp_path / "adapter_model.bin")
    (tmp_path / "config.json").write_text("{}")
    source = LocalProvider().open(str(tmp_path))
    assert TorchZip().detect(source) is not None
    (file,) = TorchZip().open(source).files
    TorchZip().reader(source, file).close()
    (tmp_path / "adapter_model.bin").write_bytes(change((tmp_path / "adapter_model.bin").read_bytes()))
    with pytest.raises(lm.IntegrityError, match="LM-FILE-CHANGED"):
        TorchZip().reader(source, file)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_gives_tensors_inside_of_it(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    if not path.exists():
        torch.save({"a": torch.ones(3, 4), "b": torch.ones(5)}, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(len(raw) - 40, len(raw)))])
    with contextlib.suppress(lm.IntegrityError):
        for each in examine(lambda offset, count: cut[offset : offset + count], len(cut)).tensors:
            assert 0 <= each.start <= each.stop <= len(cut)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_value_or_a_refusal(raw: bytes) -> None:
    with contextlib.suppress(lm.IntegrityError):
        run(raw)
