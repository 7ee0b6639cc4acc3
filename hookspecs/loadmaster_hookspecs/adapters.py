"""Adapters: small sets of tensors that change what a model computes, and the kinds that understand them.

A kind recognises an adapter by its configuration, says which stored tensors belong to which module, how their dimensions relate
to that module's axes, and how the module's result or its weight changes. It knows nothing of ranks, file formats,
quantisation or model families: the kernel cuts an adapter's tensors where it cuts the module they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from loadmaster_hookspecs.findings import Finding, Ignored, Match
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import ModuleKind

if TYPE_CHECKING:
    import torch

AdapterMode = Literal["live", "merged"]
"""`live` leaves the base as it is and changes results while an adapter is chosen; `merged` changes the weights at load."""

AdapterParams = dict[str, str | int | float | bool]
"""What a kind must remember of a module to compute with it, as plain data: it travels in the plan."""


class StackedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Where a matrix of the checkpoint lies in a stack: rows `start` to `start + rows` of matrix `index` of `parameter`."""

    parameter: str
    index: int
    start: int
    rows: int


class AdapterModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the base model as a kind sees it.

    Linear layers and embeddings map `in_features` to `out_features`: an embedding from the rows of its table to their width.
    Both are 0 for any other kind. `parameters` has the shapes of its undivided plain parameters by name; the weight of a
    `quantised` layer is not among them; `packed` has the shapes of stacks that are quantised. `head` marks the output head.
    `stacked` has the matrices of the checkpoint that the module's stacks are made of, by the paths that they have there as
    layers of their own (`mlp.experts.3.up_proj`).
    """

    path: str
    kind: ModuleKind
    in_features: int = 0
    out_features: int = 0
    parameters: dict[str, tuple[int, ...]] = {}
    quantised: bool = False
    head: bool = False
    packed: dict[str, tuple[int, ...]] = {}
    stacked: dict[str, StackedMatrix] = {}


class StoredAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter as it lies in its folder: its configuration, and the tensors by their stored names."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, TensorMeta]


class AdapterPart(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter does to one module; part of the plan.

    `tensors` maps roles (`A`, `B`, `magnitude`) to stored tensors. `layouts` has one layout per role, named by it, over the
    axes `in` and `out` of the module, those of its parameters (`down_proj.2` is dimension 2 of the parameter `down_proj`), and
    any others, whose sizes `axes` gives; those others are never cut. A layout marked `factor` is needed by every rank of a
    summed result, any other that is not cut is contributed by the first rank alone.
    `touches` names the module's parameters that merging changes. `scale` is what the change is multiplied by.

    Parts may name the same stored tensor: what they use of it is read once, and lies in memory once where it is cut alike. Of
    the roles in `leading` the stored tensor may be larger than the module asks for: its first indices are used.
    """

    path: str
    kind: ModuleKind
    scale: float
    axes: dict[str, int]
    tensors: dict[str, str]
    layouts: tuple[TensorLayout, ...]
    leading: tuple[str, ...] = ()
    touches: tuple[str, ...] = ("weight",)
    params: AdapterParams = {}


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the base model, `name` of module `path`, in whose place the adapter's own `tensor` is used."""

    path: str
    name: str
    tensor: str


class AdapterClaim(msgspec.Struct, frozen=True, kw_only=True):
    """All that an adapter does to a model. Every stored tensor is in a part, in a replacement, or in `ignored` with a reason.

    `summary` says in a few words what it is: `LoRA, 216/216 pairs, r 8, scale 2`.
    """

    summary: str
    parts: tuple[AdapterPart, ...]
    replacements: tuple[Replacement, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    findings: tuple[Finding, ...] = ()


class BaseLayer(Protocol):
    """A rank's part of the module that an adapter changes, in the worker."""

    @property
    def module(self) -> torch.nn.Module:
        """The module itself. Its parameters must not be changed."""
        ...

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` of the rank's own weight as the module stores it, as float32.

        A linear layer stores [out, in], an embedding [in, out]. Those of a quantised layer are the numbers that it multiplies
        with.
        """
        ...

    def total(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks where they share the module's inputs, and the tensor itself elsewhere.

        A collective: every rank must call it, and only while adapters are set up.
        """
        ...


ResultChange = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Takes a module's input and its result, before ranks put theirs together, and returns the changed result.

It may write into the result that it is given, and return that one.
"""

InputChange = Callable[["torch.Tensor"], "torch.Tensor"]
"""Takes a module's input and returns the one that is used in its place, of the same shape."""


ForwardChange = Callable[..., Any]
"""Takes all that a module is called with, and returns what the module would, before ranks put their results together."""


class LiveChange(NamedTuple):
    """What an adapter does to a module while it is chosen. `result` is given the input as `input` has left it.

    Both treat every token by itself: requests with different adapters share a batch, and each call is given the tokens of
    some of them. `forward` runs in the place of the module's own code, where a change is more than something added to its
    result; whether what such a module is called with can be divided by tokens depends on the module.
    """

    result: ResultChange | None = None
    input: InputChange | None = None
    forward: ForwardChange | None = None


MergeChange = Callable[[int, int, "torch.Tensor"], "torch.Tensor"]
"""Takes the bounds of some rows of a parameter and the rows as float32, and returns the changed rows as float32."""


class AdapterKind(Protocol):
    """Understands one kind of adapter. Returned by the `loadmaster_adapters` hook."""

    @property
    def name(self) -> str:
        """Unique name, for example `lora`."""
        ...

    def detect(self, config: Mapping[str, Any]) -> Match | None:
        """Say from an adapter's configuration whether it is of this kind. Runs in the host; must not import torch."""
        ...

    def claim(self, stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
        """Return what the adapter does to the model. Runs in the planner.

        Raises PlanError for whatever cannot be honoured, naming the field or the tensors, and IntegrityError for tensors that
        contradict the configuration. Nothing may be left out silently.
        """
        ...

    def live(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
        """Return how the module changes while the adapter is chosen.

        `tensors` are the rank's own by role, to be left as they are. Runs once per module in the worker. The change must be
        linear in the module's input where ranks share that, since their results are summed afterwards.
        """
        ...

    def merge(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> Mapping[str, MergeChange]:
        """Return how each of the parameters in `part.touches` changes.

        `tensors` are the rank's own in float32 by role, to be left as they are.
        """
        ...
