"""Where a matrix's zero points are, and what must be added to them.

Version 1 stores a zero point less one, version 2 as it is. Both are in use under labels that are missing or wrong. For
symmetric matrices every zero point is the middle of the range, so the words themselves tell the version.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_plugins.gptq.settings import GptqSettings
from loadmaster_plugins.grouped.bits import STREAM
from loadmaster_plugins.grouped.evidence import Evidence

Kind = Literal["v1", "v2", "plain", "middle"]
"""Packed, less one or not; one number per group and row; not stored, the middle of the range."""

LOOKED_AT: Final = 4096
"""Bytes of packed zero points that are read to tell the version: 1024 words."""

NAMES: Final = ("qzeros", "zeros")


class Zeros(NamedTuple):
    """The tensor that holds the zero points, empty where there is none, and how to read it."""

    suffix: str
    kind: Kind
    findings: tuple[Finding, ...] = ()


def zero_tensor(evidence: Evidence) -> str:
    """Return the suffix of the tensor with the zero points, or an empty one."""
    return next((name for name in NAMES if name in evidence.stored.tensors), "")


def is_packed(evidence: Evidence, suffix: str) -> bool:
    """Tell whether zero points are packed as weights are."""
    return bool(suffix) and evidence.stored.tensors[suffix].dtype == "I32"


def judge_zeros(evidence: Evidence, bits: int, scales: TensorMeta, said: GptqSettings | None) -> Zeros:
    """Return how zero points are stored.

    Raises IntegrityError LM-GPTQ-MISSING without zero points in a matrix that is not said to be symmetric, LM-GPTQ-DTYPE and
    LM-GPTQ-SHAPE for tensors that are none.
    """
    sym = None if said is None else said.sym
    suffix = zero_tensor(evidence)
    if not suffix:
        if not sym:
            evidence.tensor("qzeros", "a matrix that is not said to be symmetric needs its zero points")
        return Zeros("", "middle")
    groups, rows = scales.shape
    if not is_packed(evidence, suffix):
        evidence.of_type(suffix, frozenset({"I32", scales.dtype}))
        evidence.shaped(suffix, (groups, rows), "one zero point for each scale")
        return Zeros(suffix, "plain")
    per, words = STREAM[bits]
    evidence.shaped(suffix, (groups, words * -(-rows // per)), f"zero points of {bits} bits for scales {[groups, rows]}")
    label = "v1" if said is None else said.version
    shown = None if sym is False else _shown(evidence, suffix, bits)
    if shown is None:
        return Zeros(suffix, label, () if said is not None else (_unlabelled(),))
    return Zeros(suffix, shown, () if said is None or shown == label else (_mislabelled(shown),))


def _shown(evidence: Evidence, suffix: str, bits: int) -> Literal["v1", "v2"] | None:
    """Return the version in which the first words are the zero points of a symmetric matrix, if there is one."""
    per, words = STREAM[bits]
    groups, row_words = evidence.stored.tensors[suffix].shape
    rows_of_zeros = row_words // words * words
    nbytes = min(LOOKED_AT // (4 * words) * words, rows_of_zeros) * 4
    found = evidence.stored.values(suffix, nbytes) if groups else b""
    middle = 1 << bits - 1
    if found and found == _repeated(middle, bits, per, words, nbytes):
        return "v2"
    if found and found == _repeated(middle - 1, bits, per, words, nbytes):
        return "v1"
    return None


def _repeated(value: int, bits: int, per: int, words: int, nbytes: int) -> bytes:
    """Return `nbytes` of a stream in which every value is the same."""
    stream = sum(value << bits * index for index in range(per))
    return stream.to_bytes(4 * words, "little") * (nbytes // (4 * words))


def _mislabelled(shown: str) -> Finding:
    said, stored = ("gptq", "gptq_v2") if shown == "v2" else ("gptq_v2", "gptq")
    return Finding(
        level="warning",
        code="LM-GPTQ-ZEROS",
        where="quantization_config",
        message=f"symmetric zero points are stored as in {stored}, the configuration says {said}: read as {stored}",
        fix=f'set checkpoint_format to "{stored}" in the configuration',
    )


def _unlabelled() -> Finding:
    return Finding(
        level="warning",
        code="LM-GPTQ-UNLABELLED",
        where="quantization_config",
        message="nothing says how zero points are stored: read as in gptq, less one",
        fix='put a quantization_config with quant_method and checkpoint_format, "gptq" or "gptq_v2", into config.json',
    )
