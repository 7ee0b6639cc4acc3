"""Runs producers: a folder with the quantised model and what the producer decodes of it, made on first use."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.environments import ROOT, python_of
from bench.runner import QUIET
from conformance.base_model import random_tokens, write_base_model
from conformance.cases import SCRIPTS, Case
from conformance.environments import ENVIRONMENTS
from conformance.folders import keyed, made

PRODUCE_TIMEOUT_S: Final = 1800.0
PROBE_LENGTH: Final = 64


class ProducerFailed(Exception):
    """A producer did not make a file; the text holds the last lines of what it said."""


def produced(case: Case, cache: Path) -> Path:
    """Return the folder of a case's quantised model below `cache`. It is complete or absent.

    Raises EnvironmentFailed or ProducerFailed.
    """
    base = made(cache / "models" / f"base-{case.family}", lambda folder: write_base_model(folder, case.family))
    environment = ENVIRONMENTS[case.producer]
    script = ROOT / "conformance" / "producers" / f"{SCRIPTS[case.producer]}.py"
    facts = json.dumps([case.settings, case.samples, case.length, case.compute], sort_keys=True)
    folder = cache / "models" / keyed(case.name, environment.folder, facts, script.read_text(encoding="utf-8"))
    task = {
        "base": str(base),
        "settings": case.settings,
        "calibration": random_tokens(case.samples, case.length, seed=1),
        "probe": random_tokens(1, PROBE_LENGTH, seed=2)[0],
        "compute": case.compute,
    }
    return made(folder, lambda out: run_producer(case.producer, task | {"out": str(out)}, cache))


def run_producer(producer: str, task: dict[str, Any], cache: Path) -> None:
    """Run a producer's script on a task, as `conformance.producers.task` reads it, in the producer's environment.

    Files that producers leave in the working directory, such as logs, go beside the result and vanish with the scratch folder.
    """
    python = python_of(ENVIRONMENTS[producer], cache / "environments")
    out = Path(task["out"])
    told = out.with_name(f"{out.name}.json")
    told.write_text(json.dumps(task), encoding="utf-8")
    # Our own packages must not hide the producer's. These models are small: threads would mostly wait for each other.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | QUIET | {"PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", f"conformance.producers.{SCRIPTS[producer]}", str(told)]
    try:
        done = subprocess.run(
            command,
            cwd=out.parent,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PRODUCE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProducerFailed(f"{producer} took longer than {PRODUCE_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ProducerFailed(f"{producer} ended with {done.returncode}:\n{tail}")
