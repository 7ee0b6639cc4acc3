"""Conversions by arithmetic against transformers' own, carried out on real tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ConversionOps,
    Interleave,
    MergeModulelist,
    Split,
    Transpose,
    WeightConverter,
)

from loadmaster_plugins.transformers_models.arrangement import Arranged, stored
from loadmaster_plugins.transformers_models.conversions import Scene, UnknownOperation, convert

PARAMETER = "layers.0.mlp.out"


class Parts(torch.nn.Module):
    """A model whose parameters have the sizes that one stored tensor is split into."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.empty(2, 3)), torch.nn.Parameter(torch.empty(4, 3))


def assemble(arranged: Arranged, files: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Copy every part to its place."""
    result = torch.zeros(arranged.shape)
    for part in arranged.parts:
        box = files[part.tensor][tuple(slice(a, a + n) for a, n in zip(part.start, part.extent, strict=True))]
        order = sorted(range(len(part.dims)), key=lambda index: part.dims[index])
        sizes = dict(zip(part.dims, part.extent, strict=True))
        place = tuple(slice(begin, begin + sizes.get(dim, 1)) for dim, begin in enumerate(part.at))
        result[place] = box.permute(order).reshape([sizes.get(dim, 1) for dim in range(len(arranged.shape))])
    return result


CASES: dict[str, tuple[list[str], list[str], list[ConversionOps], dict[str, int]]] = {
    "experts": (["gate", "up"], ["out"], [MergeModulelist(dim=0), Concatenate(dim=1)], {"gate": 3, "up": 3}),
    "one list": (["down"], ["out"], [MergeModulelist(dim=0)], {"down": 4}),
    "halves": (["both"], ["out", "other"], [Chunk(dim=0)], {"both": 1}),
    "transposed": (["turned"], ["out"], [Transpose(0, 1)], {"turned": 1}),
    "transposed halves": (["both"], ["out", "other"], [Transpose(0, 1), Chunk(dim=1)], {"both": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_conversion_equals_that_of_transformers(case: str) -> None:
    sources, targets, operations, counts = CASES[case]
    files = {f"{key}.{i}": torch.rand(6, 4) for key, count in counts.items() for i in range(count)}
    collected = {key: [stored(f"{key}.{i}", (6, 4)) for i in range(count)] for key, count in counts.items()}
    converter = WeightConverter(list(sources), list(targets), operations=operations)
    made = convert(converter, PARAMETER, collected, Scene(sources, targets, PARAMETER, {}, None))
    for key, count in counts.items():
        for number in range(count):
            converter.add_tensor(PARAMETER, f"{key}.{number}", key, lambda tensor=files[f"{key}.{number}"]: tensor)  # type: ignore[arg-type]
    expected: dict[str, Any] = converter.convert(PARAMETER)
    assert made.keys() == expected.keys()
    for name, tensors in expected.items():
        tensor = tensors[0] if isinstance(tensors, list) else tensors
        assert torch.equal(assemble(made[name], files), tensor)


def test_a_split_takes_the_sizes_of_the_parameters() -> None:
    converter = WeightConverter(["both"], ["a", "b"], operations=[Split(dim=0)])
    scene = Scene(["both"], ["a", "b"], "a", {name: tuple(p.shape) for name, p in Parts().named_parameters()}, None)
    made = convert(converter, "a", {"both": [stored("both", (6, 3))]}, scene)
    both = torch.rand(6, 3)
    assert torch.equal(assemble(made["a"], {"both": both}), both[:2])
    assert torch.equal(assemble(made["b"], {"both": both}), both[2:])


def test_a_transposition_that_checks_leaves_a_tensor_of_the_right_shape() -> None:
    converter = WeightConverter(["w"], ["out"], operations=[Transpose(0, 1, check_dims=True)])
    for shape, expected in (((2, 3), (2, 3)), ((3, 2), (2, 3))):
        scene = Scene(["w"], ["out"], PARAMETER, {PARAMETER: (2, 3)}, None)
        assert convert(converter, PARAMETER, {"w": [stored("w", shape)]}, scene)[PARAMETER].shape == expected


def test_an_operation_that_is_no_arithmetic_is_named() -> None:
    converter = WeightConverter(["w"], ["out"], operations=[Interleave(dim=0)])
    with pytest.raises(UnknownOperation, match="Interleave"):
        convert(converter, PARAMETER, {"w": [stored("w", (4, 2))]}, Scene(["w"], ["out"], PARAMETER, {}, None))
