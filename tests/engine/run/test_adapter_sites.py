"""A module whose tokens have different adapters: results, inputs and parameters change for their own tokens alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.run.adapters.axes import CallAxes, TokenAxes
from loadmaster_engine.run.adapters.choice import Choice, Segment, segments
from loadmaster_engine.run.adapters.resident import Resident
from loadmaster_engine.run.adapters.selection import Selection
from loadmaster_engine.run.adapters.sites import Site
from loadmaster_hookspecs.adapters import AdapterPart, LiveChange
from loadmaster_hookspecs.errors import PlanError, WorkerError
from sample_adapter import sample_adapter

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
    assert axes.axes == {"plain": CallAxes((1,), (1,)), "heads": CallAxes((2,), (2,))}
    assert axes.obstacle("last") == ""
    assert axes.obstacle("idle") == "the model does not call it in a step"
    assert not model.plain._forward_hooks


class Experts(torch.nn.Module):
    """Is given every token once for each of two matrices, one matrix after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.bmm(x.view(2, -1, WIDTH), self.weight).view(-1, WIDTH)
        return result


class Repeating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()
        self.table = torch.nn.Embedding(5, WIDTH)
        self.named = torch.nn.Linear(WIDTH, WIDTH)
        self.twice = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.twice(x)[0])[None]
        result: torch.Tensor = self.experts(x[0].repeat(2, 1)).view(2, -1, WIDTH).sum(0)
        result += self.table(torch.arange(5)).sum(0) + self.named(input=x)[0]
        return result


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("experts", "it is given or returns 2 rows for one token"),
        ("table", "it is given 5 rows, however many tokens there are"),
        ("twice", "the model calls it in different ways"),
        ("named", "its first argument is no tensor, or its result has none"),
    ],
)
def test_modules_that_are_given_other_rows_than_tokens_refuse_adapters(path: str, why: str) -> None:
    axes, model = TokenAxes(), Repeating()
    with axes.watching(model):
        model(torch.ones(1, 1, WIDTH))
        model(torch.ones(1, 4, WIDTH))
    part = AdapterPart(path=path, kind="other", scale=1.0, axes={}, tensors={}, layouts=(), touches=("weight",))
    plan = msgspec.structs.replace(sample_adapter(sizes=(0,)), parts=(part,))
    with pytest.raises(PlanError) as caught:
        Selection(model, axes).check_fits(Resident(1, plan))
    assert caught.value.code == "LM-ADAPTER-ALONE"
    assert caught.value.report.why == why


class Routed(torch.nn.Module):
    """Has tokens in other dimensions of its arguments and results than of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(
        self, x: torch.Tensor, gates: torch.Tensor, shared: torch.Tensor, *, more: tuple[torch.Tensor, int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        added, factor = more
        y = (x @ self.weight) * gates.sum(-1)[None, :, None] + shared.sum() + factor * added
        return y, [gates * self.weight.sum(), shared.T @ y[0].T]


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Routed()
        self.shared = torch.randn(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, x[0, :, :2], self.shared, more=(x.flip(-1), 3))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 2), (3, 4)])
def test_every_argument_and_result_is_cut_along_its_own_tokens(sizes: tuple[int, int]) -> None:
    axes, model = TokenAxes(), Around()
    with axes.watching(model):
        model(torch.ones(1, 1, WIDTH))
        model(torch.ones(1, 5, WIDTH))
    assert axes.obstacle("inner") == ""
    assert axes.axes["inner"] == CallAxes((1, 0, None, 1), (1, 0, 1))
    x = torch.randn(1, sum(sizes), WIDTH)
    choice = Choice()
    own, other = model.inner.weight, torch.nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
    plain = model(x)
    model.inner.weight = other
    changed = model(x)
    model.inner.weight = own
    Site("inner", model.inner, choice, axes.axes).add(1, None, {"weight": other})
    found = segments(list(enumerate(sizes)))
    choice.several(found, found)
    together = model(x)
    first = sizes[0]
    for got, base, with_other, axis in (
        (together[0], plain[0], changed[0], 1),
        (together[1][0], plain[1][0], changed[1][0], 0),
        (together[1][1], plain[1][1], changed[1][1], 1),
    ):
        expected = torch.cat([base.narrow(axis, 0, first), with_other.narrow(axis, first, sizes[1])], axis)
        torch.testing.assert_close(got, expected)


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
