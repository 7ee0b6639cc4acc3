"""A module of the running model that adapters change: its hooks, and the slices of a step that each adapter gets to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from loadmaster_engine.run.adapters.axes import CallAxes, shapes_of, tensors_in, usual_axis
from loadmaster_engine.run.adapters.choice import MIXED, Choice, Segment
from loadmaster_hookspecs.adapters import LiveChange
from loadmaster_hookspecs.errors import WorkerError

Parameters = dict[str, torch.nn.Parameter]
NOTHING = LiveChange()


class Site:
    """One changed module. Hooks run inside those of the collectives, so that changes belong to the partial results that the
    ranks put together anyway.

    `axes` has what is known of modules' tokens, by path. Of others the `usual_axis` holds, in all tensors of that size there.
    """

    def __init__(self, path: str, module: torch.nn.Module, choice: Choice, axes: Mapping[str, CallAxes]) -> None:
        self.changes: dict[int, LiveChange] = {}
        self.replaced: dict[int, Parameters] = {}
        self._path = path
        self._module = module
        self._choice = choice
        self._axes = axes
        self._after = module.register_forward_hook(self._change_result, prepend=True, with_kwargs=True)
        self._before: torch.utils.hooks.RemovableHandle | None = None
        self._instead = False
        self._own: Callable[..., Any] | None = None

    def add(self, number: int, change: LiveChange | None, replaced: Parameters) -> None:
        """Let the module change while adapter `number` is chosen."""
        if change is not None:
            self.changes[number] = change
        if replaced:
            self.replaced[number] = replaced
        if change is not None and change.input is not None and self._before is None:
            self._before = self._module.register_forward_pre_hook(self._change_input)
        if change is not None and change.forward is not None and not self._instead:
            self._instead = True
            self.step_in()

    def drop(self, number: int) -> bool:
        """Forget an adapter, and return whether none is left: then the module is again as if there had been none."""
        self.changes.pop(number, None)
        self.replaced.pop(number, None)
        if self.changes or self.replaced:
            return False
        self._after.remove()
        if self._before is not None:
            self._before.remove()
        self.step_aside()
        return True

    def step_in(self) -> None:
        """Run in the place of the module's code, or of what serving multiplies with, where an adapter asks for that."""
        if self._instead:
            # What an instance holds itself is found before its class's: hooks run around it as around the module's own.
            self._own = vars(self._module).get("forward")
            vars(self._module)["forward"] = self._forward

    def step_aside(self) -> None:
        """Leave the module as it was before `step_in`."""
        if self._instead:
            del vars(self._module)["forward"]
            if self._own is not None:
                vars(self._module)["forward"] = self._own

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run what the one adapter of all tokens has in the place of the module's own code, or else that."""
        change = self.changes.get(self._choice.number, NOTHING).forward
        own: Callable[..., Any] = self._own or type(self._module).forward.__get__(self._module)
        return (own if change is None else change)(*args, **kwargs)

    def _change_input(self, _module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        number = self._choice.number
        if not number:
            return None
        if number != MIXED:
            change = self.changes.get(number, NOTHING).input
            return None if change is None else (change(args[0]), *args[1:])
        axis, segments = self._segments(args[0])
        x = args[0].clone()  # others may read what this module is given
        for segment in segments:
            change = self.changes.get(segment.adapter, NOTHING).input
            if change is not None:
                part = x.narrow(axis, segment.begin, segment.size)
                part.copy_(change(part))
        return (x, *args[1:])

    def _change_result(self, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        number = self._choice.number
        if not number:
            return None
        if number != MIXED:
            change = self.changes.get(number, NOTHING).result
            return None if change is None else change(args[0], output)
        axis, segments = self._segments(args[0])
        for segment in segments:
            if segment.adapter in self.changes or segment.adapter in self.replaced:
                self._change_segment(segment, axis, args, kwargs, output)
        return None

    def _change_segment(self, segment: Segment, axis: int, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Write into `output` what the module gives for the tokens of one adapter; `axis` is that of the first argument."""
        known = self._axes.get(self._path)
        size = args[0].shape[axis]
        results = known.result if known else _alike(output, axis, size)
        change = self.changes.get(segment.adapter, NOTHING)
        replaced = self.replaced.get(segment.adapter)
        if replaced is None and change.forward is None:
            if change.result is not None:
                part = _part(output, iter(results), segment)
                changed = change.result(args[0].narrow(axis, segment.begin, segment.size), part)
                if changed is not part:
                    _write(output, results, segment, changed)
            return
        given = (args, tuple(kwargs.values()))
        own, values = _part(given, iter(known.given if known else _alike(given, axis, size)), segment)
        with _replaced(self._module, replaced or {}):
            forward = change.forward or self._module.forward  # itself, since hooks are for the whole step
            part = forward(*own, **dict(zip(kwargs, values, strict=True)))
            _write(output, results, segment, part if change.result is None else change.result(own[0], part))

    def _segments(self, x: torch.Tensor) -> tuple[int, tuple[Segment, ...]]:
        known = self._axes.get(self._path)
        learnt = known.given[0] if known else None
        axis = usual_axis(x.shape, ids=not x.is_floating_point()) if learnt is None else learnt
        found = self._choice.of(x.shape[axis])
        if found is None:
            raise WorkerError(
                "LM-ADAPTER-TOKENS",
                "requests with different adapters cannot share a step here",
                where={"module": self._path},
                why=f"the module is called with {x.shape[axis]} rows, which are not the tokens of the step",
                hints=["use one adapter at a time with this model, or an adapter that leaves this module alone"],
            )
        return axis, found


def _alike(value: Any, axis: int, size: int) -> tuple[int | None, ...]:
    """Return the tokens' dimension of each tensor: `axis` where it has `size`, or else the first, or none."""
    shapes = shapes_of(value)
    return tuple(next((dim for dim in (axis, 0) if shape[dim : dim + 1] == (size,)), None) for shape in shapes)


def _part(value: Any, axes: Iterator[int | None], segment: Segment) -> Any:
    """Return the part of tensors that belongs to a segment. What has no tokens is the same for all."""
    if isinstance(value, tuple | list):
        return tuple(_part(each, axes, segment) for each in value)
    if not isinstance(value, torch.Tensor):
        return value
    axis = next(axes)
    return value if axis is None else value.narrow(axis, segment.begin, segment.size)


def _write(output: Any, axes: Iterable[int | None], segment: Segment, value: Any) -> None:
    for whole, axis, own in zip(tensors_in(output), axes, tensors_in(value), strict=True):
        if axis is not None:
            whole.narrow(axis, segment.begin, segment.size).copy_(own)


@contextmanager
def _replaced(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Put parameters in the place of the module's own for a while."""
    own = {name: module._parameters[name] for name in parameters}
    module._parameters.update(parameters)
    try:
        yield
    finally:
        module._parameters.update(own)
