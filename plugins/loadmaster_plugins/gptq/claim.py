"""Recognising a GPTQ matrix from its tensors, and finding out all that decoding it needs.

Shapes: `qweight` int32 [words of in, out], `scales` float [groups, out], `qzeros` int32 [groups, words of out] or unpacked
[groups, out], `g_idx` [in]. The tensors decide; a configuration that says otherwise gets one warning.

Errors: LM-GPTQ-STRAY, -MISSING, -DTYPE, -SHAPE, -BITS, -GROUPS, each naming the tensor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.quantization import Claim, StoredMatrix
from loadmaster_plugins.gptq.order import INTEGERS, has_ids, judge_order
from loadmaster_plugins.gptq.settings import AREA, GptqSettings
from loadmaster_plugins.gptq.zeros import is_packed, judge_zeros, zero_tensor
from loadmaster_plugins.grouped.bits import STREAM
from loadmaster_plugins.grouped.evidence import SCALES, Evidence, refuse_strays, shapes_of

COMPANIONS: Final = ("scales", "qzeros", "g_idx")
LABELLED, BY_SHAPE = 0.9, 0.5


class Size(NamedTuple):
    """Bits per weight and number of columns."""

    bits: int
    columns: int


def claim_matrix(stored: StoredMatrix, settings: GptqSettings | None) -> Claim | None:
    """Return the claim on a set of tensors, or None when they are no GPTQ matrix.

    Raises IntegrityError for a damaged one, where settings say GPTQ or there is a `g_idx`, which only GPTQ has. Other
    tensors that fit badly may be of a method that uses the same names.
    """
    evidence = Evidence(AREA, stored)
    if "qweight" not in stored.tensors:
        if settings is not None:
            refuse_strays(evidence, COMPANIONS)
        return None
    if not _is_gptq(evidence, labelled=settings is not None):
        return None
    try:
        return _judged(evidence, settings)
    except IntegrityError:
        if settings is None and "g_idx" not in stored.tensors:
            return None
        raise


def _judged(evidence: Evidence, settings: GptqSettings | None) -> Claim:
    stored = evidence.stored
    said, remarks = _said(stored.name, settings)
    scales = evidence.of_type("scales", SCALES)
    for suffix, ndim in (("qweight", 2), ("scales", 2), ("qzeros", 2), ("zeros", 2), ("g_idx", 1)):
        if suffix in stored.tensors:
            evidence.dimensions(suffix, ndim)
    if has_ids(evidence):
        evidence.of_type("g_idx", frozenset(INTEGERS))
    groups, rows = scales.shape
    size, other_bits = _size(evidence, rows, None if said is None else said.bits)
    order = judge_order(evidence, size.columns, groups, said)
    zeros = judge_zeros(evidence, size.bits, scales, said)
    grouped = f"groups of {order.group_size}" if order.group_size else f"{groups} groups in act-order"
    ids = stored.tensors["g_idx"].dtype if has_ids(evidence) else ""
    claim = Claim(
        score=BY_SHAPE if settings is None else LABELLED,
        evidence=f"{shapes_of(evidence)}: {size.bits} bits, {grouped}",
        suffixes=(
            "qweight",
            "scales",
            *([zeros.suffix] if zeros.suffix else []),
            *(["g_idx"] if "g_idx" in stored.tensors else []),
        ),
        out_features=rows,
        in_features=size.columns,
        bits=size.bits,
        group_size=order.group_size,
        dtype=scales.dtype,
        params={"zeros": zeros.kind, "zeros_tensor": zeros.suffix, "g_idx": "" if order.group_size else ids},
        findings=(*remarks, *other_bits, *order.findings, *zeros.findings),
    )
    return replace(claim, general=_in_any_order(claim, ids)) if ids and order.group_size else claim


def _in_any_order(claim: Claim, ids: str) -> Claim:
    """Return the claim as it is with act-order: an expert that saw no text while it was quantised kept its columns in order."""
    return replace(claim, group_size=0, params={**claim.params, "g_idx": ids})


def _is_gptq(evidence: Evidence, *, labelled: bool) -> bool:
    """Tell GPTQ from AWQ, whose tensors have the same names. With a label, shapes of neither are a damaged GPTQ."""
    tensors = evidence.stored.tensors
    qweight, scales = tensors["qweight"], tensors.get("scales")
    if scales is not None and len(scales.shape) == len(qweight.shape) == 2:
        if qweight.dtype == "I32" and qweight.shape[1] == scales.shape[1]:
            return True
        whole_words = scales.shape[0] == qweight.shape[0] or scales.shape[1] == 8 * qweight.shape[1]
        half_words = scales.shape[1] == 4 * qweight.shape[0]
        if (qweight.dtype == "I32" and whole_words) or (qweight.dtype == "I16" and half_words):
            return False
    if not labelled:
        return False
    evidence.of_type("qweight", frozenset({"I32"}))
    evidence.of_type("scales", SCALES)
    for suffix in ("qweight", "scales"):
        evidence.dimensions(suffix, 2)
    evidence.shaped("scales", (tensors["scales"].shape[0], qweight.shape[1]), f"qweight is {list(qweight.shape)}")
    return True


def _said(name: str, settings: GptqSettings | None) -> tuple[GptqSettings | None, tuple[Finding, ...]]:
    """Return what settings say about one module; a module that they call plain is quantised all the same, with a remark."""
    if settings is None:
        return None, ()
    said = settings.of_module(name)
    if said is not None:
        return said, ()
    remark = Finding(
        level="warning",
        code="LM-GPTQ-MODULES",
        where="quantization_config",
        message="matrices that the configuration calls plain are stored quantised: read as stored",
        fix="correct modules_in_block_to_quantize or dynamic in the configuration",
    )
    return settings, (remark,)


def _size(evidence: Evidence, rows: int, said: int | None) -> tuple[Size, tuple[Finding, ...]]:
    """Return bits and columns from all tensors whose shapes depend on them.

    Raises IntegrityError LM-GPTQ-BITS where no number of bits, or more than one, explains all shapes.
    """
    tensors = evidence.stored.tensors
    stored_rows = tensors["qweight"].shape[0]
    columns = tensors["g_idx"].shape[0] if has_ids(evidence) else None
    suffix = zero_tensor(evidence)
    zero_words = tensors[suffix].shape[-1] if is_packed(evidence, suffix) else None
    fitting = {}
    for bits, (per, words) in STREAM.items():
        implied = stored_rows // words * per if columns is None else columns
        if words * -(-implied // per) == stored_rows and zero_words in (None, words * -(-rows // per)):
            fitting[bits] = Size(bits, implied)
    if said in fitting:
        return fitting[said], ()
    if len(fitting) == 1:
        (size,) = fitting.values()
        return size, () if said is None else (_other_bits(size.bits, said),)
    found = " or ".join(map(str, sorted(fitting))) or "none of 2, 3, 4 and 8"
    why = f"{shapes_of(evidence)} fit {found} bits" + (
        f", the configuration says {said}" if said else ", and no configuration says which"
    )
    raise evidence.fault("BITS", "qweight", "the shapes of a quantised matrix do not tell its bits", why)


def _other_bits(stored: int, said: int) -> Finding:
    return Finding(
        level="warning",
        code="LM-GPTQ-BITS",
        where="quantization_config",
        message=f"weights are stored with {stored} bits, the configuration says {said}: read as stored",
        fix="correct bits in the configuration",
    )
