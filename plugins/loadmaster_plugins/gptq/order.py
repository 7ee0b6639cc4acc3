"""Which group every column belongs to: `g_idx`, or the group size.

With act-order the columns of a group do not lie together, and `g_idx` is needed. Without it `g_idx` counts up, and a group size
says the same. The values decide which it is, not the configuration's `desc_act`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.gptq.settings import AREA, GptqSettings
from loadmaster_plugins.grouped.evidence import Evidence, group_size, other_group_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INTEGERS = {"I32": "<i4", "I64": "<i8"}


class Order(NamedTuple):
    """Columns in a row that share a scale, or 0 where `g_idx` must say which do."""

    group_size: int
    findings: tuple[Finding, ...] = ()


def has_ids(evidence: Evidence) -> bool:
    """Tell whether the matrix has a `g_idx` that says something; some producers leave an empty one."""
    return "g_idx" in evidence.stored.tensors and evidence.stored.tensors["g_idx"].shape != (0,)


def judge_order(evidence: Evidence, columns: int, groups: int, said: GptqSettings | None) -> Order:
    """Return how columns are grouped.

    Raises IntegrityError LM-GPTQ-GROUPS for a `g_idx` that names groups that do not exist, or a number of groups that fits no
    size; LM-GPTQ-MISSING for act-order without `g_idx`.
    """
    size_said = None if said is None else said.group_size
    if not has_ids(evidence):
        if said is not None and said.desc_act and groups > 1:
            evidence.tensor("g_idx", "desc_act is true, and without it nothing says which columns share a scale")
        return Order(*group_size(evidence, columns, groups, size_said))
    ids = _ids(evidence, columns, groups)
    size = _size(ids)
    if not size:
        return Order(0)
    if -(-columns // size) != groups:
        why = f"columns are in {-(-columns // size)} groups of {size} in a row, scales are for {groups} groups"
        raise evidence.fault("GROUPS", "g_idx", "the groups of the columns are not those of the scales", why)
    if size_said is None or (columns if size_said == -1 else min(size_said, columns)) == size:
        return Order(size)
    return Order(size, (other_group_size(AREA, size if groups > 1 else -1, size_said),))


def _ids(evidence: Evidence, columns: int, groups: int) -> npt.NDArray[np.int64]:
    """Return the group of every column, all within the groups that there are."""
    import numpy as np

    tensor = evidence.stored.tensors["g_idx"]
    ids = np.frombuffer(evidence.stored.values("g_idx"), INTEGERS[tensor.dtype]).astype(np.int64)
    wrong = np.flatnonzero((ids < 0) | (ids >= groups))
    if len(wrong):
        first = int(wrong[0])
        why = f"entry {first} is {ids[first]}, there are {groups} groups; {len(wrong)} of {columns} entries are wrong"
        raise evidence.fault("GROUPS", "g_idx", "a column belongs to a group that does not exist", why)
    return ids


def _size(ids: npt.NDArray[np.int64]) -> int:
    """Return the size of groups that lie together and count up from 0, or 0 where they do not."""
    import numpy as np

    others = np.flatnonzero(ids)
    size = int(others[0]) if len(others) else len(ids)
    return size if size and np.array_equal(ids, np.arange(len(ids)) // size) else 0
