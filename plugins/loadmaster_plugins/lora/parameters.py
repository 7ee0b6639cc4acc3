"""Pairs of single parameters, as peft's `target_parameters` makes them: above all the stacked matrices of a layer's experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from loadmaster_hookspecs.adapters import AdapterModule, AdapterPart, StoredAdapter
from loadmaster_hookspecs.errors import IntegrityError, PlanError
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_plugins.lora.pairs import check_roles
from loadmaster_plugins.lora.settings import Settings
from loadmaster_plugins.peft_files.matching import wrong_shape
from loadmaster_plugins.peft_files.scene import Scene, shapes_of

MATRICES: Final = 3
"""Dimensions of a stack of matrices; a parameter of two is one matrix."""


class Wrapped(NamedTuple):
    """A parameter that a pair changes: its shape, the rank that each of its matrices is given, and the scale."""

    name: str
    shape: tuple[int, ...]
    rank: int
    scale: float
    roles: Mapping[str, str]

    @property
    def matrices(self) -> int:
        """Matrices of the stack; 0 for a parameter that is one matrix."""
        return self.shape[0] if len(self.shape) == MATRICES else 0

    @property
    def ranks(self) -> int:
        """The ranks of all matrices together."""
        return self.rank * max(1, self.matrices)

    def sides(self, *, transposed: bool) -> tuple[int, int]:
        """Return the dimensions of the parameter that A and B run along."""
        last = len(self.shape) - 1
        return (last - 1, last) if transposed else (last, last - 1)

    def shapes(self, *, transposed: bool) -> dict[str, tuple[int, int]]:
        """Return the shapes that its factors must have."""
        a, b = (self.shape[dim] for dim in self.sides(transposed=transposed))
        return {"A": (self.ranks, a), "B": (b, self.ranks)}


def make_wrapped(settings: Settings, scene: Scene, path: str, module: AdapterModule) -> AdapterPart:
    """Return what the pairs of a module's parameters do; `path` is the module's name in the file.

    The first parameter is wrapped first, so that its pair is the innermost. Raises IntegrityError for pairs that are not those
    of the parameters, and PlanError where nothing tells rows from columns.
    """
    stored, names, levels = scene.stored, scene.wrapped[path], scene.levels(path)
    if sorted(levels) != list(range(len(names))):
        raise IntegrityError(
            "LM-ADAPTER-TARGET",
            "a module's pairs are not those of the parameters that target_parameters names",
            where={"adapter": stored.name, "module": path},
            why=f"{len(names)} named: {', '.join(names)}; {len(levels)} pairs, the outermost inside {max(levels)} others",
        )
    if settings.config.use_dora:
        raise PlanError(
            "LM-ADAPTER-DORA", "DoRA (use_dora) does not exist for parameters of a module", where={"module": module.path}
        )
    parameters = []
    for depth, name in enumerate(reversed(names)):
        key, roles = f"{path}.{name}", levels[depth]
        check_roles(stored, key, roles, ["A", "B"])
        parameters.append(Wrapped(name, shapes_of(module)[name], settings.rank(key), settings.scale(key), roles))
    parameters.reverse()
    return _part(module, parameters, transposed=_transposed(stored, module, parameters))


def _transposed(stored: StoredAdapter, module: AdapterModule, parameters: Sequence[Wrapped]) -> bool:
    """Return whether the module keeps its stacks as [count, in, out]: all are kept alike, and the factors show how."""
    stacked = any(len(each.shape) == MATRICES for each in parameters)
    fitting = [
        transposed
        for transposed in ((False, True) if stacked else (False,))
        if all(_fault(stored, each, transposed=transposed) is None for each in parameters)
    ]
    if not fitting:
        role = next(role for each in parameters if (role := _fault(stored, each, transposed=False)))
        tensor, wanted, remark = role
        raise wrong_shape(stored, tensor, module, wanted, remark, "rank_pattern gives single parameters another rank")
    if len(fitting) > 1:
        raise PlanError(
            "LM-ADAPTER-SHAPE",
            "the adapter changes square matrices of experts alone",
            where={"adapter": stored.name, "module": module.path},
            why="the shapes of its factors do not tell which side of the matrices is the input",
            hints=["merge it into its base model with peft and load the result"],
        )
    return fitting[0]


def _fault(stored: StoredAdapter, each: Wrapped, *, transposed: bool) -> tuple[str, tuple[int, int], str] | None:
    """Return the first tensor of another shape, the shape that it needs, and what to say of ranks; None if all fit."""
    for role, wanted in each.shapes(transposed=transposed).items():
        shape = stored.tensors[each.roles[role]].shape
        if shape != wanted:
            return each.roles[role], wanted, f"configured rank {each.rank}, matrices {max(1, each.matrices)}; "
    return None


def _part(module: AdapterModule, parameters: Sequence[Wrapped], *, transposed: bool) -> AdapterPart:
    layouts: list[TensorLayout] = []
    for each in parameters:
        a, b = each.sides(transposed=transposed)
        rank = AxisMap(axis=f"{each.name}.rank")
        layouts += [
            TensorLayout(name=f"{each.name}.A", dims=(rank, AxisMap(axis=f"{each.name}.{a}")), factor=True),
            TensorLayout(name=f"{each.name}.B", dims=(AxisMap(axis=f"{each.name}.{b}"), rank), factor=True),
        ]
    scales = {each.scale for each in parameters}
    return AdapterPart(
        path=module.path,
        kind=module.kind,
        scale=scales.pop() if len(scales) == 1 else 1.0,
        axes={f"{each.name}.rank": each.ranks for each in parameters},
        tensors={f"{each.name}.{role}": tensor for each in parameters for role, tensor in each.roles.items()},
        layouts=tuple(layouts),
        touches=tuple(each.name for each in parameters),
        params={
            "transposed": transposed,
            "rank": ", ".join(dict.fromkeys(str(each.rank) for each in parameters)),
            **{f"{each.name}.scale": each.scale for each in parameters},
            **{f"{each.name}.count": each.matrices for each in parameters},
        },
    )
