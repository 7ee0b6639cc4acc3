"""Arranged products: what the modules' own give, alone and together, and only while inputs and parameters are those known."""

from __future__ import annotations

import pytest
import torch

from loadmaster_engine.run.products import arranged
from loadmaster_engine.run.products.siblings import shared_inputs

pytestmark = pytest.mark.skipif(not arranged.can_arrange(), reason="this processor does not multiply bfloat16")


class Block(torch.nn.Module):
    """Two modules with one input, one of them with a bias, a third that gets it changed in place, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(96, 64, bias=True, dtype=torch.bfloat16)
        self.second = torch.nn.Linear(96, 64, bias=False, dtype=torch.bfloat16)
        self.third = torch.nn.Linear(96, 64, dtype=torch.bfloat16)
        self.last = torch.nn.Linear(64, 32, dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        both = self.first(rows) * self.second(rows)
        rows += 1
        result: torch.Tensor = self.last(both + self.third(rows))
        return result


@pytest.fixture
def block() -> Block:
    return Block()


def rows(count: int, width: int = 96) -> torch.Tensor:
    torch.manual_seed(count)
    return torch.randn(1, count, width).bfloat16()


def arrange(block: Block) -> int:
    return arranged.arrange(block, lambda: block(rows(1)))


def test_modules_with_one_input_are_found_and_others_are_not(block: Block) -> None:
    modules = [part for part in block.modules() if isinstance(part, torch.nn.Linear)]
    assert shared_inputs(modules, lambda: block(rows(1))) == [[block.first, block.second]]
    assert shared_inputs(modules, lambda: (block(rows(1)), block(rows(2)))) == []
    assert all("forward" not in vars(module) for module in modules)


@pytest.mark.parametrize("count", [0, 1, 2, 33, 200])
def test_arranged_products_are_those_of_the_modules(block: Block, count: int) -> None:
    with torch.inference_mode():
        plain = block(rows(count))
        assert arrange(block) == 2 * sum(p.numel() for n, p in block.named_parameters() if n.endswith("weight"))
        torch.testing.assert_close(block(rows(count)), plain, atol=0.02, rtol=0.02)
        assert arrange(block) == arrange(block)
        torch.testing.assert_close(block(rows(count)), plain, atol=0.02, rtol=0.02)
        arranged.restore(block)
        assert torch.equal(block(rows(count)), plain)


@pytest.mark.parametrize("name", ["first.weight", "first.bias", "second.weight", "third.weight"])
def test_another_parameter_is_used_at_once(block: Block, name: str) -> None:
    with torch.inference_mode():
        arrange(block)
        path, _, last = name.rpartition(".")
        own = block.get_parameter(name)
        block.get_submodule(path)._parameters[last] = torch.nn.Parameter(-3 * own, requires_grad=False)
        arranged_result = block(rows(5))
        arranged.restore(block)
        torch.testing.assert_close(arranged_result, block(rows(5)), atol=0.02, rtol=0.02)


def test_another_input_for_one_of_them_is_multiplied_by_itself(block: Block) -> None:
    with torch.inference_mode():
        first, second = block.first(rows(4)), block.second(rows(3))
        arrange(block)
        torch.testing.assert_close(block.second(rows(3)), second, atol=0.02, rtol=0.02)
        torch.testing.assert_close(block.first(rows(4)), first, atol=0.02, rtol=0.02)
        torch.testing.assert_close(block.second(rows(3)), second, atol=0.02, rtol=0.02)
        wide = rows(3).float()
        torch.testing.assert_close(block.second.float()(wide), block.second(wide))


def test_hooks_see_inputs_and_change_outputs(block: Block) -> None:
    with torch.inference_mode():
        block.second.register_forward_hook(lambda _module, args, output: output + args[0][..., :64])
        plain = block(rows(7))
        arrange(block)
        torch.testing.assert_close(block(rows(7)), plain, atol=0.05, rtol=0.05)
        block.second.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
        changed = block(rows(7))
        arranged.restore(block)
        torch.testing.assert_close(changed, block(rows(7)), atol=0.05, rtol=0.05)


def test_only_processors_that_multiply_bfloat16_arrange() -> None:
    assert arranged.can_arrange(frozenset({"amx_bf16"}))
    assert not arranged.can_arrange(frozenset({"avx2", "avx512f"}))
