"""Sums and joins through shared memory: right, the same bits everywhere, and no wait for a rank that is gone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.executors.toy_services import specs
from engine.run.shared_service import values
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_engine.run import shared_group
from loadmaster_hookspecs.errors import WorkerError
from loadmaster_hookspecs.executors import Executor

WORLD = 3


@pytest.fixture
def ranks(mark: str) -> Iterator[Executor]:
    executor = MultiprocessFactory().create(preload=["torch", "torch.distributed"], on_event=lambda event: None)
    workers = [msgspec.structs.replace(spec, threads=1) for spec in specs(WORLD, "engine.run.shared_service:collective")]
    executor.start(workers, timeout=60)
    opened = executor.call("open", b"", timeout=30)
    joined = executor.call("join", opened[0].body, timeout=60)
    assert {result.body for result in joined} == {b"SharedMemory"}
    yield executor
    executor.stop()


def answers(ranks: Executor, op: str) -> list[npt.NDArray[np.float32]]:
    results = [result.bulk for result in ranks.call(op, b"", timeout=60)]
    return [np.frombuffer(bulk, dtype=np.float32) for bulk in results if bulk is not None]


def summed(number: int, size: int) -> torch.Tensor:
    first, second, third = (values(rank, number, size) for rank in range(WORLD))
    return first + second + third


@pytest.mark.skipif("x86" not in __import__("platform").machine(), reason="shared memory is used where stores stay in order")
def test_collectives_and_a_death(ranks: Executor) -> None:
    for many in answers(ranks, "sums"):
        assert np.array_equal(many, torch.cat([summed(number, 7) for number in range(200)]).numpy())
    for large in answers(ranks, "large"):
        assert large.nbytes > 2 * shared_group.SLOT_BYTES
        assert np.array_equal(large, summed(0, large.size).numpy())
    expected = torch.cat([values(rank, 1, 4 * size).view(2, 2, size) for rank, size in enumerate((3, 0, 2))], -1)
    for joined in answers(ranks, "concat"):
        assert np.array_equal(joined, expected.flatten().numpy())
    expected = torch.cat([values(rank, 2, 3 << 20).view(2, -1) for rank in range(WORLD)], -1)
    assert expected.nbytes / WORLD > shared_group.SLOT_BYTES
    for joined in answers(ranks, "wide"):
        assert np.array_equal(joined, expected.flatten().numpy())
    # The others wait for rank 1 in shared memory, where nothing tells them that it is gone; the caller must hear of it.
    with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL"):
        ranks.call("depart", b"", timeout=30)
