"""The algebra of axes: how the dimensions of a stored tensor relate to the logical axes of its module.

A plain linear weight of shape `[out, in]` has two maps with one logical element per index. A packed weight has a map whose
`per` logical elements share `words` stored indices (eight 4-bit values in one word: `per=8, words=1`; 3-bit values: 32 in
three words). A scale group is `per=group_size` and soft: two ranks may share it.
"""

from __future__ import annotations

import msgspec


class AxisMap(msgspec.Struct, frozen=True, kw_only=True):
    """Maps one stored dimension to a logical axis.

    Logical interval `[a, b)` lies in stored indices `[words * floor(a / per), words * ceil(b / per))`. Where `hard` is set
    `a` and `b` must be multiples of `per` (or the end of the axis), because a cut would go through a packed word; a soft map
    keeps the shared border index on both sides.
    """

    axis: str
    per: int = 1
    words: int = 1
    hard: bool = True

    def extent(self, logical: int) -> int:
        """Stored length of the dimension for an axis of `logical` elements."""
        return self.words * -(-logical // self.per)

    def stored(self, start: int, stop: int) -> tuple[int, int]:
        """Stored half-open interval that holds the logical interval `[start, stop)`."""
        return self.words * (start // self.per), self.words * -(-stop // self.per)


class TensorLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a module: its name below the module (`weight`), and the map of each dimension.

    `dtype` is the element type the parameter must have in memory, or empty for the model's type. `optional` tensors may be
    absent from the checkpoint.
    """

    name: str
    dims: tuple[AxisMap, ...]
    dtype: str = ""
    optional: bool = False
