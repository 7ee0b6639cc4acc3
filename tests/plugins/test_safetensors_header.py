"""The header parser against the safetensors library, and against bytes that no library wrote."""

from __future__ import annotations

import hashlib
import json
import math
import time
from typing import Any

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from checkpoints import MemorySource, entry, header
from checkpoints import tensors as some_tensors
from loadmaster_hookspecs.dtypes import BITS, itemsize
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_plugins.hf_safetensors.header import LONGEST_HEADER, Header, parse_header
from loadmaster_plugins.hf_safetensors.judge import judge


def parse(content: bytes) -> Header:
    """Judge a whole file the way the loader does."""
    return judge(MemorySource({"f.safetensors": content}), "f.safetensors").header


def refusal(content: bytes) -> IntegrityError:
    with pytest.raises(IntegrityError) as caught:
        parse(content)
    assert caught.value.report.where["file"] == "f.safetensors"
    return caught.value


def oracle(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return what the safetensors library reads: type, shape and bytes of every tensor."""
    return {
        name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    }


def read_out(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the same facts by our own header."""
    return {t.name: (t.dtype, t.shape, content[t.start : t.stop]) for t in parse(content).tensors}


class TestSound:
    def test_a_file_from_the_library_reads_as_the_library_reads_it(self) -> None:
        content = save(some_tensors(), metadata={"format": "pt"})
        assert read_out(content) == oracle(content)

    def test_the_header_knows_its_length_and_digest(self) -> None:
        content = save(some_tensors())
        length = 8 + int.from_bytes(content[:8], "little")
        assert parse(content).nbytes == length
        assert parse(content).sha256 == hashlib.sha256(content[:length]).hexdigest()

    def test_scalars_and_tensors_without_elements_are_fine(self) -> None:
        document = {"none": entry([0, 5], 2, 2, "F32"), "scalar": entry([], 0, 2, "BF16"), "also_none": entry([0], 0, 0)}
        content = header(document) + b"ab"
        assert read_out(content) == oracle(content)
        assert {name: shape for name, (_, shape, _) in read_out(content).items()} == {
            "none": (0, 5),
            "scalar": (),
            "also_none": (0,),
        }

    def test_json_order_is_free_and_the_result_is_in_file_order(self) -> None:
        content = header({"b": entry([3], 2, 5), "a": entry([2], 0, 2)}) + b"aabbb"
        assert [tensor.name for tensor in parse(content).tensors] == ["a", "b"]

    def test_padding_after_the_object_is_fine(self) -> None:
        content = header(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}     ') + b"a"
        assert [tensor.name for tensor in parse(content).tensors] == ["a"]

    @pytest.mark.parametrize("dtype", sorted(BITS))
    def test_every_element_type_is_read(self, dtype: str) -> None:
        size = 3 * itemsize(dtype)
        content = header({"t": entry([3], 0, size, dtype)}) + bytes(size)
        assert read_out(content) == oracle(content)

    def test_twenty_thousand_tensors_take_a_moment(self) -> None:
        document = {
            f"model.layers.{i // 9}.experts.{i % 9}.weight": entry([2, 4], 16 * i, 16 * i + 16, "BF16") for i in range(20_000)
        }
        raw = header(document)
        begin = time.process_time()
        parsed = parse_header(raw, len(raw) + 16 * 20_000)
        assert len(parsed.tensors) == 20_000
        assert time.process_time() - begin < 2


class TestSize:
    def test_a_truncated_file_is_named_with_expected_and_actual_bytes(self) -> None:
        content = save(some_tensors())
        error = refusal(content[:-5])
        assert error.code == "LM-FILE-TRUNCATED"
        assert str(len(content)) in error.report.why
        assert str(len(content) - 5) in error.report.why

    @pytest.mark.parametrize("kept", [0, 3, 8, 20])
    def test_a_file_that_ends_inside_its_header_is_truncated(self, kept: int) -> None:
        assert refusal(save(some_tensors())[:kept]).code == "LM-FILE-TRUNCATED"

    def test_trailing_bytes_belong_to_no_tensor(self) -> None:
        error = refusal(save(some_tensors()) + b"more")
        assert error.code == "LM-FILE-TRAILING"
        assert "4 too many" in error.report.why

    @pytest.mark.parametrize("length", [0, 1, LONGEST_HEADER + 1, 2**63, 2**64 - 1])
    def test_impossible_header_lengths(self, length: int) -> None:
        error = refusal(length.to_bytes(8, "little") + b"{}" * 50)
        assert error.code == "LM-HEADER-LENGTH"
        assert str(length) in error.report.why

    def test_an_impossible_length_is_refused_before_anything_of_that_size_is_read(self) -> None:
        source = MemorySource({"f.safetensors": (2**40).to_bytes(8, "little") + bytes(1000)})
        with pytest.raises(IntegrityError):
            judge(source, "f.safetensors")
        assert source.bytes_read == 8


def one(**changes: object) -> dict[str, Any]:
    """Return a sound document of one tensor of four bytes, with changes to its entry."""
    return {"t": entry([4], 0, 4) | changes}


MALFORMED: dict[str, tuple[str, object]] = {
    "not json": ("LM-HEADER-JSON", b"{nonsense}"),
    "not utf-8": ("LM-HEADER-JSON", b'{"\xff": 1}'),
    "utf-16": ("LM-HEADER-JSON", json.dumps({}).encode("utf-16")),
    "an array": ("LM-HEADER-JSON", b'[{"a": 1}]'),
    "leading space": ("LM-HEADER-JSON", b" {}"),
    "two objects": ("LM-HEADER-JSON", b"{}{}"),
    "NaN": ("LM-HEADER-JSON", b'{"t": NaN}'),
    "endless number": ("LM-HEADER-JSON", b'{"t": ' + b"9" * 5000 + b"}"),
    "deep nesting": ("LM-HEADER-JSON", b'{"t":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "same tensor twice": (
        "LM-HEADER-JSON",
        b'{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"t":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}',
    ),
    "same key twice in an entry": ("LM-HEADER-JSON", b'{"t":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}'),
    "half a surrogate pair": ("LM-HEADER-JSON", rb'{"\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
    "NUL in a name": ("LM-HEADER-NAME", {"a\0b": entry([4], 0, 4)}),
    "escape in a name": ("LM-HEADER-NAME", {"a\x1b[31m": entry([4], 0, 4)}),
    "no name": ("LM-HEADER-NAME", {"": entry([4], 0, 4)}),
    "entry is a list": ("LM-HEADER-ENTRY", {"t": []}),
    "entry lacks shape": ("LM-HEADER-ENTRY", {"t": {"dtype": "U8", "data_offsets": [0, 4]}}),
    "entry has more": ("LM-HEADER-ENTRY", one(strides=[1])),
    "shape is a number": ("LM-HEADER-ENTRY", one(shape=4)),
    "shape of floats": ("LM-HEADER-ENTRY", one(shape=[4.0])),
    "shape of booleans": ("LM-HEADER-ENTRY", one(shape=[True, 4])),
    "shape of texts": ("LM-HEADER-ENTRY", one(shape=["4"])),
    "three offsets": ("LM-HEADER-ENTRY", one(data_offsets=[0, 2, 4])),
    "float offsets": ("LM-HEADER-ENTRY", one(data_offsets=[0, 4.0])),
    "unknown type": ("LM-HEADER-DTYPE", one(dtype="Q4_K")),
    "type is null": ("LM-HEADER-DTYPE", one(dtype=None)),
    "type is a list": ("LM-HEADER-DTYPE", one(dtype=["U8"])),
    "negative dimension": ("LM-HEADER-SHAPE", one(shape=[-2, -2])),
    "shape too large for its bytes": ("LM-HEADER-SHAPE", one(shape=[5])),
    "shape too small for its bytes": ("LM-HEADER-SHAPE", one(shape=[3])),
    "product overflows": ("LM-HEADER-SHAPE", one(shape=[2**32, 2**32, 2**32])),
    "product wraps to the right size": ("LM-HEADER-SHAPE", one(shape=[2**62 + 1, 4])),
    "dimension beyond 63 bits": ("LM-HEADER-SHAPE", one(shape=[0, 2**63], data_offsets=[0, 0])),
    "65 dimensions": ("LM-HEADER-SHAPE", one(shape=[1] * 64 + [4])),
    "negative offset": ("LM-HEADER-OFFSETS", one(data_offsets=[-4, 0])),
    "offsets in reverse": ("LM-HEADER-OFFSETS", one(data_offsets=[4, 0])),
    "offset beyond 63 bits": ("LM-HEADER-OFFSETS", one(data_offsets=[0, 2**64 + 4])),
    "first tensor does not begin at 0": ("LM-HEADER-OFFSETS", {"t": entry([3], 1, 4)}),
    "overlap": ("LM-HEADER-OFFSETS", {"a": entry([3], 0, 3), "b": entry([3], 1, 4)}),
    "same range twice": ("LM-HEADER-OFFSETS", {"a": entry([4], 0, 4), "b": entry([4], 0, 4)}),
    "hole": ("LM-HEADER-OFFSETS", {"a": entry([1], 0, 1), "b": entry([2], 2, 4)}),
    "empty tensor beyond the rest": ("LM-HEADER-OFFSETS", {"a": entry([4], 0, 4), "b": entry([0], 9, 9)}),
    "more than the file has": ("LM-FILE-TRUNCATED", one(shape=[2**40], data_offsets=[0, 2**40])),
    "metadata is a list": ("LM-HEADER-METADATA", {"__metadata__": [], "t": entry([4], 0, 4)}),
    "metadata with a number": ("LM-HEADER-METADATA", {"__metadata__": {"a": 1}, "t": entry([4], 0, 4)}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_headers_are_refused_with_their_code(case: str) -> None:
    code, document = MALFORMED[case]
    error = refusal(header(document) + b"data")
    assert error.code == code
    assert len(str(error)) < 2000


def test_all_faults_of_a_kind_are_in_one_error_and_folded() -> None:
    document = {f"t{i}": entry([4], 4 * i, 4 * i + 4, "F99") for i in range(100)}
    error = refusal(header(document) + bytes(400))
    assert error.code == "LM-HEADER-DTYPE"
    assert "100 faults" in error.report.why
    assert "'t0'" in error.report.why
    assert "and 96 more" in error.report.why
    assert "'t50'" not in error.report.why


def test_names_of_any_length_are_cut_in_messages() -> None:
    error = refusal(header({"x" * 100_000: entry([1], 0, 4)}) + bytes(4))
    assert len(str(error)) < 1000


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 5), max_size=4)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw a sound file: any names, types and shapes, entries in any order, optional metadata and padding."""
    chosen = draw(st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(BITS)), SHAPES), max_size=6))
    document: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in chosen.items():
        stop = end + math.prod(shape) * itemsize(dtype)
        document[name] = entry(shape, end, stop, dtype)
        end = stop
    order = draw(st.permutations(list(document)))
    shuffled = {name: document[name] for name in order}
    if draw(st.booleans()):
        shuffled["__metadata__"] = draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
    text = json.dumps(shuffled, ensure_ascii=draw(st.booleans())).encode() + b" " * draw(st.integers(0, 9))
    return header(text) + draw(st.binary(min_size=end, max_size=end))


@settings(max_examples=100, deadline=None)
@given(files())
def test_sound_files_read_as_the_library_reads_them(content: bytes) -> None:
    assert read_out(content) == oracle(content)


@settings(max_examples=250, deadline=None)
@given(files(), st.data())
def test_mutated_files_are_refused_or_read_as_the_library_reads_them(content: bytes, data: st.DataObject) -> None:
    mutated = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        what = data.draw(st.sampled_from(["set", "cut", "insert", "delete"]))
        if what == "set" and mutated:
            mutated[at] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del mutated[at:]
        elif what == "delete":
            del mutated[at : at + data.draw(st.integers(1, 8))]
        else:
            mutated[at:at] = data.draw(st.sampled_from([b"0", b"9", b"-", b"[", b"{", b'"', b",", b"\0", b"1e9", b"null"]))
    try:
        found = read_out(bytes(mutated))
    except IntegrityError:
        return
    assert found == oracle(bytes(mutated))
