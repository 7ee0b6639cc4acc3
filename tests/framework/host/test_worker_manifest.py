from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.host import PluginHost, PluginSelection, rebuild
from loadmaster_engine.plugin_host import PluginHost as KernelHost
from loadmaster_engine.plugin_host import rebuild_host
from loadmaster_hookspecs import API_VERSION, PluginError
from loadmaster_hookspecs.executors import HostRecord, ManifestEntry

ALONE = PluginSelection(blocked=("loadmaster",))

WORKER = """
import sys
import msgspec
from loadmaster_engine.plugin_host import rebuild_host
from loadmaster_hookspecs import PluginError
from loadmaster_hookspecs.executors import HostRecord

record = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=HostRecord)
try:
    host = rebuild_host(record)
except PluginError as error:
    sys.exit(f"{error.code} {error.report.why}")
print(sorted(name for name in ("toy", "extra") if host.format(name).name == name))
print("torch" in sys.modules)
"""


def in_worker(record: HostRecord, site: FakeSite, **variables: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(site.folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=msgspec.msgpack.encode(record), env=environment, capture_output=True, timeout=60
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def record(site: FakeSite) -> HostRecord:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format("toy")})
    return PluginHost(ALONE).record()


def refusal(record: HostRecord) -> str:
    with pytest.raises(PluginError) as caught:
        rebuild(record)
    assert caught.value.code == "LM-PLUGIN-MANIFEST"
    assert caught.value.exit_code == 4
    return caught.value.report.why


def test_the_record_is_data_about_active_plugins(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format("toy")})
    site.install("broken-plugin", "1.0", {"broken": "not_there"})
    site.install("other-plugin", "1.0", {"other": "not_there_either"})
    selection = PluginSelection(allowed=("acme", "broken"), blocked=("loadmaster",))
    record = PluginHost(selection).record()
    assert record == HostRecord(
        factory="loadmaster.host:rebuild",
        api_version=API_VERSION,
        manifest=(ManifestEntry("acme", "acme-formats", "1.0", "acme_toy"),),
        extra=(),
        blocked=("loadmaster",),
        allowed=("acme", "broken"),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=HostRecord) == record


def test_an_equal_process_rebuilds_the_host(record: HostRecord) -> None:
    host: KernelHost = rebuild(record)
    assert host.format("toy").name == "toy"
    assert host.record() == record


def test_a_demanded_plugin_is_let_through_in_the_worker(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format("toy")})
    selection = ALONE.choose(["acme"], no_plugins=True)
    assert rebuild(PluginHost(selection).record()).format("toy").name == "toy"


def test_a_worker_process_rebuilds_the_host_with_passed_plugins(site: FakeSite) -> None:
    modules = {"acme_toy": toy_format("toy"), "app_extra": toy_format("extra")}
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, modules)
    record = PluginHost(ALONE, ["app_extra"]).record()
    # The worker's own environment has no say: what was recorded counts.
    code, output, errors = in_worker(record, site, LOADMASTER_PLUGINS="", LOADMASTER_DISABLE_PLUGINS="acme")
    assert (code, output, errors) == (0, "['extra', 'toy']\nFalse\n", "")


def test_a_worker_process_refuses_another_version(record: HostRecord, site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}).rename(site.folder / "old")
    site.install("acme-formats", "1.1", {"acme": "acme_toy"})
    code, output, errors = in_worker(record, site)
    assert (code, output) == (1, "")
    assert errors.strip() == "LM-PLUGIN-MANIFEST acme: version 1.0 in the parent, 1.1 here"


def test_a_plugin_that_fails_here_only_is_a_difference(record: HostRecord, site: FakeSite) -> None:
    site.forget()
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": "import a_module_that_is_not_there"})
    why = refusal(record)
    assert why.startswith("acme: acme-formats 1.0 in the parent, not active here (failed: ModuleNotFoundError")


def test_every_difference_is_listed_with_both_sides(record: HostRecord, site: FakeSite) -> None:
    site.install("zeta-formats", "3.0", {"zeta": "zeta_toy"}, {"zeta_toy": toy_format("zeta")})
    planned = (
        ManifestEntry("acme", "acme-classic", "0.9", "acme_toy:plugin"),
        ManifestEntry("gone", "gone-formats", "2.0", "gone_toy"),
    )
    why = refusal(msgspec.structs.replace(record, api_version=7, manifest=planned, extra=("not_there:plugin",)))
    assert why.split("; ") == [
        f"contract version 7 in the parent, {API_VERSION} here",
        "acme: distribution acme-classic in the parent, acme-formats here",
        "acme: version 0.9 in the parent, 1.0 here",
        "acme: value acme_toy:plugin in the parent, acme_toy here",
        "gone: gone-formats 2.0 in the parent, not active here",
        "zeta: not active in the parent, zeta-formats 3.0 here",
        "not_there:plugin: passed in the parent, not importable here (ModuleNotFoundError: No module named 'not_there')",
    ]


def test_the_kernel_finds_the_factory(record: HostRecord) -> None:
    assert rebuild_host(record).format("toy").name == "toy"
