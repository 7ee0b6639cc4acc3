"""Attention over the kernel's blocks of keys and values, and the probe that finds out what a model keeps.

The probe runs a few tokens with masks made as always. Every mask is a function of two positions, so evaluating it far away
tells the layer's window without building a large mask, and a layer with another rule is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.kv import KvCache, KvLayer
from loadmaster_plugins.transformers_models.attention import HARMLESS, KV_INDEX, attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAGED: Final = "loadmaster_paged"
"""Attention over blocks. It has no mask function on purpose: transformers then makes no masks."""

PROBE: Final = "loadmaster_probe"
"""Ordinary attention that notes what it is given."""

BINDING: Final = "loadmaster_binding"
"""Attribute of every module of a model that holds its `Binding`."""

_WINDOW: Final = "loadmaster_window"
_FAR: Final = 1 << 20
"""A position beyond any window."""


class Seen(NamedTuple):
    """One attention call of the probe."""

    module: torch.nn.Module
    layer: KvLayer
    dtype: torch.dtype


class Binding:
    """Where the attention calls of one model go: to the probe's notes, or to the cache of the running step."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.cache: KvCache | None = None


def register_paged() -> None:
    """Make both functions known to transformers. Safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PAGED, paged_attention)
    AttentionInterface.register(PROBE, probe_attention)
    AttentionMaskInterface.register(PROBE, _tagged_mask)


def bind_model(model: PreTrainedModel) -> Binding:
    """Give all modules of a model one binding and return it."""
    binding = Binding()
    for module in model.modules():
        setattr(module, BINDING, binding)
    return binding


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output [1, tokens, query heads, value size] over the running step's cache.

    What else a call may bring was judged by the probe.
    """
    cache: KvCache | None = getattr(module, BINDING).cache
    assert cache is not None, "attention over blocks outside of a step"
    output = cache.attend(
        query,
        key,
        value,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
        kv_index=getattr(module, KV_INDEX, None),
    )
    return output, None


def probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Note what a layer keeps, and return ordinary attention. Raises PlanError for what blocks cannot do."""
    window = getattr(attention_mask, _WINDOW, None)
    if window is None:
        raise _unservable(type(module).__name__, "it makes its attention masks itself")
    if isinstance(window, str):
        raise _unservable(type(module).__name__, window)
    allowed = {*HARMLESS, "scaling", "dropout", "softcap", "s_aux"}
    unknown = [name for name, given in kwargs.items() if given is not None and name not in allowed]
    if unknown == ["is_causal"] and kwargs["is_causal"]:
        unknown = []
    if unknown:
        raise _unservable(type(module).__name__, f"attention input {unknown[0]} is not supported over blocks")
    layer = KvLayer(heads=key.shape[1], key_dim=key.shape[-1], value_dim=value.shape[-1], window=window)
    getattr(module, BINDING).seen.append(Seen(module, layer, key.dtype))
    return attention(module, query, key, value, attention_mask, **kwargs)


def _tagged_mask(*, mask_function: Callable[..., Any], attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
    """Return the ordinary mask, with what its rule says about windows as an attribute."""
    from transformers.masking_utils import sdpa_mask

    made = sdpa_mask(
        mask_function=mask_function,
        attention_mask=attention_mask,
        **{**kwargs, "allow_is_causal_skip": False, "use_vmap": False},
    )
    assert made is not None, "a mask was left out"
    setattr(made, _WINDOW, window_of(mask_function))
    return made


def window_of(mask_function: Callable[..., Any]) -> int | str:
    """Return the window of a mask's rule, 0 for all tokens before, or why the rule is neither."""

    def visible(query: int, key: int) -> bool:
        zero = torch.tensor(0)
        return bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(key)))

    def first(query: int) -> int:
        low, high = 0, query
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if visible(query, middle) else (middle + 1, high)
        return low

    try:
        if not visible(_FAR, _FAR) or visible(_FAR, _FAR + 1):
            return "tokens attend to later ones"
        if visible(_FAR, 0):
            return 0
        windows = {query - first(query) + 1 for query in (_FAR, _FAR + 1, _FAR + 37)}
    except (IndexError, RuntimeError) as error:
        return f"its mask depends on more than positions ({str(error).splitlines()[0]})"
    return windows.pop() if len(windows) == 1 else "attention in chunks is not supported over blocks"


def check_states(model: PreTrainedModel, seen: list[Seen]) -> None:
    """Raise PlanError when a layer keeps states of another kind than keys and values."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    layers = DynamicCache(config=model.config).layers
    other = {type(layer).__name__ for layer in layers} - {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__}
    if other:
        raise _unservable(type(model).__name__, f"layers keep states of another kind: {', '.join(sorted(other))}")
    if len(seen) < len(layers):
        raise _unservable(type(model).__name__, f"{len(layers)} layers made {len(seen)} calls of attention")
    if len({one.dtype for one in seen}) > 1:
        raise _unservable(type(model).__name__, "layers keep keys of different element types")


def batch_bound(model: PreTrainedModel) -> tuple[int, str]:
    """Return the longest context for which rotary angles do not depend on the batch, 0 without a bound, and the reason."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in parameters.values() if isinstance(one, dict)] or [parameters]
    for one in nested:
        if one.get("rope_type") in ("dynamic", "longrope"):
            original = one.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
            bound = int(original or config.max_position_embeddings)
            return bound, f"rotary embeddings of type {one['rope_type']} change for the whole batch beyond {bound} positions"
    return 0, ""


def _unservable(name: str, why: str) -> PlanError:
    return PlanError(
        "LM-SERVE-MODEL",
        f"{name} cannot be served",
        why=why,
        hints=["Engine.generate runs it, one batch at a time"],
    )
