"""What is quantised: every case is one model, one producer, and settings in that producer's own words."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from conformance.base_model import Family

Settings = dict[str, Any]

SCRIPTS: Final = {"auto-gptq": "auto_gptq_run", "autoawq": "autoawq_run", "gptqmodel": "gptqmodel_run"}
"""The module in `conformance.producers` by producer."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One quantised file.

    `samples` and `length` are how many token sequences of which length the producer measures with, `compute` the type it does
    that in. `known` says why weights differ where they are known to.
    """

    producer: str
    label: str
    settings: Settings
    family: Family = "llama"
    samples: int = 8
    length: int = 128
    compute: str = "float16"
    known: str = ""

    @property
    def name(self) -> str:
        """Producer and label: unique."""
        return f"{self.producer}-{self.label}"


_WRAPS: Final = "a zero point of 0 is stored as 7, and auto-gptq's own 3-bit code reads it as 8"

_ROUNDED: Final = "gemv_fast stores scale times zero point, rounded, so no reader gets back what was packed"


def _auto_gptq(bits: int, group: int, *, sym: bool, act: bool, family: Family = "llama", **more: bool) -> Case:
    words = [f"{bits}b", f"g{group}", "sym" if sym else "asym", *(["act"] if act else []), *more, family]
    settings = {"bits": bits, "group_size": group, "sym": sym, "desc_act": act, **more}
    known = _WRAPS if bits == 3 and not sym else ""
    return Case(producer="auto-gptq", label="-".join(words), settings=settings, family=family, known=known)


def _autoawq(version: str, group: int, family: Family = "llama", label: str = "", **more: list[str]) -> Case:
    words = [version.lower(), f"g{group}", *([label] if label else []), family]
    settings = {"w_bit": 4, "q_group_size": group, "zero_point": True, "version": version, **more}
    label = "-".join(words)
    # Its search for the best clipping takes time in proportion to the tokens, and much of it.
    known = _ROUNDED if version == "GEMV_FAST" else ""
    few = {"samples": 2, "length": 32}
    return Case(producer="autoawq", label=label, settings=settings, family=family, compute="float32", known=known, **few)


def _gptqmodel(label: str, bits: int, group: int, *, act: bool = False, family: Family = "llama", **more: object) -> Case:
    words = [f"{bits}b", f"g{group}", label, *(["act"] if act else []), family]
    settings = {"bits": bits, "group_size": group, "desc_act": act, "act_group_aware": False, **more}
    return Case(producer="gptqmodel", label="-".join(words), settings=settings, family=family)


CASES: Final = (
    _auto_gptq(4, 32, sym=False, act=False),
    _auto_gptq(4, 64, sym=True, act=False),
    _auto_gptq(4, 64, sym=True, act=False, family="qwen2"),
    _auto_gptq(4, 64, sym=True, act=True),
    _auto_gptq(4, 128, sym=True, act=False),
    _auto_gptq(4, 128, sym=False, act=True),
    _auto_gptq(4, 128, sym=True, act=True, static_groups=True),
    _auto_gptq(4, 128, sym=False, act=True, family="ragged"),
    _auto_gptq(4, -1, sym=True, act=False),
    _auto_gptq(4, -1, sym=False, act=True),
    _auto_gptq(2, 32, sym=False, act=False),
    _auto_gptq(2, 64, sym=True, act=True),
    _auto_gptq(3, 32, sym=False, act=False),
    _auto_gptq(3, 64, sym=True, act=False),
    _auto_gptq(3, 128, sym=False, act=True),
    _auto_gptq(8, 64, sym=True, act=False),
    _auto_gptq(8, 128, sym=False, act=True),
    _auto_gptq(8, -1, sym=False, act=False),
    _autoawq("GEMM", 32),
    _autoawq("GEMM", 64),
    _autoawq("GEMM", 64, family="qwen2"),
    _autoawq("GEMM", 128),
    _autoawq("GEMM", 128, label="part", modules_to_not_convert=["o_proj", "up_proj"]),
    _autoawq("GEMV", 64),
    _autoawq("GEMV_FAST", 64),
    _gptqmodel("v2-asym", 4, 64, sym=False, format="gptq_v2"),
    _gptqmodel("v2-sym", 4, 128, act=True, sym=True, format="gptq_v2"),
    _gptqmodel("v1-sym", 4, 64, sym=True, format="gptq"),
    _gptqmodel("v1-asym", 4, 32, act=True, sym=False, format="gptq"),
    _gptqmodel("v1-sym", 8, 64, family="qwen2", sym=True, format="gptq"),
    _gptqmodel("v2-asym", 3, 64, sym=False, format="gptq_v2"),
    _gptqmodel("v2-asym", 2, 32, sym=False, format="gptq_v2"),
    _gptqmodel("lm_head", 4, 64, sym=True, format="gptq", lm_head=True),
    _gptqmodel(
        "dynamic", 4, 64, sym=True, format="gptq",
        dynamic={r"-:.*layers\.1\.self_attn\.o_proj": {}, r"+:.*mlp\.down_proj": {"bits": 8, "group_size": 32}},
    ),
)  # fmt: skip
"""Everything that is compared. autoawq cannot pack its own files without zero points, so none is here."""
