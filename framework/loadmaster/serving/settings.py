"""What a user can set about serving. Unknown names and absurd values are errors that say what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from loadmaster_hookspecs.errors import UsageError

Auto = Literal["auto"]

UNTUNED_RUNNING: Final = 64
"""What `max_running` auto is where nothing was tuned."""

SMALLEST: Final = {
    "kv_bytes": 1,
    "max_model_len": 2,
    "block_size": 1,
    "max_batch_tokens": 1,
    "max_running": 1,
    "adapter_bytes": 0,
    "max_adapter_rank": 0,
    "max_waiting": 0,
}


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine serves.

    `max_running` auto is what `loadmaster tune` found for the same plan on this machine, or else 64.

    `kv_bytes` is the memory for keys and values in bytes, over all ranks together; auto takes what is left, but no more than
    `max_running` requests of the longest context need. `max_model_len` is the longest context in tokens, prompt and answer
    together; auto is the longest that the model has positions and memory for. Keys and values lie in blocks of `block_size`
    tokens. A step computes `max_batch_tokens` new tokens of `max_running` requests at most, so longer prompts are computed in
    pieces. `max_waiting` requests beyond `max_running` may wait, further ones are refused; 0 lets any number wait.
    `prefix_cache` lets requests use what others with the same beginning have computed. `adapter_bytes` is the memory for
    adapters in bytes, over all ranks together; auto is what those that come with the model take, and a twentieth of the model's
    bytes or 64 MiB besides. `max_adapter_rank` is the highest rank that an adapter may have, 0 for any.
    `arrange_matrices` keeps bfloat16 matrices a second time, arranged for the processor; auto does so where they take at most a
    quarter of the memory that is left.
    """

    kv_bytes: int | Auto = "auto"
    max_model_len: int | Auto = "auto"
    block_size: int = 16
    max_batch_tokens: int = 512
    max_running: int | Auto = "auto"
    max_waiting: int = 1024
    prefix_cache: bool = True
    adapter_bytes: int | Auto = "auto"
    max_adapter_rank: int = 0
    arrange_matrices: bool | Auto = "auto"

    def __post_init__(self) -> None:
        for name, smallest in SMALLEST.items():
            value = getattr(self, name)
            automatic = "auto" in str(_kind(name)).lower() and value == "auto"
            if not automatic and (isinstance(value, bool) or not isinstance(value, int) or value < smallest):
                raise UsageError(
                    "LM-USAGE-SETTING",
                    f"{name} {value!r} is out of range",
                    where={"setting": name},
                    hints=[
                        f"give a whole number from {smallest} up" + (", or auto" if "auto" in str(_kind(name)).lower() else "")
                    ],
                )
        if self.arrange_matrices not in (True, False, "auto"):
            raise UsageError(
                "LM-USAGE-SETTING",
                f"arrange_matrices {self.arrange_matrices!r} is out of range",
                where={"setting": "arrange_matrices"},
                hints=["give true, false or auto"],
            )

    @property
    def running(self) -> int:
        """The most requests in a step, as long as nothing tuned has taken the place of auto."""
        return UNTUNED_RUNNING if self.max_running == "auto" else self.max_running


def settings_from(values: Mapping[str, Any]) -> EngineSettings:
    """Return settings from names and values. Raises UsageError LM-USAGE-SETTING with the nearest name for an unknown one."""
    known = EngineSettings.__struct_fields__
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                "LM-USAGE-SETTING",
                f"there is no setting {name!r}",
                where={"setting": name},
                hints=[f"did you mean {near[0]}?"] if near else [f"settings: {', '.join(known)}"],
            )
    return EngineSettings(**values)


def _kind(name: str) -> Any:
    return EngineSettings.__annotations__[name]
