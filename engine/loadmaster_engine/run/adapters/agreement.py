"""Building an adapter on all ranks at once, so that a rank that fails keeps no other one waiting.

Kinds may add up over the ranks while they prepare a module. Before each sum, and at the end of each call, the ranks tell each
other what they are about to do. So all of them know at the same place when one has failed, or does something else, and all stop
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.groups import Group
from loadmaster_hookspecs.errors import WorkerError

if TYPE_CHECKING:
    import torch

FAILED: Final = 0
SUMMING: Final = 1
DONE: Final = 2


class Agreement:
    """One call in which all ranks build the same parts. `broken` says that the group itself failed: nothing can go on then."""

    def __init__(self, group: Group, device: str) -> None:
        self.broken = False
        self._group = group
        self._device = device
        self._open = group.world_size > 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks. Raises WorkerError LM-ADAPTER-RANKS on all of them when one does not take part."""
        self._tell(SUMMING)
        return self._sum(tensor)

    def done(self) -> None:
        """Say that this rank has built its parts. Raises like `sum`."""
        self._tell(DONE)
        self._open = False

    def failed(self) -> None:
        """Say that this rank gives up, unless all know already. The others raise where they are."""
        if self._open:
            self._open = False
            self._sum(self._vote(FAILED))

    def _tell(self, doing: int) -> None:
        if not self._open:
            return
        votes = self._sum(self._vote(doing)).tolist()
        if votes[doing] < self._group.world_size:
            self._open = False
            failed = votes[FAILED] > 0
            raise WorkerError(
                "LM-ADAPTER-RANKS",
                "the ranks did not build the adapter together",
                where={"rank": self._group.rank},
                why="another rank could not build it" if failed else "adapter kinds must add up alike on all ranks",
            )

    def _vote(self, doing: int) -> torch.Tensor:
        import torch

        vote = torch.zeros(3, device=self._device)
        vote[doing] = 1
        return vote

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return self._group.sum(tensor)
        except Exception:  # boundary: whatever a communication library raises
            self.broken = True
            raise
