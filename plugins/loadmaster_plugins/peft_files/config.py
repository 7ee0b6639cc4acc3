"""adapter_config.json: every field is honoured, has no effect on results, or is refused by name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Finding

FILE: Final = "adapter_config.json"

ORIGIN: Final = frozenset(
    {
        "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type", "inference_mode", "runtime_config",
        "fan_in_fan_out",
    }
)  # fmt: skip
"""Fields of every type of adapter that have no effect on results. `fan_in_fan_out` concerns layers that store their weight
transposed; peft ignores it for others, and the layers that adapters can change here are all of the usual kind."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that say which modules are meant, as most types have them. Absent ones have peft's defaults."""

    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None


class Rules(NamedTuple):
    """How the fields of one type of adapter are taken.

    `config` is the name of peft's own class, `honoured` has the types of the fields that decide what the adapter does: peft's
    class takes any value. The values of all others but `irrelevant` ones must be such that `matters` says no.
    """

    config: str
    honoured: type[msgspec.Struct]
    irrelevant: frozenset[str]
    matters: Callable[[str, object], bool] = lambda _name, value: bool(value)


class Read(NamedTuple):
    """A configuration as peft's own class understands it, and what was noticed about it."""

    config: Any
    findings: tuple[Finding, ...]


def read_config(raw: Mapping[str, Any], rules: Rules) -> Read:
    """Return the configuration.

    Raises PlanError LM-ADAPTER-FIELD that names the fields which cannot be honoured, and LM-ADAPTER-CONFIG for values that make
    no sense.
    """
    import peft

    peft_class = getattr(peft, rules.config)
    honoured = {*rules.honoured.__struct_fields__, "peft_type"}  # by its type the plugin was chosen
    known = {field.name for field in dataclasses.fields(peft_class)}
    unknown = sorted(set(raw) - known - {"runtime_config"})
    others = sorted(set(raw) - honoured - rules.irrelevant - ORIGIN)
    refused = [f"{name} = {raw[name]!r}" for name in others if rules.matters(name, raw[name])]
    if refused:
        raise PlanError(
            "LM-ADAPTER-FIELD",
            f"the adapter needs {len(refused)} feature{'s' if len(refused) > 1 else ''} that cannot be honoured",
            where={"file": FILE},
            why="; ".join(refused),
            hints=["export the adapter without it, or merge it into its base model with peft and load the result"],
        )
    try:
        msgspec.convert({name: value for name, value in raw.items() if name in honoured - {"peft_type"}}, rules.honoured)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about training only
            given = {name: value for name, value in raw.items() if name in known and name != "runtime_config"}
            config = peft_class(**given)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise invalid(str(error)) from error
    notes = [f"{name} is not known to peft {peft.__version__} and has no value that could matter" for name in unknown]
    return Read(config, tuple(Finding(level="warning", code="LM-ADAPTER-FIELD", where=FILE, message=note) for note in notes))


def invalid(why: str, *hints: str) -> PlanError:
    """Return the error for values that make no sense."""
    return PlanError(
        "LM-ADAPTER-CONFIG", "the adapter's configuration makes no sense", where={"file": FILE}, why=why, hints=hints
    )
