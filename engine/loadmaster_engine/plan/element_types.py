"""Which element type the model gets: what was asked for, or what the tensors themselves say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loadmaster_hookspecs.dtypes import BITS, BY_TORCH_NAME, FLOATS
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.plan import TransformRef

CHOICES = ("auto", "float32", "bfloat16", "float16")


def resolve_dtype(requested: str, tensors: Iterable[TensorMeta], config: Mapping[str, Any]) -> tuple[str, tuple[Finding, ...]]:
    """Return the model's element type and the findings that explain it.

    With `auto` the type that most bytes of the used tensors have decides; the configuration is only compared with it.
    Raises UsageError for an unknown request.
    """
    if requested not in CHOICES:
        raise UsageError("LM-USAGE-DTYPE", f"unknown dtype {requested!r}", hints=[f"use one of: {', '.join(CHOICES)}"])
    if requested != "auto":
        return BY_TORCH_NAME[requested], ()
    weights: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.dtype in FLOATS:
            weights[tensor.dtype] += tensor.nbytes
    if not weights:
        return "F32", ()
    dtype = weights.most_common(1)[0][0]
    return dtype, (_origin(dtype, weights), *_contradictions(dtype, config))


def cast_ref(stored: str, wanted: str) -> TransformRef | None:
    """Return the transform from one element type to another, or None where they are the same."""
    if stored == wanted:
        return None
    return TransformRef(name="cast", version=1, args={"source": stored, "dest": wanted})


def castable(stored: str, wanted: str) -> bool:
    """Return whether a stored type can become the wanted one: the same, or one float type from another."""
    return stored == wanted or (stored in FLOATS and wanted in FLOATS)


def _origin(dtype: str, weights: Counter[str]) -> Finding:
    share = 100 * weights[dtype] / weights.total()
    return Finding(
        level="info",
        code="LM-DTYPE-FROM-TENSORS",
        where="dtype",
        message=f"dtype {dtype} comes from the tensors ({share:.0f} % of their bytes)",
    )


def _contradictions(dtype: str, config: Mapping[str, Any]) -> list[Finding]:
    named = {key: config[key] for key in ("dtype", "torch_dtype") if isinstance(config.get(key), str)}
    known = {key: BY_TORCH_NAME.get(str(value).removeprefix("torch."), "?") for key, value in named.items()}
    if all(value == dtype for value in known.values()):
        return []
    said = " and ".join(f"{key} {value!r}" for key, value in named.items())
    return [
        Finding(
            level="warning",
            code="LM-DTYPE-CONTRADICTION",
            where="config.json",
            message=f"config.json says {said}, most tensor bytes are {dtype} ({BITS[dtype]} bits): the tensors decide",
        )
    ]
