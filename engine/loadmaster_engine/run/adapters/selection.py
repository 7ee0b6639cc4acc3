"""Which of the adapters that are ready the next steps use: one for all tokens, or each for its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadmaster_engine.run.adapters.axes import TokenAxes
from loadmaster_engine.run.adapters.choice import MIXED, Choice, Segment
from loadmaster_engine.run.adapters.merging import put
from loadmaster_engine.run.adapters.resident import Resident
from loadmaster_engine.run.adapters.sites import Parameters, Site
from loadmaster_hookspecs.errors import PlanError, WorkerError

if TYPE_CHECKING:
    import torch


class Selection:
    """The changed modules of one model. While no adapter is here no module has a hook of ours.

    Where one adapter is chosen for all tokens, the parameters that it brings are in the model itself; in a mixed step modules
    run again for its tokens.
    """

    def __init__(self, model: torch.nn.Module, axes: TokenAxes) -> None:
        self._model = model
        self._axes = axes
        self._choice = Choice()
        self._sites: dict[str, Site] = {}
        self._replaced: dict[int, Parameters] = {}
        self._own: dict[str, torch.nn.Parameter | None] = {}

    def add(self, adapter: Resident) -> None:
        """Let steps choose an adapter."""
        by_owner: dict[str, Parameters] = {path: {} for path in adapter.changes}
        for name, parameter in adapter.replaced.items():
            path, _, last = name.rpartition(".")
            by_owner.setdefault(path, {})[last] = parameter
        for path, replaced in by_owner.items():
            if path not in self._sites:
                module = self._model.get_submodule(path)
                self._sites[path] = Site(path, module, self._choice, self._axes.axes)
            self._sites[path].add(adapter.number, adapter.changes.get(path), replaced)
        self._replaced[adapter.number] = adapter.replaced

    def drop(self, number: int) -> None:
        """Forget an adapter."""
        if self._replaced.pop(number, None) is None:
            return
        self.one(0)
        self._sites = {path: site for path, site in self._sites.items() if not site.drop(number)}

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Give modules their own code back for a while, in which the product that they multiply with is chosen."""
        for site in self._sites.values():
            site.step_aside()
        try:
            yield
        finally:
            for site in self._sites.values():
                site.step_in()

    def one(self, number: int) -> None:
        """Use this adapter for all tokens from now on, 0 for none. Raises WorkerError LM-SERVICE-ADAPTER for unknown ones."""
        if number == self._choice.number:
            return
        if number:
            self._check(number)
        for name, own in self._own.items():
            put(self._model, name, own)
        self._own = {name: put(self._model, name, parameter) for name, parameter in self._replaced.get(number, {}).items()}
        self._choice.one(number)

    def several(self, tokens: tuple[Segment, ...], rows: tuple[Segment, ...]) -> None:
        """Use adapters by token in the next step (`Choice`)."""
        if len(tokens) == 1:
            self.one(tokens[0].adapter)
            return
        for segment in tokens:
            if segment.adapter:
                self._check(segment.adapter)
        if self._choice.number != MIXED:
            self.one(0)
        self._choice.several(tokens, rows)

    def check_fits(self, adapter: Resident) -> None:
        """Raise PlanError LM-ADAPTER-ALONE for an adapter whose changes cannot be kept to some tokens of a step."""
        paths = {part.path: "" for part in adapter.plan.parts}
        for each in adapter.plan.replacements:
            others = any(child._parameters for child in list(self._model.get_submodule(each.path).modules())[1:])
            paths[each.path] = "the module does more with its parameters than treat each token by itself" if others else ""
        for path, why in paths.items():
            if why := why or self._axes.obstacle(path):
                raise PlanError(
                    "LM-ADAPTER-ALONE",
                    "an adapter changes what requests with different adapters share",
                    where={"adapter": adapter.plan.name, "module": path},
                    why=why,
                    hints=["Engine.generate runs it, one adapter at a time", "merge it (--adapter-mode merged)"],
                )

    def _check(self, number: int) -> None:
        if number not in self._replaced:
            raise WorkerError("LM-SERVICE-ADAPTER", f"a step was asked to use adapter {number}, which is not ready")
