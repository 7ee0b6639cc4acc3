"""Does the checkpoint hold what the model needs: every parameter fed, every shape and type right, nothing left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster_engine.plan.element_types import castable
from loadmaster_engine.plan.names import count_by_layer, fold, layer_of
from loadmaster_engine.plan.operations import PlacedPiece, covered
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import ModelSpec


def check_missing(spec: ModelSpec, index: CheckpointIndex, parameters: Sequence[str], aliases: Mapping[str, str]) -> None:
    """Raise IntegrityError LM-LEDGER-MISSING when a parameter is fed by no tensor and shares no storage."""
    absent = [name for name in parameters if not spec.sources.get(name) and name not in aliases]
    if not absent:
        return
    stored = sum(layer_of(name) is not None for name in index.tensors) and 1 + max(
        layer for name in index.tensors if (layer := layer_of(name)) is not None
    )
    wanted = spec.outline.num_layers
    layers = f"; config says {wanted} layers, file has {stored}" if stored != wanted else ""
    raise IntegrityError(
        "LM-LEDGER-MISSING",
        f"{len(absent)} parameters of the model are in no file",
        where={"parameters": fold(absent)},
        why=f"{count_by_layer(absent)} absent{layers}",
        hints=_missing_hints(spec, absent, stored < wanted),
    )


def check_unexpected(spec: ModelSpec, *, strict: bool) -> tuple[list[Ignored], list[Finding]]:
    """Return what is left out and the warnings about it. Raises IntegrityError LM-LEDGER-UNEXPECTED in strict mode."""
    if not spec.unexpected:
        return list(spec.ignored), []
    message = f"{len(spec.unexpected)} stored tensors belong to no parameter: {fold(spec.unexpected)}"
    if strict:
        raise IntegrityError("LM-LEDGER-UNEXPECTED", message, hints=["load without strict mode to leave them out"])
    finding = Finding(level="warning", code="LM-LEDGER-UNEXPECTED", where=spec.unexpected[0], message=message)
    unknown = [Ignored(name=name, reason="belongs to no parameter", notable=True) for name in spec.unexpected]
    return [*spec.ignored, *unknown], [finding]


def check_pieces(parameter: str, shape: tuple[int, ...], dtype: str, pieces: Sequence[PlacedPiece], file: str) -> None:
    """Raise IntegrityError when the stored tensors do not have the parameter's shape, or a type that cannot become its own."""
    if not covered(pieces, shape):
        raise IntegrityError(
            "LM-TENSOR-SHAPE",
            "a stored tensor has another shape than the model's parameter",
            where={"file": file, "tensor": fold([piece.tensor.name for piece in pieces])},
            why=f"the model needs {list(shape)}, the file has {fold([str(list(p.tensor.shape)) for p in pieces])}",
            hints=["the configuration and the weights are of different models: compare their versions"],
        )
    for piece in pieces:
        if not castable(piece.tensor.dtype, dtype):
            raise IntegrityError(
                "LM-TENSOR-DTYPE",
                f"a stored tensor of type {piece.tensor.dtype} cannot become a parameter of type {dtype}",
                where={"file": file, "tensor": piece.tensor.name, "parameter": parameter},
                hints=["packed or integer weights need the plugin that knows their format"],
            )


def _missing_hints(spec: ModelSpec, absent: Sequence[str], short: bool) -> list[str]:
    if short and all(layer_of(name) is not None for name in absent):
        return ["set num_hidden_layers to what the file holds, or fetch the missing files"]
    if spec.unexpected:
        return [f"the file uses other names, for example {spec.unexpected[0]}: it may be of another model or wrapped"]
    return ["fetch the files again: a shard is missing or the save was interrupted"]
