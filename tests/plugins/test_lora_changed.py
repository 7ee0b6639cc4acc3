"""What stands for a changed parameter: linear layers and products without the sum, everything else with it."""

from __future__ import annotations

import copy

import pytest
import torch

from loadmaster_plugins.lora.changed import Changed, Factors

GENERATOR = torch.Generator().manual_seed(0)


def stack() -> tuple[Changed, torch.Tensor]:
    """Return a changed stack of three matrices [5, 4], and the sum that it stands for."""
    weight, left, right = (torch.randn(*shape, generator=GENERATOR) for shape in ((3, 5, 4), (3, 5, 2), (3, 2, 4)))
    return Changed(weight, Factors(left, right, 0.5)), weight + 0.5 * left @ right


def test_one_matrix_is_used_without_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, plain = stack()
    monkeypatch.setattr(Changed, "dense", lambda _self: pytest.fail("the sum was made"))
    x, y = torch.randn(6, 4, generator=GENERATOR), torch.randn(6, 5, generator=GENERATOR)
    bias = torch.randn(5, generator=GENERATOR)
    for index in (2, torch.tensor(1)):
        one, expected = changed[index], plain[index]
        assert torch.allclose(torch.nn.functional.linear(x, one), x @ expected.T, atol=1e-5)
        assert torch.allclose(torch.nn.functional.linear(x, one, bias), x @ expected.T + bias, atol=1e-5)
        assert torch.allclose(y @ one, y @ expected, atol=1e-5)
    all_at_once = torch.bmm(y.expand(3, 6, 5), changed)  # type: ignore[call-overload]
    assert torch.allclose(all_at_once, torch.bmm(y.expand(3, 6, 5), plain), atol=1e-5)
    assert (changed.shape, changed[0].shape) == ((3, 5, 4), (5, 4))


def test_everything_else_is_done_with_the_sum() -> None:
    changed, plain = stack()
    assert torch.allclose(changed.transpose(1, 2), plain.transpose(1, 2))
    assert torch.allclose(changed[torch.tensor([0, 2])], plain[[0, 2]])
    assert torch.allclose(changed[1][2:4], plain[1, 2:4])
    assert torch.allclose(torch.stack([changed[0].T, changed[1].T]), plain[:2].mT)
    assert torch.allclose(torch.einsum("eoi,ni->eno", changed, torch.eye(4)), plain.mT)


def test_a_copy_of_a_module_shares_its_parameters() -> None:
    module = torch.nn.Linear(4, 5)
    twin = copy.copy(module)
    twin.__dict__["weight"] = stack()[0][0]
    assert twin.bias is module.bias
    assert isinstance(module.weight, torch.nn.Parameter)
    assert not torch.equal(torch.nn.Linear.forward(twin, torch.ones(4)), module(torch.ones(4)))
