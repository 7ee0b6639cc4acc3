"""Runs one contestant once: page cache and ballast prepared, a fresh process, its one line read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bench.ballast import Ballast, ballast_size, free_memory
from bench.contestants import Contestant
from bench.environments import ROOT
from bench.page_cache import drop, resident, warm
from bench.records import BallastUse, Condition, Line, Measurement, Release, sums_digest
from bench.runs import stopwatch

RUN_TIMEOUT_S: Final = 900.0
MARGIN: Final = 1 << 30
"""Bytes of ballast beside what the weights take."""

PROCESS_BYTES: Final = 3 << 30
"""Bytes that processes need beside the weights, when it is asked whether a run fits."""

QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
}


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, its tensor files, and the files made of it.

    `plain` is the unquantised one of the same shapes, `adapters` a folder with adapters of it.
    """

    folder: Path
    ranges: Path
    tensors: Path
    nbytes: int
    plain: Path | None = None
    adapters: Path | None = None

    def files(self, contestant: Contestant) -> list[Path]:
        """Return the files that a contestant reads."""
        if "{tensors}" in contestant.arguments:
            return [self.tensors]
        return stopwatch.model_files(self.plain if self.plain and "{plain}" in contestant.arguments else self.folder)


class Runner:
    """Runs contestants on one model, each with the interpreter of its peer's environment."""

    def __init__(self, model: Model, pythons: Mapping[str, Path], release: Release, timeout: float = RUN_TIMEOUT_S) -> None:
        self._model = model
        self._pythons = pythons
        self._release = release
        self._timeout = timeout

    def run(self, contestant: Contestant, condition: Condition, number: int) -> Measurement:
        """Run a contestant in round `number`; round 0 also sums what was loaded. Failures come back as `error`."""
        result = Measurement(contestant=contestant.name, condition=condition, round=number)
        files = self._model.files(contestant)
        if refusal := self._refusal(contestant, condition):
            return msgspec.structs.replace(result, error=refusal)
        self._prepare(files, condition)
        wanted = self._ballast(contestant)
        size = ballast_size(wanted, free_memory())
        begin = time.monotonic()
        try:
            with Ballast(size) as ballast:
                # Once more: filling the ballast takes a while, and the kernel may have dropped pages meanwhile.
                self._prepare(files, condition)
                before = resident(files)
                line, error = self._process(contestant, ballast, check=number == 0 and contestant.sums)
                use = BallastUse(nbytes=size, wanted=wanted, release=self._release, released=ballast.was_released())
        except OSError as failure:
            return msgspec.structs.replace(result, error=f"not run: {failure}")
        if line is None:
            return msgspec.structs.replace(result, error=error, ballast=use, resident_before=before)
        return msgspec.structs.replace(
            result,
            seconds=line.seconds,
            nbytes=line.nbytes,
            memory=line.memory,
            detail=line.detail,
            tokens=line.tokens,
            notes=line.notes,
            sums=sums_digest(line.sums) if line.sums else "",
            ballast=use,
            resident_before=before,
            resident_after=resident(files),
            wall=time.monotonic() - begin,
        )

    def _refusal(self, contestant: Contestant, condition: Condition) -> str:
        """Return why a run cannot be made on this machine, or nothing."""
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cached = self._model.nbytes if condition == "hot" else 0
        needed = int(contestant.private * self._model.nbytes) + cached + PROCESS_BYTES
        if contestant.adapts or needed <= total:
            return ""
        return f"does not fit: {needed / 1e9:.1f} GB needed with the page cache, {total / 1e9:.1f} GB of memory"

    def _prepare(self, files: list[Path], condition: Condition) -> None:
        if condition == "hot":
            warm(files)
        elif condition == "cold":
            drop(files)

    def _ballast(self, contestant: Contestant) -> int:
        """Return the bytes of ballast that a contestant should find."""
        if self._release == "off":
            return 0
        return int(contestant.private * self._model.nbytes) + min(MARGIN, self._model.nbytes)

    def _process(self, contestant: Contestant, ballast: Ballast, *, check: bool) -> tuple[Line | None, str]:
        environment = {name: value for name, value in os.environ.items() if not contestant.peer or name != "PYTHONPATH"} | QUIET
        if self._release == "load" and ballast.address:
            environment[stopwatch.BALLAST] = ballast.address
        if check:
            environment[stopwatch.CHECK] = "1"
        command = self._command(contestant)
        if self._release == "start":
            ballast.release()
        environment[stopwatch.STARTED] = str(time.monotonic_ns())
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return None, f"no result within {self._timeout:.0f} s: {_tail(err)}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        lines = [text for text in out.splitlines() if text.startswith(stopwatch.MARK)]
        if not lines:
            return None, f"exit code {process.returncode}: {_tail(err or out)}"
        return msgspec.json.decode(lines[-1], type=Line), ""

    def _command(self, contestant: Contestant) -> list[str]:
        python = str(self._pythons.get(contestant.peer, sys.executable))
        names = {"model": self._model.folder, "ranges": self._model.ranges, "tensors": self._model.tensors}
        names |= {"plain": self._model.plain} if self._model.plain else {}
        names |= {"adapters": self._model.adapters} if self._model.adapters else {}
        arguments = [argument.format(**names) for argument in contestant.arguments]
        ranks = str(contestant.torchrun)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks] if contestant.torchrun else []
        return [python, *launcher, "-m", f"bench.runs.{contestant.script}", *arguments]


def _tail(text: str, lines: int = 12) -> str:
    """Return the last lines of what a process printed, and before them the last error that Python named."""
    every = text.strip().splitlines()
    named = [line for line in every[:-lines] if re.match(r"(\([^)]*\) )?[\w.]+(Error|Exception)\b", line)]
    return "\n".join([*named[-1:], *every[-lines:]])
