"""A module whose tokens have different adapters: results, inputs and parameters change for their own tokens alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.run.adapters.axes import TokenAxes
from loadmaster_engine.run.adapters.choice import Choice, Segment, segments
from loadmaster_engine.run.adapters.selection import Selection
from loadmaster_engine.run.adapters.sites import Site
from loadmaster_hookspecs.adapters import LiveChange
from loadmaster_hookspecs.errors import WorkerError

WIDTH = 3


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def adapted(choice: Choice) -> tuple[torch.nn.Linear, Site]:
    """Return a module with adapter 1, which changes results, 2, which changes inputs, and 3, which replaces the weight."""
    module = torch.nn.Linear(WIDTH, WIDTH)
    site = Site("layer", module, choice, {})
    site.add(1, LiveChange(lambda x, result: result + 10 * x), {})
    site.add(2, LiveChange(input=lambda x: -x), {})
    site.add(3, LiveChange(lambda x, result: 2 * result), {"weight": torch.nn.Parameter(torch.eye(WIDTH), requires_grad=False)})
    return module, site


runs = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=8)


@settings(deadline=None)
@given(runs, st.booleans())
def test_each_token_gets_what_it_gets_alone(runs: list[tuple[int, int]], batched: bool) -> None:
    choice = Choice()
    module, _ = adapted(choice)
    found = segments(runs)
    assert [(one.adapter, token) for one in found for token in range(one.begin, one.begin + one.size)] == [
        (adapter, place) for place, adapter in enumerate(adapter for adapter, size in runs for _ in range(size))
    ]
    x = torch.randn(sum(size for _, size in runs), WIDTH)
    given = x.clone()
    choice.several(found, found)
    together = module(x.unsqueeze(0))[0] if batched else module(x)
    assert torch.equal(x, given)
    for segment in found:
        own = x[segment.begin : segment.begin + segment.size]
        expected = {
            0: torch.nn.functional.linear(own, module.weight, module.bias),
            1: torch.nn.functional.linear(own, module.weight, module.bias) + 10 * own,
            2: torch.nn.functional.linear(-own, module.weight, module.bias),
            3: 2 * (own + module.bias),
            4: torch.nn.functional.linear(own, module.weight, module.bias),
        }[segment.adapter]
        torch.testing.assert_close(together[segment.begin : segment.begin + segment.size], expected)


def test_the_head_sees_rows_and_other_sizes_are_an_error() -> None:
    choice = Choice()
    module, _ = adapted(choice)
    choice.several((Segment(0, 0, 2), Segment(1, 2, 4)), (Segment(0, 0, 1), Segment(1, 1, 1)))
    x = torch.ones(2, WIDTH)
    plain = torch.nn.functional.linear(x, module.weight, module.bias)
    torch.testing.assert_close(module(x), plain + torch.tensor([[0.0], [10.0]]))
    with pytest.raises(WorkerError, match="called with 3 rows"):
        module(torch.ones(3, WIDTH))


def test_a_module_is_left_as_it_was() -> None:
    choice = Choice()
    module, site = adapted(choice)
    assert [site.drop(number) for number in (1, 2, 3)] == [False, False, True]
    assert not module._forward_hooks
    assert not module._forward_pre_hooks


def test_axes_are_learnt_from_two_runs() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.heads, self.last = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.idle = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.heads(self.plain(x).unsqueeze(1).expand(-1, 7, -1, -1))
            result: torch.Tensor = self.last(heads[:, 0, -1:])
            return result

    axes, model = TokenAxes(), Model()
    assert axes.obstacle("idle") == ""
    with axes.watching(model):
        model(torch.ones(1, 1, WIDTH))
        model(torch.ones(1, 7, WIDTH))
    assert axes.axes == {"plain": 1, "heads": 2}
    assert axes.obstacle("last") == ""
    assert axes.obstacle("idle") == "the model does not call it in a step"
    assert not model.plain._forward_pre_hooks


def test_code_of_an_adapter_and_the_product_that_serving_chose_do_not_lose_each_other() -> None:
    choice = Choice()
    module = torch.nn.Linear(WIDTH, WIDTH)
    selection = Selection(module, TokenAxes())
    own, x = torch.nn.functional.linear, torch.randn(2, WIDTH)

    def chosen(rows: torch.Tensor) -> torch.Tensor:
        return own(rows, module.weight, module.bias) + 5

    site = Site("layer", module, choice, {})
    site.add(1, LiveChange(forward=lambda rows: 3 * rows), {})
    selection._sites["layer"] = site
    with selection.aside():
        assert torch.equal(module(x), own(x, module.weight, module.bias))
        vars(module)["forward"] = chosen
    assert torch.equal(module(x), chosen(x))
    choice.one(1)
    assert torch.equal(module(x), 3 * x)
    choice.several((Segment(1, 0, 1), Segment(0, 1, 1)), (Segment(1, 0, 1), Segment(0, 1, 1)))
    assert torch.equal(module(x), torch.cat([3 * x[:1], chosen(x)[1:]]))
    choice.one(0)
    assert site.drop(1)
    assert torch.equal(module(x), chosen(x))
    assert vars(module)["forward"] is chosen
