"""Recognising an AWQ matrix from its tensors, and which of the three layouts they are in.

| layout | `qweight` | `scales` | `qzeros` |
|---|---|---|---|
| gemm | int32 [in, out / 8] | [groups, out] | int32 [groups, out / 8], or absent |
| gemv | int32 [out, in / 8] | [out, 8 * words] | int32 [out, words], room for more groups than there are |
| gemv_fast | int16 [out / 4, in] | [8 * words, out] | like `scales`: the zero point times the scale, negative |

The tensors decide. Errors: LM-AWQ-STRAY, -MISSING, -DTYPE, -SHAPE, -GROUPS, each naming the tensor.
"""

from __future__ import annotations

from typing import Final

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.quantization import Claim, StoredMatrix
from loadmaster_plugins.awq import gemm, gemv, gemv_fast
from loadmaster_plugins.awq.settings import AREA, BITS, AwqSettings
from loadmaster_plugins.grouped.evidence import SCALES, Evidence, refuse_strays, shapes_of

LABELLED, BY_SHAPE = 0.9, 0.5
SIZES: Final = {"gemm": gemm.judge, "gemv": gemv.judge, "gemv_fast": gemv_fast.judge}


def claim_matrix(stored: StoredMatrix, settings: AwqSettings | None) -> Claim | None:
    """Return the claim on a set of tensors, or None when they are no AWQ matrix.

    Raises IntegrityError for a damaged one where settings say AWQ. Without settings only the layout gemm can be told for
    sure, and tensors that fit badly may be of a method that uses the same names.
    """
    evidence = Evidence(AREA, stored)
    if "qweight" not in stored.tensors:
        if settings is not None:
            refuse_strays(evidence, ("scales", "qzeros"))
        return None
    layout = _layout(evidence, settings)
    if not layout or (settings is None and layout != "gemm"):
        return None
    try:
        return _judged(evidence, layout, settings)
    except IntegrityError:
        if settings is None:
            return None
        raise


def _judged(evidence: Evidence, layout: str, settings: AwqSettings | None) -> Claim:
    stored = evidence.stored
    scales = evidence.of_type("scales", SCALES)
    said = settings or AwqSettings()
    size = SIZES[layout](evidence, said.group_size)
    zeros = "qzeros" in stored.tensors
    if not zeros and (layout != "gemm" or said.zero_point is not False):
        evidence.tensor("qzeros", "a matrix that is not said to be without zero points needs them")
    return Claim(
        score=BY_SHAPE if settings is None else LABELLED,
        evidence=f"{shapes_of(evidence)}: {layout}, groups of {size.group_size}",
        suffixes=("qweight", "scales", "qzeros") if zeros else ("qweight", "scales"),
        out_features=size.rows,
        in_features=size.columns,
        bits=BITS,
        group_size=size.group_size,
        dtype=scales.dtype,
        params={"layout": layout, "zeros": zeros},
        findings=(*([_called_plain()] if said.calls_plain(stored.name) else []), *size.findings),
    )


def _layout(evidence: Evidence, settings: AwqSettings | None) -> str:
    """Return the layout that the shapes show, or an empty text when they are GPTQ's, or nobody's and nothing says AWQ.

    Raises IntegrityError when settings say AWQ and the shapes are nobody's.
    """
    tensors = evidence.stored.tensors
    qweight, scales = tensors["qweight"], tensors.get("scales")
    if scales is not None and len(scales.shape) == len(qweight.shape) == 2 and 0 not in (*scales.shape, *qweight.shape):
        if qweight.dtype == "I16" and scales.shape[1] == 4 * qweight.shape[0]:
            return "gemv_fast"
        if qweight.dtype == "I32" and scales.shape[1] == 8 * qweight.shape[1]:
            return "gemm"
        if qweight.dtype == "I32" and scales.shape[0] == qweight.shape[0]:
            return "gemv"
        if qweight.dtype == "I32" and scales.shape[1] == qweight.shape[1]:
            return ""
    if settings is None:
        return ""
    evidence.of_type("qweight", frozenset({"I16" if settings.layout == "gemv_fast" else "I32"}))
    evidence.of_type("scales", SCALES)
    for suffix in ("qweight", "scales"):
        evidence.dimensions(suffix, 2)
    shapes = f"qweight {list(qweight.shape)}, scales {list(tensors['scales'].shape)}"
    raise evidence.fault("SHAPE", "scales", "a tensor has the wrong shape", f"{shapes} are of no layout of AWQ")


def _called_plain() -> Finding:
    return Finding(
        level="warning",
        code="LM-AWQ-MODULES",
        where="quantization_config",
        message="matrices that the configuration calls plain are stored quantised: read as stored",
        fix="correct modules_to_not_convert in the configuration",
    )
