"""Quantised matrices: who recognises them in a file, how their tensors are cut, and what multiplies with them.

A quantizer is a table and a decoder: it claims the tensors that stand for one matrix, says how their dimensions relate to the
matrix's rows (`out`) and columns (`in`), and turns a rank's part of them back into numbers. It knows nothing of ranks, file
formats, experts or adapters. A kernel multiplies with what a quantizer decodes, and knows no file at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import FileReader
from loadmaster_hookspecs.sharding import Interval

if TYPE_CHECKING:
    import torch

Params = dict[str, str | int | bool]
"""What a quantizer must remember of a matrix to decode it, as plain data: it travels in the plan."""


class StoredMatrix(Protocol):
    """The stored tensors that share a prefix, as a quantizer sees them when it is asked whether they are its own."""

    @property
    def name(self) -> str:
        """The prefix, for example `model.layers.0.mlp.down_proj`."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorMeta]:
        """The tensors by what follows the prefix: `qweight`, `scales`, `bias`, ..."""
        ...

    def values(self, suffix: str, nbytes: int | None = None) -> bytes:
        """Return the first `nbytes` stored bytes of a tensor, or all of them, at most 1 MiB.

        Meant for small tensors that decide how the others are read. What is read counts as read to plan.
        """
        ...


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The statement that some stored tensors are one quantised matrix of `out_features` rows and `in_features` columns.

    `suffixes` are the tensors that stand for the matrix (a bias is not one of them), `bits` what one weight takes in the packed
    tensor. `group_size` columns in a row share a scale; 0 says that the columns of a group do not lie together. `params` is
    what `Quantizer.matrix` needs to decode them; matrices that are stacked in one parameter must agree in it. `dtype` is the
    element type that decoded weights have, as in `dtypes`. `score` decides between quantizers, as in `Match`. `general` is the
    same matrix claimed with fewer assumptions: it holds where one parameter is made of matrices whose claims differ and whose
    general claims, or claims where there is none, do not.
    """

    score: float
    evidence: str
    suffixes: tuple[str, ...]
    out_features: int
    in_features: int
    bits: int
    group_size: int
    dtype: str
    params: Params = {}
    findings: tuple[Finding, ...] = ()
    general: Claim | None = None


class QuantOutline(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration alone says about quantisation. `group_size` is 0 when a group is a whole column of the matrix."""

    quantizer: str
    bits: int
    group_size: int


class PackedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """One quantised matrix, or a stack of them, as one rank holds it; part of a rank's plan.

    `path` is the module, or the parameter, that it takes the place of. `out` and `inner` are the intervals of rows and columns
    that the rank owns, `rows` and `columns` their number with padding, `layouts` how its tensors relate to them: their axes are
    called `out` and `in` whatever the model calls them. `count` is the number of matrices in the stack, or 0 for a single one.
    `segments` has the borders of matrices that were quantised on their own and lie one below the other, where they have tensors
    that do not run along `out`: those have one entry for each segment.
    """

    path: str
    quantizer: str
    kernel: str
    params: Params
    bits: int
    group_size: int
    dtype: str
    out: tuple[Interval, ...]
    inner: tuple[Interval, ...]
    rows: int
    columns: int
    layouts: tuple[TensorLayout, ...]
    count: int = 0
    segments: tuple[int, ...] = ()


class Affine(NamedTuple):
    """A matrix whose weights are `(code - zero) * scale`, for kernels that compute with the codes themselves.

    `codes(start, stop)` returns uint8 [stop - start, in], the codes of these rows; `scales` is float [groups, out] and `zeros`
    [groups, out], the same type. Group `g` is columns `g * group_size` to `(g + 1) * group_size`.

    `words` is an offer to kernels that repack 4-bit codes: int32 [in / 8, out], in which a word holds eight neighbours of a
    row, from the lowest bits up. None where codes lie in another way or some of them are padding.
    """

    bits: int
    group_size: int
    codes: Callable[[int, int], torch.Tensor]
    scales: torch.Tensor
    zeros: torch.Tensor
    words: torch.Tensor | None = None


class Matrix(Protocol):
    """A rank's part of one quantised matrix over views of the arena, in the worker. It copies nothing until asked."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, padding included."""
        ...

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` as floats [stop - start, in], equal to what the format's producer computes."""
        ...

    def affine(self) -> Affine | None:
        """Return codes, scales and zeros, or None where weights are not of that form or groups do not lie together."""
        ...


class Quantizer(Protocol):
    """Understands one way of storing matrices with few bits. Returned by the `loadmaster_quantizers` hook."""

    @property
    def name(self) -> str:
        """Unique name, for example `gptq`."""
        ...

    def settings(self, config: Mapping[str, Any], read: FileReader) -> Mapping[str, Any] | None:
        """Return what the model's configuration, or a small file beside the weights, says about this method, or None.

        Must not import torch. Raises PlanError for settings that make no sense or name a variant that cannot be read.
        """
        ...

    def outline(self, settings: Mapping[str, Any]) -> QuantOutline | None:
        """Return what settings say about the sizes that a split must respect, or None when they do not say."""
        ...

    def claim(self, stored: StoredMatrix, settings: Mapping[str, Any] | None) -> Claim | None:
        """Say whether stored tensors are a matrix of this method. The tensors decide; settings may be None, or wrong.

        Must not import torch. Raises IntegrityError naming the tensor when they are this method's but incomplete or damaged.
        """
        ...

    def layout(self, claim: Claim) -> tuple[TensorLayout, ...]:
        """Return the claimed tensors' layouts over the axes `out`, `in` and, for what is never cut, any other name."""
        ...

    def matrix(self, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
        """Return a rank's part of one matrix. `tensors` are views of its own part of every claimed tensor, by suffix."""
        ...


class MatrixFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a kernel can multiply with a rank's part of a matrix.

    `aligned` says that no scale group is shared with another rank and none is short; `stacked` that it is one of several in a
    stack. `dtype` is the type of the activations, `device` the kind of device.
    """

    quantizer: str
    bits: int
    group_size: int
    rows: int
    columns: int
    aligned: bool
    stacked: bool
    dtype: str
    device: str


class Suitability(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's judgement of a matrix: the suitable kernel with the highest score is used; `reason` says why, or why not."""

    score: float
    reason: str

    @property
    def suits(self) -> bool:
        """Whether the kernel can be used at all."""
        return self.score > 0


class MatrixKernel(Protocol):
    """Multiplies with quantised matrices. Returned by the `loadmaster_kernels` hook."""

    @property
    def name(self) -> str:
        """Unique name, for example `dequant`."""
        ...

    def judge(self, facts: MatrixFacts) -> Suitability:
        """Say whether and how well this kernel suits. Must not import torch: it runs in the planner."""
        ...

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> tuple[TensorLayout, ...]:
        """Return the tensors that this kernel wants to have in memory, from those that the file holds.

        It may mark some as `staged` (there until `prepare` has run) or `scratched` (rewritten in place by `prepare`), and add
        `computed` ones, which `prepare` fills. It may not leave any out.
        """
        ...

    def prepare(
        self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Fill the computed tensors and return the product: float [..., in] to float [..., out], without bias.

        Runs once per matrix in the worker, when its tensors are filled; for several matrices at once in threads of their own,
        in each of which torch uses one. What it allocates must be small: some tiles, and at most the bytes of the tensors that
        it marked, which is what the plan counts as scratch. `staged` tensors must not be used by the result.
        """
        ...
