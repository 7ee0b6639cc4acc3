"""Products of matrices that stay as they are: as exact as torch's own, widened or for few numbers of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadmaster_engine.run.products import plain
from loadmaster_engine.run.products.processor import processor_features
from loadmaster_engine.run.products.row_counts import padded, padded_count


def linear(dtype: torch.dtype, *, bias: bool = False) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(96, 70, bias=bias, dtype=dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 30, 96), (2, 3, 7, 96), (1, 0, 96), (1, 2, 96)])
def test_a_widened_product_is_the_exact_one_rounded(
    dtype: torch.dtype, bias: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "TILE_BYTES", 96 * 4 * 16)  # pieces of 16 rows, the last one shorter
    module = linear(dtype, bias=bias)
    rows = torch.randn(shape).to(dtype)
    exact = torch.nn.functional.linear(rows.double(), module.weight.double(), module.bias.double() if bias else None)
    assert plain.compute_plainly(module, frozenset()) == 1
    result = module(rows)
    assert result.dtype == dtype
    assert result.shape == exact.shape
    torch.testing.assert_close(result, exact.to(dtype))
    if rows.numel() >= plain.WORTHWHILE * 96:
        assert torch.equal(
            result,
            torch.nn.functional.linear(rows.float(), module.weight.float(), module.bias.float() if bias else None).to(dtype),
        )


@pytest.mark.parametrize("count", [0, 1, 3, 33])
def test_few_numbers_of_rows_change_no_result(count: int) -> None:
    module = torch.nn.Linear(24, 10)
    rows = torch.randn(1, count, 24)
    result = plain.few_shapes(module, rows)
    assert result.shape == (1, count, 10)
    torch.testing.assert_close(result, module(rows))


def test_rows_are_filled_up_to_few_numbers() -> None:
    counts = [padded_count(count) for count in range(2049)]
    assert len(set(counts)) == 29
    assert all(count <= more < 2 * count for count, more in enumerate(counts) if count)
    assert all(more <= 1.25 * count for count, more in enumerate(counts) if count > 64)
    filled = padded(torch.ones(33, 4))
    assert filled.shape == (48, 4)
    assert filled.sum() == 33 * 4
    assert padded(filled) is filled


def test_who_has_another_product_already_and_what_is_wide_stays() -> None:
    assert plain.compute_plainly(linear(torch.float32), frozenset()) == 0
    module = torch.nn.Sequential(linear(torch.bfloat16), torch.nn.LayerNorm(3))
    assert plain.compute_plainly(module, frozenset()) == 1
    assert plain.compute_plainly(module, frozenset()) == 0


@pytest.mark.parametrize(("dtype", "way"), [(torch.bfloat16, plain.few_shapes), (torch.float16, plain.widened)])
def test_the_way_depends_on_the_processor(dtype: torch.dtype, way: object) -> None:
    module = linear(dtype)
    plain.compute_plainly(module, frozenset({"avx512_bf16"}))
    assert vars(module)["forward"].func is way


def test_hooks_around_a_widened_module_still_run() -> None:
    module = linear(torch.bfloat16)
    module.register_forward_hook(lambda _module, _args, output: output + 1)
    rows = torch.ones(1, 9, 96, dtype=torch.bfloat16)
    before = module(rows)
    plain.compute_plainly(module, frozenset())
    torch.testing.assert_close(module(rows), before, atol=0.02, rtol=0.02)


def test_features_are_those_the_system_names(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text("processor : 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor : 1\nflags\t\t: other\n")
    (tmp_path / "arm").write_text("processor : 0\nFeatures\t: fp asimd bf16\n")
    assert processor_features(tmp_path / "x86") == {"fpu", "avx2", "avx512_bf16"}
    assert "bf16" in processor_features(tmp_path / "arm")
    assert processor_features(tmp_path / "none") == frozenset()
