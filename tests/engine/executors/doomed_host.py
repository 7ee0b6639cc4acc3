"""A host that gets into a state and waits there to be killed. Run as `python doomed_host.py STATE`.

Prints `here` when it is in the state. States: importing, starting, idle, busy, planning, forked, thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from engine.executors.toy_services import SLOW, encode, specs
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.events import Event, Notice


def here() -> None:
    print("here", flush=True)


def on_event(event: Event) -> None:
    if isinstance(event, Notice) and event.rank == 0:
        here()


def main(state: str) -> None:
    preload = ["sleepy_module"] if state == "importing" else []
    executor = MultiprocessFactory().create(preload=preload, on_event=on_event)
    match state:
        case "importing" | "starting":
            threading.Timer(0.5, here).start()
            executor.start(specs(2, SLOW), timeout=60)
        case "idle":
            executor.start(specs(2), timeout=20)
            here()
            time.sleep(60)
        case "busy":
            executor.start(specs(2), timeout=20)
            executor.call("busy", b"", timeout=60)
        case "planning":
            executor.run_once(specs(1)[0], "busy", encode(None), timeout=60)
        case "forked":  # a child of the host that outlives it holds copies of all the host's descriptors
            executor.start(specs(2), timeout=20)
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            executor.call("busy", b"", timeout=60)
        case "thread":  # the thread that started the workers ends, the host stays
            starter = threading.Thread(target=lambda: executor.start(specs(2), timeout=20))
            starter.start()
            starter.join()
            time.sleep(0.3)
            print(len(executor.call("echo", b"", timeout=5)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
