"""The host's view of one worker."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.last_seen import LastSeen
from loadmaster_engine.executors.multiprocess.channel import Channel, Envelope
from loadmaster_engine.executors.multiprocess.messages import DUMP_SIGNAL, FromWorker

_DUMP_LIMIT = 64 << 10
_DUMP_QUIET_SECONDS = 0.05
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for storage or the kernel"}


class WorkerHandle:
    """A worker's channel, process and last known state. Owns the channel, a pidfd and the memfd for stack dumps.

    `pid` is 0 until the fork server has forked it, and `refusal` says why the system refused that. `code` is None until the
    worker has exited, then its exit code or minus its signal, at time `ended` of the monotonic clock. These are noted by
    whichever thread takes in the notice; everything else belongs to the thread of the worker's group.
    """

    def __init__(self, rank: int, channel: Channel[FromWorker]) -> None:
        self.rank = rank
        self.channel = channel
        self.dump = os.memfd_create("loadmaster-dump", os.MFD_CLOEXEC)
        self.pid = 0
        self.refusal = ""
        self.code: int | None = None
        self.ended = 0.0
        self.seen = LastSeen()
        self.open = True
        self._closed = False
        self._pidfd = -1
        self._dump_read = 0

    @property
    def lost(self) -> bool:
        """Whether the worker can no longer answer, and all that it had to say has been read."""
        return not self.open

    @property
    def settled(self) -> bool:
        """Whether the worker's process is known to be gone, or never to come."""
        return self.code is not None or bool(self.refusal)

    @property
    def label(self) -> str:
        """How to name the worker to people."""
        return f"rank {self.rank} (pid {self.pid})" if self.pid else f"rank {self.rank}"

    def born(self, pid: int, pidfd: int) -> None:
        """Note that the worker's process exists, and own its pidfd. It is killed when it was given up before."""
        self._pidfd = pidfd
        self.pid = pid
        if self._closed:
            self.close()

    def exited(self, code: int) -> None:
        """Note that the worker's process has ended."""
        self.ended = time.monotonic()
        self.code = code

    def read(self) -> list[Envelope[FromWorker]]:
        """Return the messages that have arrived, all of them when the worker has exited. Raises ProtocolError."""
        exited = self.code is not None
        got = self.channel.fill(wait=False)
        while got and exited:
            got = self.channel.fill(wait=False)
        if got is None or exited:
            self.open = False
        envelopes = []
        while (envelope := self.channel.take()) is not None:
            envelopes.append(envelope)
        return envelopes

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker if its process exists; never to another process that got its number."""
        if self._pidfd >= 0 and self.code is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended; its exit code is on the way
                signal.pidfd_send_signal(self._pidfd, number)

    def ask_stacks(self) -> None:
        """Have the worker write the Python stacks of its threads, which works also while native code holds the GIL."""
        self._dump_read = os.fstat(self.dump).st_size
        self.send_signal(DUMP_SIGNAL)

    def stacks(self, deadline: Deadline) -> str:
        """Return what the worker has written since `ask_stacks`, or why it cannot write."""
        size = 0
        while not deadline.expired and self.pid:
            before, size = size, os.fstat(self.dump).st_size - self._dump_read
            if size and size == before:
                break
            time.sleep(min(_DUMP_QUIET_SECONDS, deadline.remaining))
        return self.crash() if size else self._state()

    def crash(self) -> str:
        """Return what the worker's crash handler has written, empty when it wrote nothing."""
        return os.pread(self.dump, _DUMP_LIMIT, self._dump_read).decode("utf-8", "replace")

    def _state(self) -> str:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""
        return f"  no Python stack: the process is {_STATES[state]}" if state in _STATES else ""

    def close(self) -> None:
        """Kill the worker if it runs, without waiting for its end, and close all descriptors. Safe to call twice."""
        self._closed = True
        self.open = False
        self.send_signal(signal.SIGKILL)
        self.channel.close()
        for descriptor in (self.dump, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.dump = self._pidfd = -1
