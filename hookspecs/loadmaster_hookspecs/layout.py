"""The algebra of axes: how the dimensions of a stored tensor relate to the logical axes of its module.

A plain linear weight of shape `[out, in]` has two maps with one logical element per index. A packed weight has a map whose
`per` logical elements share `words` stored indices (eight 4-bit values in one word: `per=8, words=1`; 3-bit values: 32 in
three words). A scale group is `per=group_size` and soft: two ranks may share it. A cut through a packed word is possible too,
where whoever unpacks it leaves out what the rank does not own (`AxisMap.kept`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmaster_hookspecs.sharding import Interval


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

    def kept(self, owned: Sequence[Interval]) -> list[tuple[int, int]]:
        """Where a rank finds the elements it owns once its part of the dimension is unpacked: half-open runs, in order.

        Every index of the dimension unpacks to `per / words` elements. Indices at the border of an interval also hold elements
        that the rank does not own: the runs leave them out.
        """
        runs: list[tuple[int, int]] = []
        base = 0
        for start, stop in ((interval.start, interval.stop) for interval in owned):
            first, last = start // self.per, -(-stop // self.per)
            low = base + start - first * self.per
            high = low + stop - start
            base += (last - first) * self.per
            if runs and runs[-1][1] == low:
                low = runs.pop()[0]
            runs.append((low, high))
        return runs

    def indices(self, owned: Sequence[Interval]) -> list[int]:
        """For every element a rank owns, the index in its own part of the dimension that holds it: of scales, the group."""
        found: list[int] = []
        base = 0
        for start, stop in ((interval.start, interval.stop) for interval in owned):
            first, last = start // self.per, -(-stop // self.per)
            found += (base + element // self.per - first for element in range(start, stop))
            base += last - first
        return found


class TensorLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a module: its name below the module (`weight`), and the map of each dimension.

    `dtype` is the element type the parameter must have in memory, or empty for the model's type; `role` the heading under which
    its bytes are shown, or empty for that of its module. What a kernel changes of it is told by three marks: a `computed`
    tensor is in no file, a `scratched` one is rewritten in place and can be no view of a file, a `staged` one is given back
    once the kernel has taken what it needs. A `factor` is multiplied and not added: every rank needs its own even where another
    one contributes what is added to a summed result.
    """

    name: str
    dims: tuple[AxisMap, ...]
    dtype: str = ""
    role: str = ""
    computed: bool = False
    scratched: bool = False
    staged: bool = False
    factor: bool = False
