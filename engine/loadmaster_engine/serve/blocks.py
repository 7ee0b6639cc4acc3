"""The pool of blocks: who holds which, which are free, and which hold content that may be used again."""

from __future__ import annotations

from collections import OrderedDict, deque


class BlockPool:
    """Blocks 0 to `total - 1`. A block is held by any number of sequences; one that nobody holds is free.

    Free blocks with a named content are kept until they are needed, the one that was used longest ago first. The pool knows
    no contents, only names: `publish` says that a held block is filled.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders = [0] * total
        self._blank = deque(range(total))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._by_name: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that are held."""
        return self.total - self.available

    def holders(self, block: int) -> int:
        """Return how many hold a block."""
        return self._holders[block]

    def take(self, count: int) -> list[int]:
        """Return `count` blocks of unknown content, each held once. At most `available`."""
        return [self._take() for _ in range(count)]

    def find(self, name: bytes) -> int | None:
        """Return a block with this content, without holding it, or None."""
        return self._by_name.get(name)

    def hold(self, block: int) -> None:
        """Hold a block once more."""
        if not self._holders[block]:
            del self._idle[block]
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """Give one hold back. The content of a published block can still be found."""
        self._holders[block] -= 1
        if self._holders[block]:
            return
        if block in self._names:
            self._idle[block] = None
        else:
            # In front: sequences release their last block first, so the next one finds them in order, and in memory.
            self._blank.appendleft(block)

    def publish(self, block: int, name: bytes) -> None:
        """Note that a held block is full and has this content. The first block of a content is the one that is found."""
        if block not in self._names and name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def _take(self) -> int:
        if self._blank:
            block = self._blank.popleft()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._by_name[self._names.pop(block)]
        self._holders[block] = 1
        return block
