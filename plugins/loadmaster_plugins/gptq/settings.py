"""What configurations say about a GPTQ checkpoint.

Source of the keys: `BaseQuantizeConfig` of auto-gptq 0.7.1 and `QuantizeConfig` of GPTQModel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.models import FileReader
from loadmaster_plugins.gptq.rules import Rule, applying, read_rules
from loadmaster_plugins.grouped.bits import STREAM
from loadmaster_plugins.grouped.documents import Reader, Statement, stated

Version = Literal["v1", "v2"]
"""How zero points are stored: `v1` less one, `v2` as they are."""

FORMATS: Final[dict[str, Version]] = {"": "v1", "gptq": "v1", "gptq_v2": "v2"}

AREA: Final = "GPTQ"


class GptqSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The statements that matter, None where nothing is said. `modules` are names in a block that are said to be quantised."""

    bits: int | None = None
    group_size: int | None = None
    sym: bool | None = None
    desc_act: bool | None = None
    version: Version = "v1"
    rules: tuple[Rule, ...] = ()
    modules: tuple[str, ...] = ()

    def as_mapping(self) -> Mapping[str, Any]:
        """Return the fields as plain data."""
        plain: Mapping[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> GptqSettings:
        """Return the settings that `as_mapping` made plain."""
        return msgspec.convert(plain, cls)

    def of_module(self, name: str) -> GptqSettings | None:
        """Return what holds for one module: its rule, if any, over the general values. None: it is said not to be quantised."""
        rule = applying(self.rules, name)
        if rule is None:
            listed = not self.modules or not _in_block(name) or name.endswith(tuple(f".{module}" for module in self.modules))
            return self if listed else None
        if rule.skip:
            return None
        changes = {"bits": rule.bits, "group_size": rule.group_size, "sym": rule.sym, "desc_act": rule.desc_act}
        return msgspec.structs.replace(self, **{key: value for key, value in changes.items() if value is not None})


def _in_block(name: str) -> bool:
    """Tell whether a module lies in a numbered block: lists of modules say nothing about others, like `lm_head`."""
    return any(part.isdecimal() for part in name.split("."))


def read_settings(config: Mapping[str, Any], read: FileReader) -> GptqSettings | None:
    """Return what the checkpoint says, or None when it does not speak of GPTQ.

    Raises PlanError LM-GPTQ-FORMAT for a variant that cannot be read, LM-GPTQ-SETTINGS for values without sense.
    """
    statement = stated(config, read, ("quantize_config.json",))
    if statement is None or not _speaks_of_gptq(statement):
        return None
    reader = Reader(AREA, statement)
    bits = reader.number("bits", "w_bit")
    if bits is not None and bits not in STREAM:
        raise reader.refusal("bits", bits, "GPTQ matrices of 2, 3, 4 and 8 bits can be read")
    packed = reader.text("pack_dtype")
    if packed not in ("", "int32"):
        raise reader.refusal("pack_dtype", packed, "only 32-bit words can be read", "quantise again with pack_dtype int32")
    return GptqSettings(
        bits=bits,
        group_size=reader.group_size("group_size", "q_group_size"),
        sym=reader.flag("sym"),
        desc_act=reader.flag("desc_act"),
        version=_version(reader),
        rules=read_rules(reader),
        modules=tuple(_names(statement.settings.get("modules_in_block_to_quantize"))),
    )


def _speaks_of_gptq(statement: Statement) -> bool:
    """Tell whether the method is GPTQ; old auto-gptq files name no method, but lie in a file that only it wrote."""
    said = Reader(AREA, statement)
    method = said.text("quant_method", "method")
    if method in ("auto-round", "auto_round", "intel/auto-round"):
        return "gptq" in said.text("packing_format")
    return method in ("gptq", "marlin", "bitblas") if method else statement.where == "quantize_config.json"


def _version(reader: Reader) -> Version:
    """Return the version of the zero points. Raises PlanError LM-GPTQ-FORMAT for a format that cannot be read."""
    named = {name: reader.text(name) for name in ("checkpoint_format", "format")}
    method = reader.text("quant_method", "method")
    if method in ("marlin", "bitblas"):
        raise _unreadable(reader, f"quant_method = {method}")
    if reader.flag("is_marlin_format"):
        raise _unreadable(reader, "is_marlin_format = true")
    for name, value in named.items():
        if value not in FORMATS:
            raise _unreadable(reader, f"{name} = {value}")
    said = {value for value in named.values() if value}
    if len(said) > 1:
        raise reader.refusal("format", named["format"], f"checkpoint_format says {named['checkpoint_format']!r}")
    return FORMATS[said.pop() if said else ""]


def _unreadable(reader: Reader, setting: str) -> PlanError:
    return PlanError(
        "LM-GPTQ-FORMAT",
        "the weights are packed for one particular kernel and cannot be read",
        where={"file": reader.statement.where, "setting": setting[:80]},
        why="GPTQ weights can be read in the formats gptq and gptq_v2",
        hints=["take the checkpoint in the format gptq or gptq_v2, from which this one was made"],
    )


def _names(value: Any) -> Iterator[str]:
    """Yield the texts in nested lists, which is how modules of a block are listed."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)
