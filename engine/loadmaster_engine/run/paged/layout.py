"""A step's rows as tensors: packed tokens, the slots they go to, and, per window, which keys every sequence reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadmaster_engine.run.adapters.choice import segments
from loadmaster_engine.serve.messages import Row

if TYPE_CHECKING:
    import torch


class Decodes(NamedTuple):
    """Sequences with one new token each and tables of similar length, attended together.

    `rows` (int64) are their tokens in the packed batch; `blocks` [sequences * blocks each] what to gather; the first `keys`
    gathered positions count. `mask` [sequences, 1, 1, keys] is added to scores, None where all keys are seen. `begin` is the
    slot of the first key where a single sequence's blocks follow one another, so that nothing need be gathered.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    keys: int
    mask: torch.Tensor | None
    begin: int | None


class Chunk(NamedTuple):
    """Several new tokens of one sequence: tokens `begin` to `end` of the packed batch.

    `blocks` None means that the new tokens see each other only, and `mask` None that they do so causally. Otherwise the
    first `keys` gathered positions count, under `mask` [tokens, keys].
    """

    begin: int
    end: int
    blocks: torch.Tensor | None
    keys: int
    mask: torch.Tensor | None


class Reads(NamedTuple):
    """What the layers of one window read."""

    decodes: tuple[Decodes, ...]
    chunks: tuple[Chunk, ...]


def begun_blocks(rows: Sequence[Row], block_size: int) -> list[int]:
    """Return the blocks whose first token is among the new ones: nothing of their contents is the sequence's own yet."""
    return [
        row.table[number]
        for row in rows
        for number in range(-(-row.start // block_size), -(-(row.start + len(row.tokens)) // block_size))
    ]


class PackedStep:
    """The rows of one step, by adapter, and of each adapter those with one new token first.

    Tensors are made once and used by all layers. `token_segments` and `row_segments` say which tokens have which adapter, and
    which of those in `last`.
    """

    def __init__(self, rows: Sequence[Row], block_size: int, dtype: torch.dtype, device: str) -> None:
        import torch

        self.order = sorted(range(len(rows)), key=lambda index: (rows[index].adapter, len(rows[index].tokens) > 1))
        self._rows = [rows[index] for index in self.order]
        self._size = block_size
        self._dtype = dtype
        self._device = device
        self._reads: dict[int, Reads] = {}
        self._begins = [0]
        slots: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        for row in self._rows:
            own = range(row.start, row.start + len(row.tokens))
            slots += [row.table[position // block_size] * block_size + position % block_size for position in own]
            positions += own
            tokens += row.tokens
            self._begins.append(len(tokens))
        self.tokens = torch.tensor([tokens], device=device)
        self.positions = torch.tensor([positions], device=device)
        self.slots = torch.tensor(slots, device=device)
        # One row at least: collectives have nothing to say about empty tensors.
        self.drawing = [index for index, row in enumerate(self._rows) if row.sampling is not None]
        ends = self.drawing or [len(self._rows) - 1]
        self.token_segments = segments((row.adapter, len(row.tokens)) for row in self._rows)
        self.row_segments = segments((self._rows[index].adapter, 1) for index in ends)
        self.last = torch.tensor([self._begins[index + 1] - 1 for index in ends], device=device)

    def reads(self, window: int) -> Reads:
        """Return what a layer with this window reads."""
        if window not in self._reads:
            self._reads[window] = self._plan(window)
        return self._reads[window]

    def _plan(self, window: int) -> Reads:
        groups: dict[int, list[int]] = {}
        chunks = []
        for index, row in enumerate(self._rows):
            if len(row.tokens) == 1:
                first, last = self._span(row, window)
                groups.setdefault((last - first).bit_length(), []).append(index)
            else:
                chunks.append(self._chunk(index, row, window))
        return Reads(tuple(self._decodes(group, window) for group in groups.values()), tuple(chunks))

    def _span(self, row: Row, window: int) -> tuple[int, int]:
        """Return the first and one past the last block that the row's new tokens see."""
        first = max(0, row.start - window + 1) // self._size if window else 0
        return first, -(-(row.start + len(row.tokens)) // self._size)

    def _decodes(self, group: Sequence[int], window: int) -> Decodes:
        import torch

        rows = [self._rows[index] for index in group]
        spans = [self._span(row, window) for row in rows]
        width = max(last - first for first, last in spans)
        # Shorter tables repeat their own first block: what is masked must be of the sequence itself.
        tables = [row.table[a:b] + row.table[a : a + 1] * (width - b + a) for row, (a, b) in zip(rows, spans, strict=True)]
        # Numbers of the gathered keys that are seen: from `low`, up to and including the new token.
        low = [
            max(0, row.start - window + 1) - a * self._size if window else 0 for row, (a, _) in zip(rows, spans, strict=True)
        ]
        high = [row.start + 1 - a * self._size for row, (a, _) in zip(rows, spans, strict=True)]
        keys = max(high)
        mask = None
        if max(low) or min(high) < keys:
            place = torch.arange(keys, device=self._device)
            lows, highs = (torch.tensor(edge, device=self._device).unsqueeze(1) for edge in (low, high))
            mask = self._added((place >= lows) & (place < highs)).view(len(rows), 1, 1, keys)
        blocks = [block for table in tables for block in table]
        in_order = len(rows) == 1 and blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        return Decodes(
            torch.tensor([self._begins[index] for index in group], device=self._device),
            torch.tensor(blocks, device=self._device),
            keys,
            mask,
            blocks[0] * self._size if in_order else None,
        )

    def _chunk(self, index: int, row: Row, window: int) -> Chunk:
        import torch

        begin, end = self._begins[index], self._begins[index + 1]
        count = end - begin
        if row.start == 0 and (not window or count <= window):
            return Chunk(begin, end, None, count, None)
        first, last = self._span(row, window)
        keys = row.start + count - first * self._size
        place = torch.arange(keys, device=self._device) + first * self._size
        own = torch.arange(row.start, row.start + count, device=self._device).unsqueeze(1)
        seen = place <= own
        if window:
            seen &= place > own - window
        return Chunk(begin, end, torch.tensor(row.table[first:last], device=self._device), keys, self._added(seen))

    def _added(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a mask of true and false as numbers that are added to scores."""
        import torch

        return torch.zeros(seen.shape, dtype=self._dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
