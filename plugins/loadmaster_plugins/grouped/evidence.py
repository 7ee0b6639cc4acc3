"""Judging the stored tensors of one matrix: errors that name the tensor, and what all quantizers check alike."""

from __future__ import annotations

from typing import Final, NamedTuple

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.quantization import StoredMatrix

SCALES: Final = frozenset({"F16", "BF16", "F32"})
"""Types that scales may have."""


class Evidence(NamedTuple):
    """The stored tensors that share a prefix, with errors whose codes begin with `LM-<area>-`."""

    area: str
    stored: StoredMatrix

    def tensor(self, suffix: str, why: str = "") -> TensorMeta:
        """Return a tensor. Raises IntegrityError LM-<area>-MISSING when it is not there."""
        found = self.stored.tensors.get(suffix)
        if found is None:
            raise self.fault(
                "MISSING", suffix, "a tensor of a quantised matrix is missing", why or f"there are {shapes_of(self)}"
            )
        return found

    def of_type(self, suffix: str, dtypes: frozenset[str]) -> TensorMeta:
        """Return a tensor of one of some element types. Raises IntegrityError LM-<area>-MISSING or -DTYPE."""
        found = self.tensor(suffix)
        if found.dtype not in dtypes:
            expected = " or ".join(sorted(dtypes))
            raise self.fault("DTYPE", suffix, "a tensor has the wrong element type", f"{found.dtype}, expected {expected}")
        return found

    def shaped(self, suffix: str, shape: tuple[int, ...], because: str) -> TensorMeta:
        """Return a tensor of a given shape. Raises IntegrityError LM-<area>-MISSING or -SHAPE."""
        found = self.tensor(suffix)
        if found.shape != shape:
            raise self.fault(
                "SHAPE", suffix, "a tensor has the wrong shape", f"{list(found.shape)}, expected {list(shape)}: {because}"
            )
        return found

    def dimensions(self, suffix: str, ndim: int) -> None:
        """Raise IntegrityError LM-<area>-SHAPE for a tensor with another number of dimensions; only `g_idx` may be empty."""
        shape = self.stored.tensors[suffix].shape
        if len(shape) != ndim or (ndim > 1 and 0 in shape):
            raise self.fault("SHAPE", suffix, "a tensor has the wrong shape", f"{list(shape)}, expected {_dimensions(ndim)}")

    def fault(self, kind: str, suffix: str, summary: str, why: str) -> IntegrityError:
        """Return an error about one tensor."""
        return IntegrityError(f"LM-{self.area}-{kind}", summary, where={"tensor": f"{self.stored.name}.{suffix}"}, why=why)


def _dimensions(ndim: int) -> str:
    return "1 dimension" if ndim == 1 else f"{ndim} dimensions, none of them empty"


def shapes_of(evidence: Evidence) -> str:
    """Return names and shapes of all tensors under the prefix."""
    return ", ".join(f"{suffix} {list(tensor.shape)}" for suffix, tensor in sorted(evidence.stored.tensors.items()))


def refuse_strays(evidence: Evidence, suffixes: tuple[str, ...]) -> None:
    """Raise IntegrityError LM-<area>-STRAY for companions of a `qweight` that is not there.

    Scales beside a plain weight are somebody else's.
    """
    stray = [suffix for suffix in suffixes if suffix in evidence.stored.tensors]
    if stray and not (stray == ["scales"] and "weight" in evidence.stored.tensors):
        why = f"{evidence.stored.name}.qweight is missing"
        raise evidence.fault("STRAY", stray[0], "a tensor belongs to a quantised matrix that is not there", why)


class GroupSize(NamedTuple):
    """The number of columns that share a scale, and what there is to say about it."""

    size: int
    findings: tuple[Finding, ...] = ()


def group_size(evidence: Evidence, columns: int, groups: int, said: int | None) -> GroupSize:
    """Return how many columns share a scale when nothing but the number of groups tells it.

    `said` is what the configuration says, -1 for all columns. Where it cannot be, groups of equal size are taken, with one
    warning. Raises IntegrityError LM-<area>-GROUPS where there is no such size.
    """
    if said is not None:
        size = columns if said == -1 else min(said, columns)
        if -(-columns // size) == groups:
            return GroupSize(size)
    if columns % groups:
        raise evidence.fault(
            "GROUPS",
            "scales",
            "the number of scales fits no group size",
            f"{groups} groups for {columns} columns" + (f", and the configuration says groups of {said}" if said else ""),
        )
    size = columns // groups
    return GroupSize(size, () if said is None else (other_group_size(evidence.area, size if groups > 1 else -1, said),))


def other_group_size(area: str, size: int, said: int) -> Finding:
    """Return the remark that tensors and configuration differ in the group size; both -1 for all columns."""
    return Finding(
        level="warning",
        code=f"LM-{area}-GROUP-SIZE",
        where="quantization_config",
        message=f"weights are stored in groups of {_columns(size)}, the configuration says {_columns(said)}: taken as stored",
        fix="correct group_size in the configuration",
    )


def _columns(size: int) -> str:
    return "all columns" if size == -1 else f"{size} columns"
