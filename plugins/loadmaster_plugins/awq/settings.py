"""What configurations say about an AWQ checkpoint.

Source of the keys: `AwqConfig` of autoawq 0.2.9, which writes `bits` and `group_size` into `config.json`, and `w_bit` and
`q_group_size` into `quant_config.json`; GPTQModel writes AWQ checkpoints with a `quantize_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.models import FileReader
from loadmaster_plugins.grouped.documents import Reader, Statement, stated

AREA: Final = "AWQ"

BITS: Final = 4
"""The only number of bits that autoawq writes."""

STORED_AS: Final = {
    "": "",
    "gemm": "gemm",
    "exllama": "gemm",
    "exllamav2": "gemm",
    "ipex": "gemm",
    "gemv": "gemv",
    "gemv_fast": "gemv_fast",
}
"""The layout in the file by the version that is named: some name the kernel to use, and store as gemm does."""


class AwqSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The statements that matter, None or empty where nothing is said. `plain` are parts of names of plain modules."""

    group_size: int | None = None
    zero_point: bool | None = None
    layout: str = ""
    plain: tuple[str, ...] = ()

    def as_mapping(self) -> Mapping[str, Any]:
        """Return the fields as plain data."""
        found: Mapping[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> AwqSettings:
        """Return the settings that `as_mapping` made plain data."""
        return msgspec.convert(found, cls)

    def calls_plain(self, name: str) -> bool:
        """Tell whether a module is said not to be quantised: one of the listed texts is in its name, as transformers has it."""
        return any(part in name for part in self.plain)


def read_settings(config: Mapping[str, Any], read: FileReader) -> AwqSettings | None:
    """Return what the checkpoint says, or None when it does not speak of AWQ.

    Raises PlanError LM-AWQ-FORMAT for a variant that cannot be read, LM-AWQ-SETTINGS for values without sense.
    """
    statement = stated(config, read, ("quant_config.json", "quantize_config.json"))
    if statement is None or not _speaks_of_awq(statement):
        return None
    reader = Reader(AREA, statement)
    bits = reader.number("bits", "w_bit")
    if bits not in (None, BITS):
        raise reader.refusal("bits", bits, "AWQ matrices of 4 bits can be read")
    version = reader.text("version", "checkpoint_format", "format")
    if version not in STORED_AS:
        raise PlanError(
            "LM-AWQ-FORMAT",
            "the weights are packed for one particular kernel and cannot be read",
            where={"file": statement.where, "setting": f"version = {version[:80]}"},
            why="AWQ weights can be read in the layouts gemm, gemv and gemv_fast",
            hints=["take the checkpoint in the layout gemm, which autoawq writes unless told otherwise"],
        )
    listed = statement.settings.get("modules_to_not_convert")
    return AwqSettings(
        group_size=reader.group_size("group_size", "q_group_size"),
        zero_point=reader.flag("zero_point"),
        layout=STORED_AS[version],
        plain=tuple(name for name in listed if isinstance(name, str) and name) if isinstance(listed, list) else (),
    )


def _speaks_of_awq(statement: Statement) -> bool:
    """Tell whether the method is AWQ; files of autoawq and llm-awq name no method, but lie in a file that only they wrote."""
    said = Reader(AREA, statement)
    method = said.text("quant_method", "method")
    if method in ("auto-round", "auto_round", "intel/auto-round"):
        return "awq" in said.text("packing_format")
    return method == "awq" if method else statement.where == "quant_config.json"
