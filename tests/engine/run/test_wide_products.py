"""Widened products: as exact as the plain ones, and only where the processor cannot multiply the type itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadmaster_engine.run.paged import wide


def linear(dtype: torch.dtype, *, bias: bool = False) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(96, 70, bias=bias, dtype=dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 30, 96), (2, 3, 7, 96), (1, 0, 96), (1, 2, 96)])
def test_a_widened_product_is_the_exact_one_rounded(
    dtype: torch.dtype, bias: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "TILE_BYTES", 96 * 4 * 16)  # pieces of 16 rows, the last one shorter
    module = linear(dtype, bias=bias)
    rows = torch.randn(shape).to(dtype)
    exact = torch.nn.functional.linear(rows.double(), module.weight.double(), module.bias.double() if bias else None)
    assert wide.widen(module, frozenset()) == 1
    result = module(rows)
    assert result.dtype == dtype
    assert result.shape == exact.shape
    torch.testing.assert_close(result, exact.to(dtype))
    if rows.numel() >= wide.WORTHWHILE * 96:
        assert torch.equal(
            result,
            torch.nn.functional.linear(rows.float(), module.weight.float(), module.bias.float() if bias else None).to(dtype),
        )


def test_what_the_processor_can_do_and_what_is_wide_stays() -> None:
    assert wide.widen(linear(torch.bfloat16), frozenset({"avx512_bf16"})) == 0
    assert wide.widen(linear(torch.float16), frozenset({"avx512_bf16"})) == 1
    assert wide.widen(linear(torch.float32), frozenset()) == 0
    module = torch.nn.Sequential(linear(torch.bfloat16), torch.nn.LayerNorm(3))
    assert wide.widen(module, frozenset()) == wide.widen(module, frozenset()) == 1


def test_hooks_around_a_widened_module_still_run() -> None:
    module = linear(torch.bfloat16)
    module.register_forward_hook(lambda _module, _args, output: output + 1)
    rows = torch.ones(1, 9, 96, dtype=torch.bfloat16)
    before = module(rows)
    wide.widen(module, frozenset())
    torch.testing.assert_close(module(rows), before, atol=0.02, rtol=0.02)


def test_features_are_those_the_system_names(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text("processor : 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor : 1\nflags\t\t: other\n")
    (tmp_path / "arm").write_text("processor : 0\nFeatures\t: fp asimd bf16\n")
    assert wide.processor_features(tmp_path / "x86") == {"fpu", "avx2", "avx512_bf16"}
    assert "bf16" in wide.processor_features(tmp_path / "arm")
    assert wide.processor_features(tmp_path / "none") == frozenset()
