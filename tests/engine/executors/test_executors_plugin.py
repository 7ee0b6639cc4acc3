"""The executors as a plugin, and what they must not bring along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pluggy

import loadmaster_engine.executors as package
from loadmaster_engine.executors import plugin
from loadmaster_hookspecs.markers import PROJECT
from loadmaster_hookspecs.specs import RegistrationSpecs

HOST = """
import sys
from pathlib import Path
from engine.executors.toy_services import specs
from loadmaster_engine.executors.plugin import loadmaster_executors
executor = loadmaster_executors()[1].create(preload=["torch_is_not_here"], on_event=print)
executor.start(specs(2), timeout=20)
executor.call("echo", b"", timeout=5)
heavy = {"torch", "transformers", "numpy", "torch_is_not_here"} & sys.modules.keys()
status = Path("/proc/self/status").read_text().split()
print(sorted(heavy), status[status.index("VmHWM:") + 1])
executor.stop()
"""


def test_the_entry_point_provides_both_factories() -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RegistrationSpecs)
    manager.register(plugin)
    manager.check_pending()
    (factories,) = manager.hook.loadmaster_executors()
    assert [(factory.name, factory.separate_processes) for factory in factories] == [("inline", False), ("multiprocess", True)]


def test_the_host_process_stays_small_and_imports_nothing_heavy(mark: str, tmp_path: Path) -> None:
    (tmp_path / "torch_is_not_here.py").write_text("big = bytearray(b'x') * (200 << 20)")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", HOST],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    heavy, peak = done.stdout.rsplit(maxsplit=1)
    assert heavy == "[]"
    assert int(peak) < 60_000, "KiB"


def test_nothing_here_can_carry_code_in_data() -> None:
    for source in Path(package.__path__[0]).rglob("*.py"):
        text = source.read_text()
        for word in ("pickle", "marshal", "multiprocessing", "shelve", "eval(", "exec("):
            assert word not in text, f"{source.name} has {word}"
