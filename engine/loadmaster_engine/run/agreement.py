"""Something that all ranks do at once and that may fail, done so that a rank that fails keeps no other one waiting.

What they do may add up and join over the ranks. Before each of these collectives, and at the end, the ranks tell each other
what they are about to do. So all of them know at the same place when one has failed, or does something else, and all stop
there. The group is then as good as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from loadmaster_engine.run.groups import Group
from loadmaster_hookspecs.errors import ErrorReport, WorkerError, from_report

if TYPE_CHECKING:
    import torch

FAILED: Final = 0
SUMMING: Final = 1
JOINING: Final = 2
DONE: Final = 3


class Undertaking(NamedTuple):
    """What is done together: the error of a rank that stops because of another one."""

    code: str
    summary: str


ADAPTER: Final = Undertaking("LM-ADAPTER-RANKS", "the ranks did not build the adapter together")
UPDATE: Final = Undertaking("LM-UPDATE-RANKS", "the ranks did not try the new weights together")

FOLLOWING: Final = frozenset({ADAPTER.code, UPDATE.code})
"""Errors that follow from another rank's, which says more."""


class Agreement:
    """One call in which all ranks do the same. `broken` says that the group itself failed: nothing can go on then.

    That a rank fails inside of a collective, and not between two, is the one thing that cannot be told the others.
    """

    def __init__(self, group: Group, device: str, undertaking: Undertaking) -> None:
        self.broken = False
        self._group = group
        self._device = device
        self._undertaking = undertaking
        self._open = group.world_size > 1
        self._stopped = ""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks. Raises the undertaking's WorkerError on all of them when one does not take part."""
        self._tell(SUMMING)
        return self._sum(tensor)

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the ranks' tensors joined, as a group does. Raises like `sum`."""
        self._tell(JOINING)
        with self._reaching():
            return self._group.concat(tensor, parts)

    def done(self) -> None:
        """Say that this rank has done its part. Raises like `sum`."""
        self._tell(DONE)
        self._open = False

    def failed(self) -> None:
        """Say that this rank gives up, unless all know already. The others raise where they are."""
        if self._open:
            self._open = False
            self._sum(self._vote(FAILED))

    def end(self, error: ErrorReport | None) -> None:
        """Come to the end with what went wrong on this rank: the others know afterwards. Raises it when the group is broken."""
        if error is None:
            return
        if not self.broken:
            with suppress(Exception):  # boundary: as in `_reaching`, and this rank's error says more
                self.failed()
        if self.broken:
            raise from_report(error)

    def _tell(self, doing: int) -> None:
        if self._open:
            votes = self._sum(self._vote(doing)).tolist()
            if votes[FAILED]:
                self._stop("another rank failed")
            elif votes[doing] < self._group.world_size:
                self._stop("all ranks must add up and join alike, and one did something else")
        if self._stopped:  # again and again, for code that catches it: the others do not go on
            where = {"rank": self._group.rank}
            raise WorkerError(self._undertaking.code, self._undertaking.summary, where=where, why=self._stopped)

    def _stop(self, why: str) -> None:
        self._open = False
        self._stopped = why

    def _vote(self, doing: int) -> torch.Tensor:
        import torch

        vote = torch.zeros(4, device=self._device)
        vote[doing] = 1
        return vote

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._reaching():
            return self._group.sum(tensor)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Note when the others cannot be reached."""
        try:
            yield
        except Exception:  # boundary: whatever a communication library raises
            self.broken = True
            raise


def telling(errors: Iterable[ErrorReport | None]) -> tuple[ErrorReport, int] | None:
    """Return the error of the ranks, in rank order, that says most, with its rank: one that follows from no other."""
    found = [(error, rank) for rank, error in enumerate(errors) if error is not None]
    return min(found, key=lambda each: each[0].code in FOLLOWING, default=None)
