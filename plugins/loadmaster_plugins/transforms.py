"""The `cast` transform: one float type from another, with values that no longer fit counted."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.dtypes import TORCH_NAMES, itemsize
from loadmaster_hookspecs.transforms import Transform


class Cast:
    """Converts elements from the stored float type to the parameter's. Arguments: `source` and `dest`, as in `dtypes`.

    Counts `overflow`: finite values that became infinite because the narrower type has no room for them.
    """

    name = "cast"
    version = 1

    def granule(self, args: Mapping[str, str | int]) -> tuple[int, int]:
        """Return the bytes of one element on either side."""
        return itemsize(str(args["source"])), itemsize(str(args["dest"]))

    def apply(self, source: memoryview, dest: memoryview, args: Mapping[str, str | int]) -> Mapping[str, int]:
        """Convert all elements of `source` into `dest`, rounding to nearest as torch does."""
        import torch

        stored = torch.frombuffer(source, dtype=getattr(torch, TORCH_NAMES[str(args["source"])]))
        wanted = torch.frombuffer(dest, dtype=getattr(torch, TORCH_NAMES[str(args["dest"])]))
        wanted.copy_(stored)
        if torch.finfo(wanted.dtype).max >= torch.finfo(stored.dtype).max:
            return {"overflow": 0}
        return {"overflow": int((torch.isinf(wanted) & ~torch.isinf(stored)).sum())}


@hookimpl
def loadmaster_transforms() -> list[Transform]:
    """Return the transforms between plain element types."""
    return [Cast()]
