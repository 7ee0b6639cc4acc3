"""The memory of keys and values: one reservation per rank, cut into a key and a value tensor per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster_engine.load.pages import anonymous
from loadmaster_engine.load.residency import present
from loadmaster_hookspecs.dtypes import TORCH_NAMES, itemsize
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.kv import KvLayout

if TYPE_CHECKING:
    import torch


class KvArena:
    """Owns the memory. `layers` has a key tensor [slots, heads, key size] and a value tensor [slots, heads, value size] each.

    A slot is one token's place; block `b` has the slots from `b * block_size` on. Everything is zero at first, and blocks are
    made zero again when a sequence begins them: what is masked must be finite, whatever another sequence has left there.
    """

    def __init__(self, layout: KvLayout, blocks: int, block_size: int, device: str, rank: int) -> None:
        import torch

        self.layout = layout
        self.block_size = block_size
        self.blocks = blocks
        slots = blocks * block_size
        self.nbytes = slots * layout.elements * itemsize(layout.dtype)
        dtype = getattr(torch, TORCH_NAMES[layout.dtype])
        self._memory = _memory(self.nbytes, device, rank)
        flat = self._memory.view(dtype)
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        offset = 0
        for layer in layout.layers:
            pair = []
            for width in (layer.key_dim, layer.value_dim):
                count = slots * layer.heads * width
                pair.append(flat[offset : offset + count].view(slots, layer.heads, width))
                offset += count
            self.layers.append((pair[0], pair[1]))

    @property
    def held(self) -> int:
        """Bytes whose pages have been written, and so taken from the machine; on a device all of them are from the start."""
        return present(self._memory.numpy().data) if self._memory.device.type == "cpu" else self.nbytes

    def clear(self, blocks: Sequence[int]) -> None:
        """Make the keys and values of whole blocks zero in all layers."""
        import torch

        if not blocks:
            return
        chosen = torch.tensor(blocks, device=self._memory.device)
        for pair in self.layers:
            for tensor in pair:
                tensor.view(self.blocks, -1).index_fill_(0, chosen, 0)

    def copy(self, source: int, target: int) -> None:
        """Copy one block's keys and values of all layers."""
        size = self.block_size
        for pair in self.layers:
            for tensor in pair:
                tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]


def _memory(nbytes: int, device: str, rank: int) -> torch.Tensor:
    import torch

    try:
        if device == "cpu":
            return torch.frombuffer(anonymous(nbytes), dtype=torch.uint8, count=nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    except (OSError, MemoryError, RuntimeError) as error:
        raise ResourceError(
            "LM-MEMORY-ARENA",
            f"cannot reserve {nbytes / 1e9:.2f} GB for keys and values",
            where={"rank": rank, "device": device},
            why=str(error),
            hints=["set a smaller kv_bytes or max_model_len"],
        ) from error
