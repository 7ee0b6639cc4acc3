"""A service whose ranks add up a tensor over torch.distributed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from engine.executors.process_watch import open_files
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec


class Adder:
    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        if op == "join":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            address = f"file://{msgspec.msgpack.decode(body)}"
            dist.init_process_group("gloo", init_method=address, rank=self.spec.rank, world_size=self.spec.world_size)
            return Result()
        if op == "depart" and self.spec.rank == 1:
            os.kill(os.getpid(), 9)
        numbers = torch.arange(1 << 18, dtype=torch.float32) * (self.spec.rank + 1)
        dist.all_reduce(numbers)
        shared = [target for target in open_files(os.getpid()).values() if "/dev/shm" in target]
        shared += [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
        return Result(body=msgspec.msgpack.encode([torch.get_num_threads(), shared]), bulk=numbers.numpy().tobytes())

    def abort(self) -> None:
        pass

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def adder(spec: WorkerSpec) -> Adder:
    return Adder(spec)
