"""The sizes that decide a split, read from a configuration without importing any modelling code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.models import ModelOutline

LAYERS = ("layer_types", "layers_block_type")
"""Keys that list the kind of every layer, which some configurations have instead of a number."""

WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size")
"""Keys of the inner widths of feed-forward blocks and experts: every rank needs a part of each."""

MAX_SIZE = 1 << 32
"""No dimension of a real model comes near this; larger values are damage."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the configuration that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def outline_of(config: Mapping[str, Any]) -> ModelOutline:
    """Return the outline of a decoder model. Raises PlanError LM-CONFIG-KEY for a key that is absent or absurd."""
    text = text_config(config)
    heads = _size(text, "num_attention_heads", "n_head", "n_heads")
    hidden = _size(text, "hidden_size", "n_embd", "d_model")
    kv_heads = _size(text, "num_key_value_heads", "n_head_kv", default=heads)
    if heads % kv_heads:
        raise _key_error("num_key_value_heads", f"{heads} query heads are no multiple of {kv_heads} key-value heads")
    layers: list[Any] = next((text[key] for key in LAYERS if isinstance(text.get(key), list)), [])
    widths = {name: _width(text, name) for name in WIDTHS if text.get(name) is not None}
    return ModelOutline(
        architecture=_architecture(config),
        hidden_size=hidden,
        num_layers=_size(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers", default=len(layers) or None),
        vocab_size=_size(text, "vocab_size"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(text, "head_dim", default=max(1, hidden // heads)),
        widths=widths,
        max_positions=_size(text, "max_position_embeddings", "n_positions", "n_ctx", default=0),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, Sequence) and not isinstance(names, str) and names:
        return str(names[0])
    return str(config.get("model_type", "unknown"))


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """Return the first of `keys` that is present, as a positive integer."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_SIZE:
            raise _key_error(key, f"{value!r} is no size")
        return value
    if default is None:
        raise _key_error(keys[0], "the key is absent")
    return default


def _width(config: Mapping[str, Any], key: str) -> int:
    """Return a width, the narrowest one where every layer has its own."""
    value = config[key]
    return min(_size({key: one}, key) for one in value) if isinstance(value, list) and value else _size(config, key)


def _key_error(key: str, why: str) -> PlanError:
    return PlanError(
        "LM-CONFIG-KEY",
        "config.json does not describe a decoder language model",
        where={"file": "config.json", "key": key},
        why=why,
        hints=["check that the folder holds the configuration that belongs to the weights"],
    )
