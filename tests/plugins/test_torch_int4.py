"""The kernel over torch's packed int4 matrices: what it accepts, what it does to tensors, and torch's order of codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from affine_matrices import AffineMatrix, make_case, stored_layouts
from loadmaster_hookspecs import PlanError
from loadmaster_hookspecs.quantization import Affine
from loadmaster_plugins.kernels.dequant import Dequant
from loadmaster_plugins.kernels.int4_layout import BlockOrder, machine_order, pack, unpack_into
from loadmaster_plugins.kernels.int4_rearrange import rearrange
from loadmaster_plugins.kernels.torch_int4 import SCALES_AND_ZEROS, TorchInt4, repack
from plugins.kernel_harness import arena_tensors

KERNEL = TorchInt4()
FACTS = make_case().facts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bits": 8}, "8 bits"),
        ({"bits": 3}, "3 bits"),
        ({"stacked": True}, "stack"),
        ({"group_size": 0}, "groups of 0"),
        ({"group_size": 16}, "groups of 16"),
        ({"group_size": 512, "columns": 1024}, "groups of 512"),
        ({"aligned": False}, "shared with another rank"),
        ({"rows": 72}, "72 rows"),
        ({"rows": 0}, "0 rows"),
        ({"columns": 112}, "112 columns"),
        ({"columns": 0}, "0 columns"),
        ({"dtype": "F64"}, "F64 on cpu"),
        ({"device": "mps"}, "BF16 on mps"),
        ({"device": "cuda", "dtype": "F16"}, "F16 on cuda"),
    ],
)
def test_what_does_not_suit_says_why(change: dict[str, object], reason: str) -> None:
    judged = KERNEL.judge(msgspec.structs.replace(FACTS, **change))
    assert not judged.suits
    assert reason in judged.reason


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_comes_before_dequant_where_it_suits(device: str) -> None:
    facts = msgspec.structs.replace(FACTS, device=device)
    assert KERNEL.judge(facts).score > Dequant().judge(facts).score > 0


@pytest.mark.parametrize("quantizer", ["gptq", "awq"])
def test_codes_are_rewritten_in_place_and_the_rest_is_given_back(quantizer: str) -> None:
    case = make_case(quantizer, dtype="F16")
    marks = {found.name: found for found in KERNEL.layouts(stored_layouts(case), case.facts)}
    assert {name for name, found in marks.items() if found.scratched} == {"qweight"}
    assert {name for name, found in marks.items() if found.staged} == {"qzeros", "scales"}
    added = marks[SCALES_AND_ZEROS]
    assert (added.computed, added.dtype, added.role) == (True, "F16", "scales")
    assert [(dim.axis, dim.extent(128)) for dim in added.dims] == [("in", 4), ("out", 128), ("pair", 128)]


def test_a_quantizer_that_does_not_say_where_its_codes_are() -> None:
    case = make_case()
    unnamed = tuple(msgspec.structs.replace(layout, role="") for layout in stored_layouts(case))
    with pytest.raises(PlanError) as caught:
        KERNEL.layouts(unnamed, case.facts)
    assert caught.value.code == "LM-KERNEL-LAYOUT"


@pytest.mark.parametrize("quantizer", ["gptq", "awq"])
def test_the_packed_memory_holds_torchs_own_packing(quantizer: str) -> None:
    case = make_case(quantizer, rows=80, columns=96)
    codes = case.matrix.codes(0, 80)
    tensors = arena_tensors(KERNEL, case)
    address = tensors["qweight"].data_ptr()
    KERNEL.prepare(case.matrix, tensors, case.facts)
    assert tensors["qweight"].data_ptr() == address
    assert torch.equal(tensors["qweight"].view(-1).view(torch.uint8), pack(codes).view(-1))


def test_a_matrix_without_codes_is_refused() -> None:
    class Opaque(AffineMatrix):
        def affine(self) -> Affine | None:
            return None

    case = make_case()
    opaque = Opaque(**vars(case.matrix))
    before = case.tensors["qweight"].clone()
    with pytest.raises(PlanError) as caught:
        KERNEL.prepare(opaque, arena_tensors(KERNEL, case), case.facts)
    assert caught.value.code == "LM-KERNEL-UNFIT"
    assert torch.equal(case.tensors["qweight"], before)


def test_too_little_memory_is_refused() -> None:
    case = make_case()
    tensors = {**arena_tensors(KERNEL, case), "qweight": case.tensors["qweight"][:-1]}
    with pytest.raises(PlanError) as caught:
        KERNEL.prepare(case.matrix, tensors, case.facts)
    assert "too few packed bytes" in caught.value.report.why


@pytest.mark.parametrize("rows", [16, 32, 48, 64, 80, 112, 176, 256])
def test_packing_is_inverted(rows: int) -> None:
    order = machine_order()
    assert order is not None
    codes = torch.randint(0, 16, (rows, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))
    tile = torch.empty(96, rows)
    unpack_into(tile, pack(codes), order)
    assert torch.equal(tile.T, codes - 8.0)


def test_tiles_of_64_rows_are_packed_independently() -> None:
    codes = torch.randint(0, 16, (208, 64), dtype=torch.uint8)
    parts = [pack(codes[start : start + 64]) for start in range(0, 208, 64)]
    assert torch.equal(torch.cat(parts), pack(codes))


@pytest.mark.parametrize(("capability", "order"), [("avx2", BlockOrder(32, True)), ("default", BlockOrder(32, False))])
def test_orders_of_narrower_vectors(capability: str, order: BlockOrder) -> None:
    """torch chooses its code when it is imported, so another process computes as on an older processor."""
    if torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}:
        pytest.skip("no x86 processor with AVX2")
    ended = subprocess.run(
        [sys.executable, "-c", OLDER_PROCESSOR],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(order.block), str(order.halves), "right"]


OLDER_PROCESSOR = """
import torch
from affine_matrices import make_case
from loadmaster_plugins.kernels.int4_layout import machine_order
from loadmaster_plugins.kernels.torch_int4 import TorchInt4
from plugins.kernel_harness import prepared

