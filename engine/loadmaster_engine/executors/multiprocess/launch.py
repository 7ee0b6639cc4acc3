"""The fork server as a child process of the host: how it is started, and how it ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from loadmaster_engine.executors.multiprocess.channel import readable
from loadmaster_hookspecs.errors import WorkerError

DEATH_SECONDS = 1.0
"""How long the host waits for the exit code of a server that has closed its channel."""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from loadmaster_engine.executors.multiprocess.forkserver import main; main(*map(int, sys.argv[1:4]))"
)


def launch(control: int, liveness: int) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter in a session of its own. It sees this process's module path, stderr and nothing else."""
    # What libraries print there must not reach the host's stdout; without a stderr, descriptor 2 may be anything.
    output = subprocess.DEVNULL if sys.__stderr__ is None else 2
    try:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", _BOOT, str(control), str(liveness), str(os.getpid()), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control, liveness),
            start_new_session=True,
        )
    except OSError as error:
        raise WorkerError("LM-FORKSERVER-LAUNCH", "the system refused to start the fork server", why=str(error)) from error


def exit_code(pid: int) -> int | None:
    """Return how a child ended, without reaping it, so that its process group stays its own; None if it still runs."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            readable(pidfd, DEATH_SECONDS)
        finally:
            os.close(pidfd)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if end is not None:
            return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return None
