"""GPTQ matrices decoded in parts equal what their numbers mean, for all bits, orders, zero points, shapes and cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster_plugins.gptq.quantizer import Gptq
from loadmaster_plugins.gptq.settings import GptqSettings
from quantized_draws import row_and_column_parts
from quantized_files import Numbers, Part, Stored, check_affine, decode, fixture, gptq_tensors, numbers, rank_matrix, whole

GPTQ = Gptq()


def said(**fields: Any) -> Any:
    return GptqSettings(**fields).as_mapping()


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Numbers, dict[str, torch.Tensor], Any]:
    bits = draw(st.sampled_from([2, 3, 4, 8]))
    size = draw(st.sampled_from([16, 24, 32, 64, 128, 1024]))
    out, columns = draw(st.integers(1, 70)), draw(st.integers(1, 200))
    ids = np.arange(columns) // size
    act = draw(st.booleans())
    if act:
        ids = np.random.default_rng(columns).permutation(ids)
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
    symmetric = draw(st.booleans())
    matrix = numbers(draw(st.integers(0, 99)), bits, out, columns, ids, symmetric=symmetric, dtype=dtype)
    version = draw(st.sampled_from(["v1", "v2", "plain"]))
    tensors = gptq_tensors(matrix, version=version)
    label = draw(st.sampled_from(["v1", "v2"])) if version == "plain" else version
    return matrix, tensors, said(bits=bits, group_size=size, sym=symmetric, desc_act=act, version=label)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_part_is_its_part_of_the_whole(data: st.DataObject) -> None:
    matrix, tensors, settings_said = data.draw(matrices())
    claim = GPTQ.claim(Stored(tensors), settings_said)
    assert claim is not None
    assert (claim.out_features, claim.in_features) == matrix.codes.shape
    assert claim.bits == matrix.bits
    for part in data.draw(row_and_column_parts(*matrix.codes.shape)):
        packed = rank_matrix(GPTQ, claim, tensors, part)
        found = packed.weight(0, packed.shape[0])
        assert found.dtype == matrix.scales.dtype
        exact = part.of(matrix.weights())
        assert torch.equal(found, torch.from_numpy(exact).to(found.dtype))
        start, stop = sorted((data.draw(st.integers(0, packed.shape[0])), data.draw(st.integers(0, packed.shape[0]))))
        assert torch.equal(packed.weight(start, stop), found[start:stop])
        check_affine(packed.affine(), found)


def test_groups_that_lie_together_have_the_affine_form_and_others_have_not() -> None:
    matrix = numbers(0, 4, 16, 96, np.arange(96) // 32)
    tensors = gptq_tensors(matrix)
    claim = GPTQ.claim(Stored(tensors), said(sym=False))
    assert claim is not None
    parts = {inner: rank_matrix(GPTQ, claim, tensors, Part([(0, 16)], [inner])) for inner in CUTS}
    weights = torch.from_numpy(matrix.weights()).half()
    assert all(torch.equal(part.weight(0, 16), weights[:, inner[0] : inner[1]]) for inner, part in parts.items())
    forms = {inner: part.affine() for inner, part in parts.items()}
    assert {inner: None if form is None else form.group_size for inner, form in forms.items()} == CUTS


CUTS = {(0, 96): 32, (32, 96): 32, (16, 96): None, (16, 80): None, (0, 48): None, (40, 56): 16}
"""Columns of one rank, and the group size that it has there: none where a group is partial, unless there is no other."""


def test_a_part_without_elements_is_empty() -> None:
    matrix = numbers(0, 4, 16, 64, np.arange(64) // 32)
    tensors = gptq_tensors(matrix)
    claim = GPTQ.claim(Stored(tensors), said(sym=False))
    assert claim is not None
    assert rank_matrix(GPTQ, claim, tensors, Part([(0, 0)], [(0, 64)])).weight(0, 0).shape == (0, 64)
    assert rank_matrix(GPTQ, claim, tensors, Part([(0, 16)], [(0, 0)])).weight(0, 16).shape == (16, 0)


def test_nothing_larger_than_a_few_tiles_is_made() -> None:
    matrix = numbers(0, 4, 64, 256, np.arange(256) // 64)
    tensors = gptq_tensors(matrix)
    claim = GPTQ.claim(Stored(tensors), said(sym=False))
    assert claim is not None
    packed = rank_matrix(GPTQ, claim, tensors, whole(claim))
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not result._is_view():
                sizes.append(result.nbytes)
            return result

    with Watch():  # type: ignore[no-untyped-call]
        packed.weight(0, 4)
    assert sizes
    assert max(sizes) <= 4 * 256 * 4


@pytest.mark.parametrize("name", ["gptq-4b-g64-sym", "gptq-8b-g64-sym", "gptq-4b-g64-asym-act"])
def test_files_of_auto_gptq_decode_to_its_own_bits(name: str) -> None:
    tensors, config, expected = fixture(name)
    assert torch.equal(decode(GPTQ, tensors, GPTQ.settings(config, lambda _: None)).float(), expected)


def test_a_file_of_gptqmodel_decodes_to_its_own_bits_in_the_type_it_used() -> None:
    tensors, config, expected = fixture("gptqv2-4b-g64-asym")
    settings_said = GPTQ.settings(config, lambda _: None)
    in_half = decode(GPTQ, tensors, settings_said).float()
    assert (in_half - expected).abs().max() < 4e-3 * expected.abs().max()
    tensors["scales"] = tensors["scales"].bfloat16()
    assert torch.equal(decode(GPTQ, tensors, settings_said).float(), expected)


@pytest.mark.parametrize(
    ("bits", "columns", "offered"),
    [(4, ((0, 64),), True), (4, ((64, 128),), True), (4, ((4, 68),), False), (4, ((0, 60),), False), (8, ((0, 64),), False)],
)
def test_words_are_offered_where_all_of_their_codes_are_the_ranks_own(
    bits: int, columns: tuple[tuple[int, int], ...], offered: bool
) -> None:
    matrix = numbers(7, bits, 32, 128, np.arange(128) // 4)
    tensors = gptq_tensors(matrix)
    claim = GPTQ.claim(Stored(tensors), said(bits=bits, group_size=4))
    assert claim is not None
    affine = rank_matrix(GPTQ, claim, tensors, Part(out=((0, 32),), inner=columns)).affine()
    assert affine is not None
    assert (affine.words is not None) == offered
    if affine.words is not None:
        codes = (affine.words.unsqueeze(1) >> torch.arange(0, 32, 4, dtype=torch.int32)[:, None]) & 15
        assert torch.equal(codes.flatten(0, 1).t(), affine.codes(0, 32).to(torch.int32))
