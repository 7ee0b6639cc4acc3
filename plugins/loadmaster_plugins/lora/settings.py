"""What a LoRA's configuration says of its modules: ranks, scales, and the fields that cannot be honoured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.lora.fields import Fields
from loadmaster_plugins.peft_files.config import Rules, invalid, read_config
from loadmaster_plugins.peft_files.expressions import check_expressions

IRRELEVANT: Final = frozenset(
    {"lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size"}
)
"""Fields without effect on results: how the adapter was trained and initialised, settings of features that are off."""

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


def pattern_key(patterns: Iterable[str], path: str) -> str | None:
    """Return the first pattern that fits the end of a module's path, as peft's `get_pattern_key` does."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", path)), None)


def read_settings(raw: Mapping[str, Any]) -> Settings:
    """Return the settings. Raises PlanError LM-ADAPTER-FIELD that names the fields which cannot be honoured."""
    config, findings = read_config(raw, Rules("LoraConfig", Fields, IRRELEVANT, _matters))
    config.rank_pattern, config.alpha_pattern = config.rank_pattern or {}, config.alpha_pattern or {}
    for alpha in (config.lora_alpha, *config.alpha_pattern.values()):
        if not math.isfinite(alpha):
            raise invalid(f"alpha must be a number, not {alpha!r}")
    check_expressions(config)
    return Settings(config, findings)


def _matters(name: str, value: object) -> bool:
    """Return whether a field that is neither honoured nor irrelevant is switched on."""
    if name == "init_lora_weights":
        return not isinstance(value, bool) and value not in PLAIN_STARTS
    return bool(value)


def _pattern_value(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    key = pattern_key(patterns, path)
    return default if key is None else patterns[key]
