"""Workers forked from a server that has torch: threads, collectives, and no use of /dev/shm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.executors.process_watch import marked
from engine.executors.toy_services import encode, specs
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.errors import WorkerError


def test_two_ranks_add_up_without_shared_memory_and_a_death_is_not_hidden_by_its_victim(mark: str, tmp_path: Path) -> None:
    executor = MultiprocessFactory().create(preload=["torch", "torch.distributed"], on_event=lambda event: None)
    workers = [msgspec.structs.replace(spec, threads=1) for spec in specs(2, "engine.executors.gloo_service:adder")]
    executor.start(workers, timeout=60)
    executor.call("join", encode(str(tmp_path / "rendezvous")), timeout=30)
    for result in executor.call("add", b"", timeout=30):
        assert msgspec.msgpack.decode(result.body) == [1, []]
        assert isinstance(result.bulk, memoryview)
        assert result.bulk.cast("f")[:4].tolist() == [0.0, 3.0, 6.0, 9.0]
        assert result.bulk.nbytes == 4 << 18
    # Rank 0 fails in the collective because rank 1 is gone; the caller must hear of rank 1.
    with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL"):
        executor.call("depart", b"", timeout=30)
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    executor.stop()


def test_workers_and_collectives_work_without_a_usable_dev_shm(mark: str, tmp_path: Path) -> None:
    shell = 'mount -t tmpfs -o ro,size=4k none /dev/shm && ! touch /dev/shm/probe 2>/dev/null && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True, timeout=10).returncode:
        pytest.skip("this machine gives no mount namespace")
    host = Path(__file__).with_name("gloo_host.py")
    done = subprocess.run(
        [*namespace, sys.executable, str(host), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "[0.0, 3.0, 6.0, 9.0]\n", done.stderr
