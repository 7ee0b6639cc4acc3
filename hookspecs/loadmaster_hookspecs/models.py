"""What a model is made of: modules, their tensors, ties and names; and the families that build it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from loadmaster_hookspecs.findings import Finding, Ignored, Match
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.sharding import ModulePlacement, Unit

if TYPE_CHECKING:
    import torch

ModuleKind = Literal["linear", "embedding", "experts", "other"]


class ModelOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that decide how a model can be split, from the configuration alone and without importing torch.

    `widths` names further sizes that a split must respect, for example `{"intermediate_size": 11008}`.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    widths: dict[str, int] = {}
    max_positions: int = 0


class ModuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A module that owns tensors, or one that owns none but whose results the ranks must put together.

    `axes` gives the logical size of each axis its tensors use; `style` the way the model's authors say it may be split
    (`colwise`, `rowwise`, ... as in transformers' tensor-parallel plans, or `replicate`); `units` what must stay whole on an
    axis; `domains` names, per axis, the group of modules that must be cut at the same places.
    """

    path: str
    kind: ModuleKind
    style: str
    axes: dict[str, int]
    tensors: tuple[TensorLayout, ...]
    units: dict[str, Unit] = {}
    domains: dict[str, str] = {}


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A box of a stored tensor that fills a box of a parameter.

    `start` and `extent` give the box in the stored tensor (empty: all of it); `at` where it begins in the parameter (empty:
    at the origin); `dims[j]` is the parameter's dimension that the stored dimension `j` runs along (empty: the same one).
    Concatenating, stacking and transposing are therefore only numbers here, never temporary tensors.
    """

    tensor: str
    start: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the planner sees it.

    `sources` maps every parameter to the pieces of stored tensors it is made of (a parameter without an entry is fed by
    nothing); `ties` maps a parameter to the one it shares storage with according to the configuration; `ignored` lists the
    tensors that are known to feed nothing, `unexpected` those that should feed something but do not. `keep_float32` names
    parameters that must not be narrowed.
    """

    family: str
    outline: ModelOutline
    modules: tuple[ModuleSpec, ...]
    sources: dict[str, tuple[Piece, ...]]
    ties: dict[str, str] = {}
    ignored: tuple[Ignored, ...] = ()
    unexpected: tuple[str, ...] = ()
    keep_float32: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class CausalModel(Protocol):
    """A built model of one rank, ready to run. Made by `ModelFamily.build`, driven by the kernel's runtime."""

    @property
    def module(self) -> torch.nn.Module:
        """The module tree whose parameters the kernel binds to arena views."""
        ...

    def new_cache(self) -> Any:
        """Return an empty key-value cache for one batch. The caller owns it and passes it back to `forward`."""
        ...

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, *, last_only: bool
    ) -> torch.Tensor:
        """Run one step and return float logits.

        Args:
            tokens: int64 [batch, new], the tokens to append.
            mask: int64 [batch, cached + new], 1 for real tokens and 0 for padding on the left.
            positions: int64 [batch, new], the position of every new token in its own sequence.
            cache: the object from `new_cache`, extended in place, or None to run without one.
            last_only: return logits [batch, 1, vocab] of the last token instead of [batch, new, vocab].
        """
        ...


class Tokenizer(Protocol):
    """Turns text into token ids and back, in the host process and without torch."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of `text`; with `special` the tokens a model expects around a prompt are added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for a conversation (`role`, `content`), ready for the assistant to answer.

        Raises UsageError when the model has no chat template.
        """
        ...


class ModelFamily(Protocol):
    """Describes and builds models from one library of modelling code. Returned by the `loadmaster_models` hook."""

    @property
    def name(self) -> str:
        """Unique name, for example `transformers`."""
        ...

    def preload(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the modules to import once before planner and workers of this model are forked. Must not import them."""
        ...

    def match(self, config: Mapping[str, Any]) -> Match | None:
        """Say whether this family can build the model that `config` describes. Must not import torch."""
        ...

    def outline(self, config: Mapping[str, Any]) -> ModelOutline:
        """Return the sizes that decide a split. Must not import torch. Raises PlanError naming a missing or absurd key."""
        ...

    def describe(self, index: CheckpointIndex) -> ModelSpec:
        """Return modules, ties and the name map. May import torch; builds tensors on the meta device only."""
        ...

    def build(self, config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> CausalModel:
        """Build the module tree of one rank: parameters on the meta device, computed buffers filled in.

        `placements` says which part of each split module this rank holds. Runs in the worker, on a thread of its own beside
        the load and never twice at a time in one process; the caller owns the result.
        """
        ...

    def tokenizer(self, index: CheckpointIndex, read: FileReader) -> Tokenizer:
        """Return the tokenizer that lies beside the weights. Raises UsageError when there is none."""
        ...


class FileReader(Protocol):
    """Reads a small file that lies beside the weights."""

    def __call__(self, name: str) -> bytes | None:
        """Return the whole content of the file, or None when it does not exist."""
        ...