case = make_case(rows=112, columns=256, group_size=64)
product = prepared(TorchInt4(), case)
ones = torch.eye(256).bfloat16()
bound = 2.0**-7 * (case.weight.abs() + 8 * case.scale).T
right = all(((product(x).double() - case.weight.T[: len(x)]).abs() <= bound[: len(x)]).all() for x in (ones, ones[:3]))
print(*machine_order(), "right" if right else "wrong")
"""


@pytest.mark.parametrize("order", [BlockOrder(64, True), BlockOrder(32, True), BlockOrder(16, False)])
@pytest.mark.parametrize("rows", [16, 64, 80, 2048, 1136])
def test_words_are_rearranged_into_whole_blocks(order: BlockOrder, rows: int) -> None:
    columns = 96
    codes = torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(rows))
    words = (codes.view(rows, -1, 8) << torch.arange(0, 32, 4)).sum(-1).to(torch.int32).t().contiguous()
    packed = torch.full((rows, columns // 2), 255, dtype=torch.uint8)
    done = rearrange(words, packed, order)
    assert done == (rows // order.block * order.block if order.halves else 0)
    tile = torch.empty(columns, done)
    unpack_into(tile, packed[:done], order)
    assert torch.equal(tile.T, codes[:done] - 8.0)
    assert torch.all(packed[done:] == 255)


@pytest.mark.parametrize("rows", [2048, 1136])
def test_words_and_codes_give_the_same(rows: int) -> None:
    case = make_case("gptq", rows=rows, columns=256)
    affine = case.matrix.affine()
    assert affine is not None
    words, repacked = case.tensors["qweight"], []
    for offered in (words.clone(), None):
        memory = words.clone().view(-1).view(torch.uint8).view(rows, 128)
        repack(memory, affine._replace(words=offered), pack, machine_order())
        repacked.append(memory)
    assert torch.equal(*repacked)
