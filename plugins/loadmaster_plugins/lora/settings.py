"""adapter_config.json: every field is honoured, has no effect on results, or is refused by name."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.lora.fields import Fields

FILE: Final = "adapter_config.json"

HONOURED: Final = frozenset(
    {
        "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
        "layers_to_transform", "layers_pattern", "bias", "lora_bias", "modules_to_save", "use_dora", "peft_type",
    }
)  # fmt: skip
"""Fields that decide what the adapter does. peft type: this plugin was chosen by it."""

IRRELEVANT: Final = frozenset(
    {
        "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type", "inference_mode", "lora_dropout",
        "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size", "runtime_config",
        "fan_in_fan_out",
    }
)  # fmt: skip
"""Fields without effect on results: where the adapter comes from, how it was trained and initialised, settings of features
that are off. `fan_in_fan_out` concerns layers that store their weight transposed; peft ignores it for others, and the layers
that adapters can change here are all of the usual kind."""

PLAIN_STARTS: Final = ("gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model as it is. Others, PiSSA for example, train on a changed base."""


class Settings(NamedTuple):
    """The configuration as peft's own LoraConfig understands it, and what was noticed about it."""

    config: Any
    findings: tuple[Finding, ...]

    def rank(self, path: str) -> int:
        """Return the rank that the configuration gives a module."""
        return int(_pattern_value(self.config.rank_pattern, path, self.config.r))

    def alpha(self, path: str) -> float:
        """Return the alpha of a module."""
        return float(_pattern_value(self.config.alpha_pattern, path, self.config.lora_alpha))

    def scale(self, path: str) -> float:
        """Return what the product of a module's factors is multiplied by, as in peft's `LoraLayer.update_layer`."""
        rank = self.rank(path)
        return self.alpha(path) / (math.sqrt(rank) if self.config.use_rslora else rank)

    def saves(self, path: str) -> bool:
        """Return whether `modules_to_save` names a module; peft compares the ends of names."""
        return any(path.endswith(name) for name in self.config.modules_to_save or ())


def pattern_key(patterns: Iterable[str], path: str) -> str | None:
    """Return the first pattern that fits the end of a module's path, as peft's `get_pattern_key` does."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", path)), None)


def read_settings(raw: Mapping[str, Any]) -> Settings:
    """Return the settings. Raises PlanError LM-ADAPTER-FIELD that names the fields which cannot be honoured."""
    from peft import LoraConfig

    known = {field.name for field in dataclasses.fields(LoraConfig)}
    unknown = sorted(set(raw) - known - {"runtime_config"})
    refused = [f"{name} = {raw[name]!r}" for name in sorted(set(raw) - HONOURED - IRRELEVANT) if _matters(name, raw[name])]
    if refused:
        raise PlanError(
            "LM-ADAPTER-FIELD",
            f"the adapter needs {len(refused)} feature{'s' if len(refused) > 1 else ''} that cannot be honoured",
            where={"file": FILE},
            why="; ".join(refused),
            hints=["export the adapter without it, or merge it into its base model with peft and load the result"],
        )
    try:
        msgspec.convert({name: value for name, value in raw.items() if name in HONOURED}, Fields)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about training only
            given = {name: value for name, value in raw.items() if name in known and name != "runtime_config"}
            config = LoraConfig(**given)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise _invalid(str(error)) from error
    config.rank_pattern, config.alpha_pattern = config.rank_pattern or {}, config.alpha_pattern or {}
    _check_values(config)
    notes = [f"{name} is not known to peft {_version()} and has no value that could matter" for name in unknown]
    return Settings(config, tuple(_note("LM-ADAPTER-FIELD", note) for note in notes))


def _matters(name: str, value: object) -> bool:
    """Return whether a field that is neither honoured nor irrelevant is switched on."""
    if name == "init_lora_weights":
        return not isinstance(value, bool) and value not in PLAIN_STARTS
    return bool(value)


def _check_values(config: Any) -> None:
    """Raise PlanError for values that peft's configuration takes and only its layers refuse."""
    for alpha in (config.lora_alpha, *config.alpha_pattern.values()):
        if not math.isfinite(alpha):
            raise _invalid(f"alpha must be a number, not {alpha!r}")
    for name in ("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "modules_to_save", "layers_pattern"):
        for key in _expressions(name, getattr(config, name)):
            try:
                re.compile(key)
            except re.error as error:
                raise _invalid(f"{name} has {key!r}, which is no regular expression: {error}") from error


def _expressions(name: str, value: Any) -> list[str]:
    """Return what peft takes as regular expressions: the two lists of modules are names unless they are one string."""
    if isinstance(value, str):
        return [value]
    return [] if name in ("target_modules", "exclude_modules") else list(value or ())


def _pattern_value(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    key = pattern_key(patterns, path)
    return default if key is None else patterns[key]


def _version() -> str:
    import peft

    return str(peft.__version__)


def _note(code: str, message: str) -> Finding:
    return Finding(level="warning", code=code, where=FILE, message=message)


def _invalid(why: str) -> PlanError:
    return PlanError("LM-ADAPTER-CONFIG", "the adapter's configuration makes no sense", where={"file": FILE}, why=why)
