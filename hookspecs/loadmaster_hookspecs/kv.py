"""Keys and values in blocks: what a model keeps per token, and how its attention reaches what the kernel keeps for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from loadmaster_hookspecs.models import CausalModel

if TYPE_CHECKING:
    import torch


class KvLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What one attention call keeps of every token on this rank: `heads` keys of `key_dim` and values of `value_dim` elements.

    `window` is the number of latest tokens, its own included, that a token attends to (0: all before it).
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int = 0


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank keeps per token, in the order of its attention calls. `dtype` is the element type (`F32`, `BF16`, ...).

    `longest` bounds a context where results would otherwise depend on what else is in the batch (0: no bound), and
    `longest_why` says why.
    """

    layers: tuple[KvLayer, ...]
    dtype: str
    longest: int = 0
    longest_why: str = ""

    @property
    def elements(self) -> int:
        """Elements that one token takes in all layers."""
        return sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in self.layers)


class KvCache(Protocol):
    """The keys and values of all sequences of a step. Owned by the kernel; a model's attention calls it once per layer."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        kv_index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Keep the new keys and values and return the attention output [1, tokens, query heads, value size].

        Calls of one step count through the layers of the layout.

        Args:
            query: [1, query heads, tokens, key size], the new tokens of all sequences one after the other.
            key: [1, key-value heads, tokens, key size]; `value` likewise with the value size.
            scale: factor of the scores.
            softcap: bound on scores, as `tanh(score / softcap) * softcap`.
            sinks: [query heads], scores that take their share of attention and give nothing.
            kv_index: int64 [query heads], the key-value head of every query head where equal runs in order do not say it.
        """
        ...


@runtime_checkable
class PagedModel(CausalModel, Protocol):
    """A causal model that many sequences can use at once, with keys and values kept by the kernel in blocks."""

    def kv_layout(self, tokens: int) -> KvLayout:
        """Run `tokens` tokens through the bound model and return what its attention keeps. All ranks call it together, so the
        model may ask all of them here (`loadmaster_hookspecs.agreeing`).

        Raises PlanError for a model that keeps anything else between tokens, or whose attention cannot work on blocks.
        """
        ...

    def step(self, tokens: torch.Tensor, positions: torch.Tensor, last: torch.Tensor, cache: KvCache) -> torch.Tensor:
        """Run new tokens of several sequences and return float logits [len(last), vocabulary].

        Args:
            tokens: int64 [1, tokens], the sequences' new tokens one after the other.
            positions: int64 [1, tokens], each token's position in its own sequence.
            last: int64, the indexes of the tokens whose logits are wanted.
            cache: keeps keys and values of the sequences, this step's included.
        """
        ...
