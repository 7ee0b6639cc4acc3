"""The types of the fields that decide what an adapter does: peft's own class takes any value."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from loadmaster_plugins.peft_files.config import Names

Rank = Annotated[int, msgspec.Meta(ge=1)]


class Fields(Names, frozen=True, kw_only=True):
    """The honoured fields of adapter_config.json. Absent ones have peft's defaults."""

    r: Rank = 8
    lora_alpha: int | float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, int | float] | None = None
    target_parameters: list[str] | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    lora_bias: bool = False
    use_dora: bool = False
