"""Ranks that build together know at the same place when one of them fails or does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from loadmaster_engine.run.agreement import ADAPTER, UPDATE, Agreement, telling
from loadmaster_engine.run.groups import Meeting, Solo, Threads
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError

Build = Callable[[Agreement], object]


def outcomes(builds: Sequence[Build]) -> list[str]:
    """Run each build on a rank of its own and return what came of it."""
    meeting = Meeting(len(builds))
    found = [""] * len(builds)

    def run(rank: int) -> None:
        agreement = Agreement(Threads(rank, meeting), "cpu", ADAPTER)
        try:
            found[rank] = str(builds[rank](agreement))
            agreement.done()
        except LoadmasterError as error:
            found[rank] = error.code
        except ValueError:
            found[rank] = "own"
        agreement.failed()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(builds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return found


def sums(times: int) -> Build:
    def build(agreement: Agreement) -> object:
        return [agreement.sum(torch.ones(1)).item() for _ in range(times)]

    return build


def joins(agreement: Agreement) -> object:
    return agreement.concat(torch.ones(1, 1), [1, 1]).tolist()


def joining_whatever_happens(agreement: Agreement) -> object:
    """Catch the error of a sum and go on: the others do not."""
    with contextlib.suppress(LoadmasterError):
        agreement.sum(torch.ones(1))
    return joins(agreement)


def failing_after(times: int) -> Build:
    def build(agreement: Agreement) -> object:
        sums(times)(agreement)
        raise ValueError

    return build


@pytest.mark.parametrize(
    ("builds", "expected"),
    [
        ([sums(2), sums(2), sums(2)], ["[3.0, 3.0]"] * 3),
        ([sums(0), sums(0)], ["[]"] * 2),
        ([sums(3), failing_after(0), sums(3)], ["LM-ADAPTER-RANKS", "own", "LM-ADAPTER-RANKS"]),
        ([sums(3), failing_after(3)], ["LM-ADAPTER-RANKS", "own"]),
        ([failing_after(1), failing_after(1)], ["own", "own"]),
        ([failing_after(1), failing_after(2)], ["own", "LM-ADAPTER-RANKS"]),
        ([sums(1), sums(2)], ["LM-ADAPTER-RANKS"] * 2),
        ([joins, joins], ["[[1.0, 1.0]]"] * 2),
        ([joins, sums(1)], ["LM-ADAPTER-RANKS"] * 2),
        ([joins, failing_after(0)], ["LM-ADAPTER-RANKS", "own"]),
        ([joining_whatever_happens, failing_after(0)], ["LM-ADAPTER-RANKS", "own"]),
    ],
)
def test_all_ranks_stop_together(builds: list[Build], expected: list[str]) -> None:
    assert outcomes(builds) == expected


def test_a_group_that_breaks_is_told_apart() -> None:
    meeting = Meeting(2)
    agreement = Agreement(Threads(0, meeting), "cpu", ADAPTER)
    meeting.barrier.abort()
    with pytest.raises(LoadmasterError, match="LM-GROUP-BROKEN"):
        agreement.sum(torch.ones(1))
    assert agreement.broken
    own = WorkerError("LM-OWN", "what this rank met").report
    with pytest.raises(LoadmasterError, match="LM-OWN"):
        agreement.end(own)


def test_a_group_that_breaks_when_others_are_told_is_told_of_with_the_own_error() -> None:
    meeting = Meeting(2)
    meeting.barrier.abort()
    with pytest.raises(LoadmasterError, match="LM-OWN"):
        Agreement(Threads(0, meeting), "cpu", UPDATE).end(WorkerError("LM-OWN", "what this rank met").report)


def test_the_error_that_says_most_is_that_of_the_rank_that_failed() -> None:
    own, following = (WorkerError(code, "").report for code in ("LM-OWN", UPDATE.code))
    assert telling([None, following, None, own]) == (own, 3)
    assert telling([following, following]) == (following, 0)
    assert telling([None, None]) is None


def test_a_rank_alone_asks_nobody() -> None:
    agreement = Agreement(Solo(), "cpu", ADAPTER)
    assert agreement.sum(torch.ones(1)).item() == 1
    agreement.done()
    agreement.failed()
