"""Tied parameters: what the file holds decides, whatever the configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex, TensorMeta
from loadmaster_hookspecs.models import ModelSpec
from loadmaster_hookspecs.sources import Source

SAMPLES = 16
SAMPLE_BYTES = 4096


class Ties(NamedTuple):
    """The ties that hold: `aliases` maps a parameter to the one it shares; `proofs` those that a load must still prove."""

    aliases: Mapping[str, str]
    proofs: Mapping[str, tuple[str, str]]
    findings: tuple[Finding, ...]


def resolve_ties(spec: ModelSpec, index: CheckpointIndex, source: Source, *, untie: bool) -> Ties:
    """Decide for every tie of the model whether the parameters share storage.

    Absent: they share. Stored too and different (a few sampled blocks tell): each keeps its own, with a warning. Stored too
    and alike in the samples: they share, and the load compares every byte before it serves. At most
    `2 * SAMPLES * SAMPLE_BYTES` bytes are read per tie.
    """
    aliases: dict[str, str] = {}
    proofs: dict[str, tuple[str, str]] = {}
    findings: list[Finding] = []
    for parameter, target in spec.ties.items():
        own, other = _single(spec, index, parameter), _single(spec, index, target)
        if own is None and other is not None:
            aliases[parameter] = target
        elif own is not None and other is None:
            aliases[target] = parameter
        elif own is not None and other is not None:
            if untie or not _alike(own, other, index, source):
                findings.append(_differs(parameter, target))
            else:
                aliases[parameter] = target
                proofs[parameter] = (other.name, own.name)
    return Ties(aliases, proofs, tuple(findings))


def _single(spec: ModelSpec, index: CheckpointIndex, parameter: str) -> TensorMeta | None:
    pieces = spec.sources.get(parameter, ())
    return index.tensors[pieces[0].tensor] if len(pieces) == 1 else None


def _alike(own: TensorMeta, other: TensorMeta, index: CheckpointIndex, source: Source) -> bool:
    if (own.dtype, own.shape) != (other.dtype, other.shape):
        return False
    step = max(1, own.nbytes // SAMPLES)
    for at in range(0, own.nbytes, step):
        size = min(SAMPLE_BYTES, own.nbytes - at)
        left = source.read(index.files[own.file].name, own.start + at, size)
        right = source.read(index.files[other.file].name, other.start + at, size)
        if left != right:
            return False
    return True


def _differs(parameter: str, target: str) -> Finding:
    return Finding(
        level="warning",
        code="LM-TIE-DIFFERS",
        where=parameter,
        message=f"config.json ties {parameter} to {target}, but the file stores both and they differ: the file's own is used",
    )
