from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys
import loadmaster.host
before = set(sys.modules)
print(sorted({"torch", "transformers", "click", "rich", "importlib.metadata", "loadmaster_plugins"} & before))
loadmaster.host.PluginHost(loadmaster.host.PluginSelection(allowed=(), blocked=("loadmaster",)))
print(sorted({"torch", "transformers", "click", "rich", "loadmaster_plugins"} & set(sys.modules)))
"""


def test_importing_and_building_a_host_brings_in_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")
