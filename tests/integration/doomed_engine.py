"""A host that loads a model over two worker processes and says which stage every rank enters. Run with the model's folder."""

from __future__ import annotations

import sys
import time

import loadmaster as lm
from loadmaster_hookspecs.events import Event, StageStarted


def say(event: Event) -> None:
    if isinstance(event, StageStarted):
        print(f"{event.stage} {event.rank}", flush=True)


if __name__ == "__main__":
    plugins = ["integration.awkward_format", "bigram_family"]
    with lm.Engine(sys.argv[1], tensor_parallel=2, executor="multiprocess", on_event=say, plugins=plugins):
        print("serve -1", flush=True)
        time.sleep(60)
