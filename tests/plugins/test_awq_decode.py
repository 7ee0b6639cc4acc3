"""AWQ matrices decoded in parts equal what their numbers mean, for all layouts, group sizes, shapes and cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster_plugins.awq.quantizer import Awq
from loadmaster_plugins.awq.settings import AwqSettings
from quantized_draws import row_and_column_parts
from quantized_files import (
    Numbers,
    Part,
    Stored,
    check_affine,
    decode,
    fixture,
    gemm_tensors,
    gemv_fast_tensors,
    gemv_tensors,
    numbers,
    rank_matrix,
)

AWQ = Awq()
WORDS = {(256, 32): 4, (256, 64): 2, (256, 128): 1, (256, 256): 1, (640, 64): 2, (640, 32): 4, (1280, 128): 2, (1280, 32): 8}
"""Words of zero points per row for columns and group size in gemv, counted by hand from autoawq's rule: groups / 8, rounded
up, and for groups of 64 and 32 rounded up to twos and fours."""


def said(**fields: Any) -> Any:
    return AwqSettings(**fields).as_mapping()


@st.composite
def gemm_matrices(draw: st.DrawFn) -> tuple[Numbers, dict[str, torch.Tensor], Any]:
    size = draw(st.sampled_from([16, 32, 64, 128, -1]))
    out, columns = 8 * draw(st.integers(1, 9)), draw(st.integers(1, 200))
    ids = np.arange(columns) // (columns if size == -1 else size)
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16]))
    symmetric = draw(st.booleans())
    matrix = numbers(draw(st.integers(0, 99)), 4, out, columns, ids, symmetric=symmetric, dtype=dtype)
    tensors = gemm_tensors(matrix)
    if symmetric:
        del tensors["qzeros"]
    return matrix, tensors, said(group_size=size, zero_point=not symmetric)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_part_is_its_part_of_the_whole(data: st.DataObject) -> None:
    matrix, tensors, settings_said = data.draw(gemm_matrices())
    claim = AWQ.claim(Stored(tensors), settings_said)
    assert claim is not None
    assert (claim.out_features, claim.in_features) == matrix.codes.shape
    for part in data.draw(row_and_column_parts(*matrix.codes.shape)):
        packed = rank_matrix(AWQ, claim, tensors, part)
        found = packed.weight(0, packed.shape[0])
        assert torch.equal(found, torch.from_numpy(part.of(matrix.weights())).to(matrix.scales.dtype))
        start, stop = sorted((data.draw(st.integers(0, packed.shape[0])), data.draw(st.integers(0, packed.shape[0]))))
        assert torch.equal(packed.weight(start, stop), found[start:stop])
        check_affine(packed.affine(), found)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_parts_of_the_layouts_by_rows(data: st.DataObject) -> None:
    (columns, size), words = data.draw(st.sampled_from(list(WORDS.items())))
    matrix = numbers(data.draw(st.integers(0, 99)), 4, 8 * data.draw(st.integers(1, 4)), columns, np.arange(columns) // size)
    fast = data.draw(st.booleans())
    tensors = gemv_fast_tensors(matrix, words) if fast else gemv_tensors(matrix, words)
    claim = AWQ.claim(Stored(tensors), said(group_size=size))
    assert claim is not None
    assert claim.params["layout"] == ("gemv_fast" if fast else "gemv")
    exact = fast_weights(matrix) if fast else matrix.weights()
    for part in data.draw(row_and_column_parts(*matrix.codes.shape)):
        packed = rank_matrix(AWQ, claim, tensors, part)
        found = packed.weight(0, packed.shape[0])
        assert torch.equal(found, torch.from_numpy(part.of(exact)).to(torch.float16))
        check_affine(packed.affine(), found)


def fast_weights(matrix: Numbers) -> Any:
    """Return what gemv_fast stores: the product of scale and zero point is rounded to half precision beforehand."""
    scales = matrix.scales.double().numpy()
    offsets = (-scales * matrix.zeros).astype(np.float16).astype(np.float64)
    return matrix.codes * scales[matrix.groups].T + offsets[matrix.groups].T


def test_words_hold_columns_in_the_order_of_autoawq() -> None:
    word = torch.tensor([[0x75316420]], dtype=torch.int32)
    tensors = {"qweight": word, "qzeros": torch.zeros_like(word), "scales": torch.ones((1, 8), dtype=torch.float16)}
    assert decode(AWQ, tensors, said(group_size=-1)).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_zero_points_are_taken_as_they_are() -> None:
    codes, zeros = np.zeros((8, 1), np.int64), np.zeros((1, 8))
    codes[:2, 0], zeros[0, :2] = (5, 9), (0, 9)
    matrix = Numbers(4, codes, zeros, torch.full((1, 8), 0.5, dtype=torch.float16), np.zeros(1, np.int64))
    assert decode(AWQ, gemm_tensors(matrix), said(group_size=-1)).flatten().tolist() == [2.5, 0.0, 0, 0, 0, 0, 0, 0]


def test_a_file_of_autoawq_decodes_to_its_own_bits() -> None:
    tensors, config, expected = fixture("awq-4b-g64")
    assert torch.equal(decode(AWQ, tensors, AWQ.settings(config, lambda _: None)).float(), expected)


@pytest.mark.parametrize(("part", "shape"), [(Part([(0, 0)], [(0, 64)]), (0, 64)), (Part([(0, 16)], [(0, 0)]), (16, 0))])
def test_a_part_without_elements_is_empty(part: Part, shape: tuple[int, int]) -> None:
    tensors = gemm_tensors(numbers(0, 4, 16, 64, np.arange(64) // 32))
    claim = AWQ.claim(Stored(tensors), said(group_size=32))
    assert claim is not None
    assert rank_matrix(AWQ, claim, tensors, part).weight(0, shape[0]).shape == shape
