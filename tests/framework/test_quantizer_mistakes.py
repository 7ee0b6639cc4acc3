"""What a quantizer or kernel gets wrong is an error that names its plugin, before it becomes wrong numbers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import loadmaster as lm
from loadmaster.plugin import AxisMap, Claim, FileReader, Matrix, PackedMatrix, TensorLayout, hookimpl
from loadmaster_hookspecs.quantization import MatrixFacts, StoredMatrix, Suitability
from nibble_files import quantise_folder
from tiny_models import make_model, save_model

sys.path.insert(0, str(Path(__file__).parents[2] / "contrib" / "loadmaster-nibble" / "src"))

nibble: Any = importlib.import_module("loadmaster_nibble")
LAYOUT: tuple[TensorLayout, ...] = nibble.LAYOUT
NIBBLES, STEPS = LAYOUT
ALONG_OUT = AxisMap(axis="out")


class Mistaken:
    """The tutorial's quantizer with one answer replaced."""

    name = "mistaken"

    def __init__(self, claim: Callable[[Claim], Any], layout: Any, matrix: Callable[..., Any] | None) -> None:
        self._claim, self._layout, self._matrix = claim, layout, matrix

    def settings(self, config: Mapping[str, Any], read: FileReader) -> None:
        return None

    def outline(self, settings: Mapping[str, Any]) -> None:
        return None

    def claim(self, stored: StoredMatrix, settings: Mapping[str, Any] | None) -> Any:
        claim = nibble.Nibble().claim(stored, settings)
        return claim and self._claim(claim)

    def layout(self, claim: Claim) -> Any:
        return self._layout

    def matrix(self, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
        made: Matrix = (self._matrix or nibble.NibbleMatrix)(tensors["nibbles"], tensors["steps"])
        return made


class Plugin:
    """A plugin of given quantizers and kernels."""

    def __init__(self, quantizers: list[Any], kernels: list[Any]) -> None:
        self._quantizers, self._kernels = quantizers, kernels

    @hookimpl
    def loadmaster_quantizers(self) -> list[Any]:
        return self._quantizers

    @hookimpl
    def loadmaster_kernels(self) -> list[Any]:
        return self._kernels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_model(make_model("llama", hidden_size=128, head_dim=32, intermediate_size=224, num_hidden_layers=1), made)
    quantise_folder(made, lambda name: name.endswith("_proj.weight"))
    return made


def fault(
    folder: Path,
    claim: Callable[[Claim], Any] = lambda claim: claim,
    layout: Any = LAYOUT,
    matrix: Callable[..., Any] | None = None,
    kernels: tuple[Any, ...] = (),
    **options: Any,
) -> lm.PluginError:
    """Return the error of loading with a mistake, which has to name the plugin."""
    plugin = Plugin([Mistaken(claim, layout, matrix)], list(kernels))
    with (
        pytest.raises(lm.PluginError) as caught,
        lm.Engine(folder, executor="inline", plugins=[plugin], **options) as engine,
    ):
        engine.logits([1, 2, 3])
    assert caught.value.code == "LM-PLUGIN-FAILED"
    assert caught.value.report.where["plugin"] == "tests.framework.test_quantizer_mistakes.Plugin#1"
    return caught.value


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"suffixes": ()}, "each has to be there, once"),
        ({"suffixes": ("nibbles", "stepz")}, "claims ['nibbles', 'stepz'] of ['nibbles', 'steps']"),
        ({"suffixes": ("nibbles", "nibbles", "steps")}, "each has to be there, once"),
        ({"out_features": 2**62}, "out_features = 4611686018427387904"),
        ({"in_features": 0}, "in_features = 0, at least 1"),
        ({"out_features": -8}, "out_features = -8"),
        ({"out_features": 130}, "dimensions of [130, 112] are laid out for a matrix of 130 rows and 224 columns"),
        ({"bits": 0}, "bits = 0"),
        ({"bits": "4"}, "Expected `int`, got `str` - at `$.bits`"),
        ({"group_size": 2**70}, "group_size = 1180591620717411303424"),
        ({"dtype": "float32"}, "no element type is called 'float32'"),
        ({"params": {"a": object()}}, "object is unsupported"),
        ({"score": float("nan")}, "score nan"),
        ({"findings": ("x",)}, "at `$.findings[0]`"),
        ({"suffixes": ("nibbles",)}, "lays out ['nibbles', 'steps'], and claims ['nibbles']"),
    ],
)
def test_claims(changes: dict[str, Any], why: str, folder: Path) -> None:
    assert why in fault(folder, lambda claim: replace(claim, **changes)).report.why


