"""Along which dimension of a module's input the tokens of a step run, found out by watching the model run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROUTED = re.compile(r"(^|\.)experts\.\d+(\.|$)")
"""Paths of modules that get the tokens a router sends them."""


class TokenAxes:
    """What is known of a model's modules: `axes` of those that were seen, which tokens reach a module, and which do not."""

    def __init__(self) -> None:
        self.axes: dict[str, int] = {}
        self._seen: set[str] = set()

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Watch runs of different numbers of tokens: the dimension that changes from the first to the last is the tokens'."""
        import torch

        shapes: dict[str, list[tuple[int, ...]]] = {}

        def note(path: str, _module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], torch.Tensor):
                shapes.setdefault(path, []).append(tuple(args[0].shape))

        owners = [(path, module) for path, module in model.named_modules() if module._parameters]
        handles = [module.register_forward_pre_hook(partial(note, path)) for path, module in owners]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._seen |= shapes.keys()
        for path, (first, *_, last) in ((path, each) for path, each in shapes.items() if len(each) > 1):
            changed = [axis for axis, (a, b) in enumerate(zip(first, last, strict=False)) if a != b]
            if len(first) == len(last) and len(changed) == 1:
                self.axes[path] = changed[0]

    def obstacle(self, path: str) -> str:
        """Return why the tokens that a module is given cannot be told apart, or an empty string."""
        if ROUTED.search(path):
            return "it is given the tokens that a router sends it, and no others"
        return "the model does not call it in a step" if self._seen and path not in self._seen else ""
