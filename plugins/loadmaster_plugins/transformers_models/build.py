"""Building one rank's model: transformers' modules on the meta device, computed buffers, and the rank's head mapping."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from loadmaster_hookspecs.dtypes import BY_TORCH_NAME
from loadmaster_hookspecs.kv import KvCache, KvLayout
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.sharding import Interval, ModulePlacement
from loadmaster_plugins.transformers_models.attention import KV_INDEX
from loadmaster_plugins.transformers_models.buffers import compute_buffers
from loadmaster_plugins.transformers_models.heads import KEY_COUNTS, OUTPUT, QUERY_COUNTS, Heads, heads_of, is_attention
from loadmaster_plugins.transformers_models.norms import lighten_norms
from loadmaster_plugins.transformers_models.outline import outline_of
from loadmaster_plugins.transformers_models.paged import (
    PAGED,
    PROBE,
    batch_bound,
    bind_model,
    check_states,
    register_paged,
)
from loadmaster_plugins.transformers_models.skeleton import build_skeleton
from loadmaster_plugins.transformers_models.trial import TOKENS, try_layers


class TransformersModel:
    """A transformers causal language model of one rank, driven token by token."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._model = module
        names = inspect.signature(type(module).forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        parts = [getattr(part, "config", None) for part in module.modules()]
        configs = {id(config): config for config in parts if isinstance(config, PreTrainedConfig)}
        self._ordinary = {key: config._attn_implementation for key, config in configs.items()}
        self._configs = configs
        self._attention = ""
        self._light = False
        self._binding = bind_model(module)

    @property
    def module(self) -> torch.nn.Module:
        """The module tree. Its parameters are on the meta device until the kernel binds them."""
        return self._model

    def new_cache(self) -> DynamicCache:
        """Return an empty cache that honours the model's sliding windows."""
        return DynamicCache(config=self._model.config)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, *, last_only: bool
    ) -> torch.Tensor:
        """Return float logits [batch, 1 or new tokens, vocabulary]."""
        self._use("")
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=cache is not None,
            logits_to_keep=_last(tokens) if last_only else 0,
            **{self._cache_argument: cache},
        )
        logits: torch.Tensor = output.logits
        return logits

    def kv_layout(self, tokens: int) -> KvLayout:
        """Run `tokens` tokens with ordinary attention and return what the layers' attention keeps.

        With several tokens, layers are made lean where that changes nothing; one token is for those who watch the modules.
        """
        register_paged()
        if not self._light:  # here and not before: whoever takes gradients gets the module as transformers made it
            lighten_norms(self._model, self._model.dtype)
            self._light = True
        self._use(PROBE)
        self._binding.seen.clear()
        positions = torch.arange(tokens, device=self._model.device).unsqueeze(0)
        self._run(torch.zeros_like(positions), positions, positions[0, -1:])
        seen = self._binding.seen[:]
        self._binding.seen.clear()
        check_states(self._model, seen)
        if tokens > 1:
            self._try_layers()
        longest, why = batch_bound(self._model)
        return KvLayout(
            layers=tuple(one.layer for one in seen),
            dtype=BY_TORCH_NAME[str(seen[0].dtype).removeprefix("torch.")],
            longest=longest,
            longest_why=why,
        )

    def step(self, tokens: torch.Tensor, positions: torch.Tensor, last: torch.Tensor, cache: KvCache) -> torch.Tensor:
        """Return float logits [len(last), vocabulary] of a packed batch whose keys and values `cache` keeps."""
        self._use(PAGED)
        self._binding.cache = cache
        try:
            return self._run(tokens, positions, last)
        finally:
            self._binding.cache = None

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        output = self._model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=last)
        logits: torch.Tensor = output.logits[0]
        return logits

    def _try_layers(self) -> None:
        self._use(PAGED)
        config = self._model.config.get_text_config(decoder=True)
        longest = batch_bound(self._model)[0] or getattr(config, "max_position_embeddings", None) or TOKENS
        places = torch.arange(TOKENS, device=self._model.device)
        # From end to end of the context: some layers treat far positions in another way.
        positions = (places * max(1, (longest - 1) // (TOKENS - 1))).unsqueeze(0)
        tokens = places.unsqueeze(0) % config.vocab_size
        try_layers(self._model, self._binding, lambda: self._run(tokens, positions, places[-1:]))

    def _use(self, attention: str) -> None:
        """Have all modules call this attention, or each the one it was built with: they look it up in their configuration."""
        if attention != self._attention:
            for key, config in self._configs.items():
                config._attn_implementation = attention or self._ordinary[key]
            self._attention = attention


def _last(tokens: torch.Tensor) -> torch.Tensor | int:
    """Return the last position, as transformers takes the positions whose logits it computes.

    Of several positions it is given by its index: a number makes transformers cut a slice, whose strides lead torch to copy the
    whole output matrix for a product with one row (measured in bfloat16: 0.3 s instead of 0.01 s for 32000 x 2048).
    """
    width = tokens.shape[1]
    return tokens.new_tensor([width - 1]) if width > 1 else 1


def build_model(config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> TransformersModel:
    """Build the model of one rank. Nothing but its computed buffers takes memory."""
    model = build_skeleton(config, dtype)
    compute_buffers(model)
    _localise_heads(model, outline_of(config), placements)
    return TransformersModel(model)


def _localise_heads(model: PreTrainedModel, outline: ModelOutline, placements: Sequence[ModulePlacement]) -> None:
    """Tell every divided attention module how many heads the rank has, and which key-value head each query head uses."""
    divided: dict[str, dict[str, Interval]] = {}
    for placed in placements:
        parent, _, name = placed.path.rpartition(".")
        whole_inside = placed.placement.collective_in == "slice" or placed.placement.collective_out == "concat"
        if placed.placement.owns and is_attention(model.get_submodule(parent)) and not whole_inside:
            divided.setdefault(parent, {})[name] = next(iter(placed.placement.owns.values()))[0]
    for path, owned in divided.items():
        module = model.get_submodule(path)
        heads = heads_of(module, outline)
        output = next((name for name in OUTPUT if name in owned), None)
        if output is not None:
            width = module.get_parameter(f"{output}.weight").shape[1]
            _set_heads(module, heads, _scaled(owned[output], heads.queries, width))


def _set_heads(module: torch.nn.Module, heads: Heads, queries: Interval) -> None:
    keys = Interval(queries.start // heads.ratio, -(-queries.stop // heads.ratio))
    for names, whole, local in ((QUERY_COUNTS, heads.queries, queries.size), (KEY_COUNTS, heads.keys, keys.size)):
        for name in names:
            if getattr(module, name, None) == whole:
                setattr(module, name, local)
    index = kv_index(queries, keys, heads.ratio)
    if index is not None:
        setattr(module, KV_INDEX, torch.tensor(index))
    elif hasattr(module, "num_key_value_groups"):
        setattr(module, "num_key_value_groups", queries.size // keys.size)  # noqa: B010 # torch types attributes as modules


def kv_index(queries: Interval, keys: Interval, ratio: int) -> list[int] | None:
    """Return the local key-value head of each local query head, or None where equal runs in order say the same."""
    index = [head // ratio - keys.start for head in range(queries.start, queries.stop)]
    repeats, rest = divmod(queries.size, keys.size)
    uniform = rest == 0 and index == [head for head in range(keys.size) for _ in range(repeats)]
    return None if uniform else index


def _scaled(elements: Interval, count: int, size: int) -> Interval:
    """Return the heads that an interval of elements is, where `count` heads have `size` elements together."""
    return Interval(elements.start * count // size, elements.stop * count // size)