def test_what_is_no_claim(folder: Path) -> None:
    assert "returned bool instead of a Claim or None" in fault(folder, lambda claim: True).report.why


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (None, "returned NoneType"),
        ((), "lays out []"),
        (("nibbles",), "instead of a tuple of TensorLayout"),
        ((*LAYOUT, TensorLayout(name="ghost", dims=(ALONG_OUT,))), "lays out ['nibbles', 'steps', 'ghost']"),
        ((*LAYOUT, NIBBLES), "each once"),
        ((replace(NIBBLES, dims=(ALONG_OUT,)), STEPS), "1 dimensions of [128]"),
        ((replace(NIBBLES, dims=(AxisMap(axis="in"), AxisMap(axis="out", per=2))), STEPS), "stored as [128, 112]"),
        ((replace(NIBBLES, dims=(ALONG_OUT, AxisMap(axis="in", per=0))), STEPS), "per = 0"),
        ((replace(NIBBLES, dtype="uint8"), STEPS), "'uint8'"),
        ((replace(NIBBLES, staged=True), STEPS), "which only a kernel may do"),
    ],
)
def test_layouts(layout: Any, why: str, folder: Path) -> None:
    assert why in fault(folder, layout=layout).report.why


def raising(nibbles: torch.Tensor, steps: torch.Tensor) -> Any:
    def fail(*rows: int) -> None:
        raise KeyError("no such row")

    made = nibble.NibbleMatrix(nibbles, steps)
    made.weight = made.affine = fail
    return made


def short(nibbles: torch.Tensor, steps: torch.Tensor) -> Any:
    made = nibble.NibbleMatrix(nibbles, steps)
    weight, affine = made.weight, made.affine
    made.weight = lambda start, stop: weight(start, stop)[:, :-1]
    made.affine = lambda: affine()._replace(zeros=steps)
    return made


@pytest.mark.parametrize(
    ("matrix", "kernel", "call", "why"),
    [
        (lambda nibbles, steps: None, "dequant", "matrix of quantizer", "no attribute 'shape'"),
        (
            lambda nibbles, steps: nibble.NibbleMatrix(nibbles[:-1], steps),
            "dequant",
            "matrix of quantizer",
            "shape [127, 128], the plan has [128, 128]",
        ),
        (raising, "dequant", "weight of a matrix", "no such row"),
        (raising, "torch-int4", "affine of a matrix", "no such row"),
        (short, "dequant", "weight of a matrix", "returned [128, 127] for 128 rows of 128 columns"),
        (short, "torch-int4", "affine of a matrix", "zeros are [128, 4], expected [4, 128]"),
    ],
)
def test_matrices(matrix: Callable[..., Any], kernel: str, call: str, why: str, folder: Path) -> None:
    found = fault(folder, matrix=matrix, kernel=kernel)
    assert call in str(found.report.where["call"])
    assert why in found.report.why


class Forgetful:
    """A kernel that answers with given layouts."""

    name = "forgetful"

    def __init__(self, layouts: Callable[[tuple[TensorLayout, ...]], Any]) -> None:
        self._layouts = layouts

    def judge(self, facts: MatrixFacts) -> Suitability:
        return Suitability(score=1, reason="always")

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> Any:
        return self._layouts(layouts)

    def prepare(self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts) -> Any:
        return lambda x: x


@pytest.mark.parametrize(
    ("layouts", "why"),
    [
        (lambda given: None, "returned NoneType"),
        (lambda given: given[:1], "steps is left out"),
        (lambda given: (replace(given[0], dims=(ALONG_OUT,)), given[1]), "nibbles is changed"),
        (lambda given: (*given, TensorLayout(name="more", dims=(ALONG_OUT,))), "more is in no file"),
        (lambda given: (*given, TensorLayout(name="more", dims=(AxisMap(axis="x"),), computed=True)), "axes ['x'], known are"),
    ],
)
def test_layouts_of_kernels(layouts: Callable[[tuple[TensorLayout, ...]], Any], why: str, folder: Path) -> None:
    assert why in fault(folder, kernels=(Forgetful(layouts),)).report.why
