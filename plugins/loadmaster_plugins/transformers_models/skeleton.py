"""The model as transformers builds it, on the meta device: structure without storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.errors import PlanError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


EXPERTS: Final = "eager"
"""transformers' plain loop over the experts that tokens were sent to: the same result on every device and for every batch."""


NOT_OURS: Final = frozenset({"auto_map", "dtype", "torch_dtype", "quantization_config"})
"""Keys that say what others decide: whose code is run, how wide elements are, and how weights are stored."""


def build_config(config: Mapping[str, Any]) -> PreTrainedConfig:
    """Return transformers' configuration object. Code that a checkpoint brings along is never run.

    Raises PlanError for a model type that the installed transformers does not know, and for values it rejects.
    """
    from transformers import CONFIG_MAPPING

    plain = {key: _plain(value) for key, value in config.items() if key not in NOT_OURS}
    model_type = plain.get("model_type", "")
    try:
        kind = CONFIG_MAPPING[model_type]
    except KeyError as error:
        raise PlanError(
            "LM-MODEL-UNKNOWN",
            f"the installed transformers has no model type {model_type!r}",
            where={"file": "config.json", "key": "model_type"},
            hints=["install a transformers version that knows this model", "code from the checkpoint itself is never run"],
        ) from error
    try:
        made: PreTrainedConfig = kind.from_dict(plain)
    except Exception as error:  # boundary: every library version rejects values with errors of its own
        raise _rejected(model_type, error) from error
    return made


def _plain(value: Any) -> Any:
    """Return a copy of a value from a configuration; infinities, which JSON does not have, become numbers again."""
    if isinstance(value, Mapping) and value.keys() == {"__float__"}:
        return float(value["__float__"])
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def build_skeleton(config: Mapping[str, Any], dtype: str) -> PreTrainedModel:
    """Return the causal language model with all parameters and buffers on the meta device."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    from loadmaster_plugins.transformers_models.attention import attention_name, register_attention

    register_attention()
    made = build_config(config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                made,
                dtype=getattr(torch, TORCH_NAMES[dtype]),
                attn_implementation=attention_name(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(made), None)),
                experts_implementation=EXPERTS,
            )
    except ValueError as error:
        raise PlanError(
            "LM-MODEL-UNSUPPORTED",
            f"model type {made.model_type!r} cannot be run as a causal language model",
            where={"file": "config.json"},
            why=str(error).splitlines()[0],
        ) from error
    except Exception as error:  # boundary: modelling code fails in its own ways on values it does not expect
        raise _rejected(made.model_type, error) from error
    model.train(False)
    return model


def _rejected(model_type: str, error: Exception) -> PlanError:
    """Return the error for a configuration with values that the library does not accept."""
    return PlanError(
        "LM-CONFIG-REJECTED",
        f"transformers rejects the configuration of this {model_type} model",
        where={"file": "config.json"},
        why=f"{type(error).__name__}: {' '.join(str(error).split())}"[:500],
        hints=["check config.json against the model's repository", "it may need another transformers version"],
    )
