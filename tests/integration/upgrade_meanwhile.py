"""Upgrades an installed plugin between making the host and starting a worker. Run as `python upgrade_meanwhile.py METADATA`.

Prints, as JSON, the error that the worker's start raised and the events that came before it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loadmaster.host import PluginHost
from loadmaster_engine.run.messages import WORKER
from loadmaster_hookspecs import PluginError
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import WorkerSpec


def main(metadata: Path) -> None:
    events: list[Event] = []
    host = PluginHost()
    executor = host.executor("multiprocess").create(preload=(), on_event=events.append)
    spec = WorkerSpec(rank=0, world_size=1, service=WORKER, host=host.record())
    metadata.write_text(metadata.read_text().replace("Version: 0.1.0", "Version: 0.2.0"))
    try:
        executor.start([spec], timeout=60)
    except PluginError as error:
        started = [str(event) for event in events if getattr(event, "rank", -1) >= 0 and type(event).__name__ == "StageStarted"]
        print(json.dumps({"error": error.to_dict(), "stages": started}))
    finally:
        executor.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
