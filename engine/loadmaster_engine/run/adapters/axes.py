"""Along which dimensions of what a module is given and returns the tokens of a step run, found by watching the model run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

ROUTED = re.compile(r"(^|\.)experts\.\d+(\.|$)")
"""Paths of modules that get the tokens a router sends them."""

Shapes = tuple[tuple[int, ...], ...]


class CallAxes(NamedTuple):
    """The tokens' dimension of every tensor that a module is `given` and that is its `result`, None of those without one.

    Tensors are in the order of `tensors_in`: arguments, then keyword arguments.
    """

    given: tuple[int | None, ...]
    result: tuple[int | None, ...]


class _Call(NamedTuple):
    """The shapes of one call; `first` says that the first argument is a tensor, the module's input."""

    given: Shapes
    result: Shapes
    first: bool


class TokenAxes:
    """What is known of a model's modules: `axes` of those that were seen, which tokens reach a module, and which do not."""

    def __init__(self) -> None:
        self.axes: dict[str, CallAxes] = {}
        self._seen: set[str] = set()
        self._odd: dict[str, str] = {}

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Watch two steps, of one token and of several: the dimension that grows from one to more is the tokens'."""
        import torch

        calls: dict[str, list[_Call]] = {}

        def note(path: str, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            first = bool(args) and isinstance(args[0], torch.Tensor)
            calls.setdefault(path, []).append(_Call(shapes_of((*args, *kwargs.values())), shapes_of(result), first))

        owners = [(path, module) for path, module in model.named_modules() if module._parameters]
        handles = [module.register_forward_hook(partial(note, path), prepend=True, with_kwargs=True) for path, module in owners]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._seen |= calls.keys()
        for path, each in calls.items():
            try:
                axes = _of_all(each)
            except ValueError as odd:
                self._odd[path] = str(odd)
            else:
                if axes:
                    self.axes[path] = axes

    def obstacle(self, path: str) -> str:
        """Return why the tokens that a module is given cannot be told apart, or an empty string."""
        if ROUTED.search(path):
            return "it is given the tokens that a router sends it, and no others"
        if self._seen and path not in self._seen:
            return "the model does not call it in a step"
        return self._odd.get(path, "")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, of tuples and lists those inside, in their order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def shapes_of(value: Any) -> Shapes:
    """Return the shapes of `tensors_in`."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(value))


def usual_axis(shape: Sequence[int], *, ids: bool = False) -> int:
    """Return the tokens' dimension of an input where it was not learnt: 1 of [1, tokens, ...] and of ids [1, tokens]."""
    return 1 if shape[0] == 1 and (len(shape) > 2 or ids) else 0


def _of_all(calls: Sequence[_Call]) -> CallAxes | None:
    """Return what `_learnt` does of a module that both steps call, each as often and alike. Raises as that does."""
    half = len(calls) // 2
    found = {_learnt(one, several) for one, several in zip(calls[:half], calls[half:], strict=False)}
    if len(found) != 1 or len(calls) % 2:
        raise ValueError("the model calls it in different ways")
    return found.pop()


def _learnt(one: _Call, several: _Call) -> CallAxes | None:
    """Return the axes of a module by its calls for one token and for several, None where these are the usual ones.

    Raises ValueError with the reason where tokens cannot be told apart.
    """
    if not (one.first and one.result):
        raise ValueError("its first argument is no tensor, or its result has none")
    if (len(one.given), len(one.result)) != (len(several.given), len(several.result)):
        raise ValueError("the model calls it in different ways")
    axes = CallAxes(_grown(one.given, several.given), _grown(one.result, several.result))
    if axes.given[0] is not None:
        return axes
    rows = one.given[0][usual_axis(one.given[0])] if one.given[0] else 0
    if rows != 1:  # with one row it is the head, which sees the last token whatever their number
        raise ValueError(f"it is given {rows} rows, however many tokens there are")
    return None


def _grown(one: Shapes, several: Shapes) -> tuple[int | None, ...]:
    """Return the dimension of each tensor that is one for one token, and another number for several."""
    axes: list[int | None] = []
    for before, after in zip(one, several, strict=True):
        grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
        if len(before) != len(after) or len(grown) > 1:
            raise ValueError("it does more with tokens than treat each by itself")
        if grown and before[grown[0]] != 1:
            raise ValueError(f"it is given or returns {before[grown[0]]} rows for one token")
        axes.append(grown[0] if grown else None)
    return tuple(axes)
