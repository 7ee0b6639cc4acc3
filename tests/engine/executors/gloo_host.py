"""A host whose two ranks add up a tensor. Run as `python gloo_host.py FOLDER`; prints the first sums."""

from __future__ import annotations

import sys

import msgspec

from engine.executors.toy_services import encode, specs
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory


def main(folder: str) -> None:
    executor = MultiprocessFactory().create(preload=["torch", "torch.distributed"], on_event=lambda event: None)
    workers = [msgspec.structs.replace(spec, threads=1) for spec in specs(2, "engine.executors.gloo_service:adder")]
    executor.start(workers, timeout=60)
    executor.call("join", encode(f"{folder}/rendezvous"), timeout=30)
    first, _ = executor.call("add", b"", timeout=30)
    assert isinstance(first.bulk, memoryview)
    print(first.bulk.cast("f")[:4].tolist())
    executor.stop()


if __name__ == "__main__":
    main(sys.argv[1])
