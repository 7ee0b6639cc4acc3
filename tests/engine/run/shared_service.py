"""A service whose ranks meet as those of a model do and use its collectives."""

from __future__ import annotations

import os
import time

import torch

from loadmaster_engine.run.groups import Group, Solo
from loadmaster_engine.run.joining import MeetingPoint
from loadmaster_engine.run.messages import Meet, decode, encode
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec


def values(rank: int, number: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * number + rank))


class Collective:
    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.point = MeetingPoint(spec.rank, spec.world_size, "cpu")
        self.group: Group = Solo()

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        if op == "open":
            return Result(body=encode(Meet(method=self.point.open("auto", os.environ))))
        if op == "join":
            self.group = self.point.join(decode(body, Meet).method, os.environ)
            return Result(body=type(self.group).__name__.encode())
        if op == "depart" and self.spec.rank == 1:
            os.kill(os.getpid(), 9)
        return Result(bulk=self._numbers(op).numpy().tobytes())

    def _numbers(self, op: str) -> torch.Tensor:
        rank = self.spec.rank
        if op == "large":
            return self.group.sum(values(rank, 0, (9 << 20) // 4 + 3))
        if op == "concat":
            parts = [3, 0, 2][: self.spec.world_size]
            return self.group.concat(values(rank, 1, 4 * parts[rank]).view(2, 2, parts[rank]), parts)
        if op == "wide":
            return self.group.concat(values(rank, 2, 3 << 20).view(2, -1), [3 << 19] * self.spec.world_size)
        results = []
        for number in range(200):
            if (number + rank) % 50 == 0:
                time.sleep(0.003)  # ranks that are late by turns
            results.append(self.group.sum(values(rank, number, 7)))
        return torch.cat(results)

    def abort(self) -> None:
        self.group.close()

    def close(self) -> None:
        self.group.close()


def collective(spec: WorkerSpec) -> Collective:
    return Collective(spec)
