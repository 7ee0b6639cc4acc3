"""Pairs of experts that are layers of their own in the file, and matrices of a stack in the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from loadmaster_hookspecs.adapters import AdapterModule, AdapterPart, StackedMatrix
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_plugins.lora.pairs import check_roles
from loadmaster_plugins.lora.settings import Settings
from loadmaster_plugins.peft_files.matching import wrong_shape
from loadmaster_plugins.peft_files.scene import Scene, shapes_of


def expert_parts(settings: Settings, scene: Scene) -> Iterator[AdapterPart]:
    """Yield what an adapter's experts do to the modules that hold them. Raises IntegrityError or PlanError, as for layers."""
    owned: dict[str, list[str]] = defaultdict(list)
    for path in scene.paths:
        owner = scene.stacks.get(scene.repair.model_path(path))
        if owner is not None:
            owned[owner.path].append(path)
    for owner_path, paths in owned.items():
        yield _part(settings, scene, scene.modules[owner_path], paths)


def _part(settings: Settings, scene: Scene, owner: AdapterModule, paths: Sequence[str]) -> AdapterPart:
    """Return the pairs of one module's experts. Roles are `down_proj.3.0.A`: parameter, matrix, and which of its halves."""
    if settings.config.use_dora or settings.config.lora_bias or owner.path in scene.paths:
        raise PlanError(
            "LM-ADAPTER-EXPERTS",
            "the adapter changes experts in a way that stacks of them have not",
            where={"adapter": scene.stored.name, "module": owner.path},
            why="experts can be changed by pairs of factors alone: no DoRA, no biases, and one pair for each matrix",
        )
    axes: dict[str, int] = {}
    tensors: dict[str, str] = {}
    layouts: list[TensorLayout] = []
    params: dict[str, str | int | float | bool] = {}
    for path in paths:
        matrix, rank = owner.stacked[scene.repair.model_path(path)], settings.rank(path)
        roles = scene.names.changed[path]
        check_roles(scene.stored, path, roles, ["A", "B"])
        columns, axis = shapes_of(owner)[matrix.parameter][-1], AxisMap(axis=f"rank.{rank}")
        for role, wanted in (("A", (rank, columns)), ("B", (matrix.rows, rank))):
            if scene.stored.tensors[roles[role]].shape != wanted:
                raise wrong_shape(scene.stored, roles[role], owner, wanted, f"configured rank {rank}; ")
        name = f"{matrix.parameter}.{matrix.index}.{matrix.start // matrix.rows}"
        layouts += [
            TensorLayout(name=f"{name}.A", dims=(axis, AxisMap(axis=f"{matrix.parameter}.2")), factor=True),
            TensorLayout(name=f"{name}.B", dims=(AxisMap(axis=_rows_axis(owner, matrix)), axis), factor=True),
        ]
        axes[axis.axis] = rank
        tensors |= {f"{name}.{role}": tensor for role, tensor in roles.items()}
        params[f"{name}.scale"] = settings.scale(path)
    scales = set(params.values())
    matrices = [owner.stacked[scene.repair.model_path(path)] for path in paths]
    touched = {matrix.parameter: matrix.rows for matrix in matrices}
    return AdapterPart(
        path=owner.path,
        kind=owner.kind,
        scale=settings.scale(paths[0]) if len(scales) == 1 else 1.0,
        axes=axes,
        tensors=tensors,
        layouts=tuple(layouts),
        touches=tuple(touched),
        params={
            **params,
            **{f"{name}.parts": shapes_of(owner)[name][1] // rows for name, rows in touched.items()},
            "rank": ", ".join(map(str, axes.values())),
            "layers": True,
        },
    )


def _rows_axis(owner: AdapterModule, matrix: StackedMatrix) -> str:
    """Return the axis of the module that a matrix's rows run along.

    Half of a stack's rows, gate or up, is what the other parameter takes as its inputs: both are cut at the same places.
    """
    if shapes_of(owner)[matrix.parameter][1] == matrix.rows:
        return f"{matrix.parameter}.1"
    for name, shape in shapes_of(owner).items():
        if name != matrix.parameter and len(shape) == len(shapes_of(owner)[matrix.parameter]) and shape[2] == matrix.rows:
            return f"{name}.2"
    raise PlanError(
        "LM-ADAPTER-EXPERTS",
        "the model's experts are stacked in a way that the adapter cannot be divided by",
        where={"module": owner.path},
        why=f"{matrix.rows} of the rows of {matrix.parameter} are no input of another parameter",
    )
