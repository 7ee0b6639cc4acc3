"""The command: makes what is missing, runs the rounds, keeps the result as JSON, and writes the page."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, get_args

import msgspec

from bench.adapter_contestants import adapter_contestants
from bench.adapter_files import adapters
from bench.adapter_goals import adapter_goals
from bench.adapter_names import ADAPTER_SIZES
from bench.adapter_page import write_adapter_page
from bench.checkpoint import SIZES, checkpoint
from bench.contestants import DEFAULT_PEERS, Contestant, contestants
from bench.environments import ENVIRONMENTS, ROOT, EnvironmentFailed, compile_own, python_of
from bench.expected import expected_sums
from bench.floor_plan import write_ranges
from bench.goals import Judge
from bench.import_times import worker_imports
from bench.machine_facts import machine_facts
from bench.page import write_page
from bench.quantised_checkpoint import QUANTISED_SIZES, plain_size, quantised_checkpoint
from bench.quantised_contestants import QUANTISED_PEERS, quantised_contestants
from bench.quantised_goals import quantised_goals
from bench.quantised_page import write_quantised_page
from bench.records import Goal, Measurement, Release, Report, Settings
from bench.runner import Model, Runner
from bench.runs.stopwatch import model_files
from bench.series import run_series, schedule
from bench.serving_contestants import SERVING_PEERS, serving_contestants
from bench.serving_goals import serving_goals
from bench.serving_names import SERVING_SIZES
from bench.serving_page import write_serving_page
from loadmaster_engine.plan.preflight import READ_MODES

CONVERT_TIMEOUT_S: Final = 900.0

PAGES: Final = {
    "3g": ROOT / "docs" / "benchmark.md",
    "3g-4bit": ROOT / "docs" / "benchmark-quantised.md",
    "serve": ROOT / "docs" / "benchmark-serving.md",
    "adapters": ROOT / "docs" / "benchmark-adapters.md",
}
"""The pages of the documentation that results of a size belong to."""


class Kind(NamedTuple):
    """What depends on what is measured: who takes part, what is to be reached, and the page.

    `compares` says that loaded tensors are compared with the files in a round before; `loads` that loading is measured, so
    that it matters in which state memory is found.
    """

    peers: tuple[str, ...]
    contestants: Callable[[Sequence[str]], list[Contestant]]
    goals: Callable[[Sequence[Measurement], int], tuple[Goal, ...]]
    write: Callable[[Report, Path], None]
    compares: bool = False
    loads: bool = True


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark as the command line asks and return the path of the JSON."""
    options = _options(arguments)
    kind = _kind(options.size)
    settings = Settings(
        size=options.size,
        rounds=options.rounds,
        peers=_peers(options.peers, kind.peers),
        conditions=tuple(options.cache),
        ballast=options.ballast if kind.loads else "off",
    )
    cache = _cache()
    compile_own()
    pythons, unavailable = _environments(settings.peers, cache, here=options.here)
    model = _model(cache, settings.size)
    if "tensorizer" in pythons:
        unavailable |= _convert(pythons["tensorizer"], model)
    everyone = kind.contestants(settings.peers)
    if options.only:
        everyone = [one for one in everyone if one.name in options.only]
    machine = machine_facts(cache)
    plan = list(schedule(everyone, settings.conditions, settings.rounds, check=kind.compares))
    done = run_series(plan, Runner(model, pythons, settings.ballast).run, unavailable, _say)
    report = _report(kind, settings, machine, model, everyone, done)
    return _keep(kind, report, options.out, options.page)


def _kind(size: str) -> Kind:
    if size in SERVING_SIZES:
        served = partial(serving_contestants, short=size != "serve")
        return Kind(SERVING_PEERS, served, lambda done, _: serving_goals(done), write_serving_page, loads=False)
    if size in ADAPTER_SIZES:
        coming = adapter_contestants(short=size != "adapters")
        return Kind((), lambda _: coming, lambda done, _: adapter_goals(done), write_adapter_page, loads=False)
    if size in QUANTISED_SIZES:
        return Kind(QUANTISED_PEERS, quantised_contestants, lambda done, _: quantised_goals(done), write_quantised_page)
    loaded = partial(contestants, read_modes=READ_MODES, four_ranks=size == "7b")
    return Kind(DEFAULT_PEERS, loaded, lambda done, nbytes: Judge(done, READ_MODES, nbytes).goals(), write_page, compares=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "--size",
        choices=(*(size for size in SIZES if size not in SERVING_SIZES), *QUANTISED_SIZES, *SERVING_SIZES, *ADAPTER_SIZES),
        default="3g",
        help="the model [%(default)s]",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after a check round [%(default)s]")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=sorted({*DEFAULT_PEERS, *QUANTISED_PEERS, *SERVING_PEERS}),
        help="who runs beside loadmaster",
    )
    parser.add_argument("--cache", nargs="+", choices=("hot", "cold"), default=("hot", "cold"), help="states of the page cache")
    parser.add_argument("--ballast", choices=get_args(Release), default="load", help="when the ballast is freed [%(default)s]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these contestants only")
    parser.add_argument("--here", action="store_true", help="run peers with this interpreter instead of their own environments")
    parser.add_argument("--out", type=Path, help="where the JSON goes [bench/results/DATE-SIZE.json]")
    parser.add_argument(
        "--page",
        type=Path,
        help="page to put the tables into [one in docs for 3g, 3g-4bit, serve, adapters, else beside the JSON]",
    )
    return parser.parse_args(arguments)


def _peers(asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return the peers that take part with this model: all that are known, or those of them that were asked for."""
    return tuple(known) if asked is None else tuple(peer for peer in known if peer in asked)


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "loadmaster" / "bench"


def _environments(peers: Sequence[str], cache: Path, *, here: bool) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the interpreter of every peer, and the error text of those that have none."""
    pythons: dict[str, Path] = {}
    unavailable: dict[str, str] = {}
    for peer in peers:
        if here:
            pythons[peer] = Path(sys.executable)
            continue
        _say(f"environment of {peer}")
        try:
            pythons[peer] = python_of(ENVIRONMENTS[peer], cache / "environments")
        except EnvironmentFailed as error:
            _say(f"failed: {error}")
            unavailable[peer] = str(error)
    return pythons, unavailable


def _model(cache: Path, size: str) -> Model:
    _say(f"model {size}")
    models = cache / "models"
    if size in SERVING_SIZES:
        synthetic = checkpoint(models, "serve" if size == "serve" else "tiny")
        folder = _demo_model() if size == "serve" else synthetic
        nbytes = sum(file.stat().st_size for file in model_files(folder))
        return Model(folder=folder, ranges=folder, tensors=folder, nbytes=nbytes, plain=synthetic)
    if size in ADAPTER_SIZES:
        folder = _demo_model() if size == "adapters" else checkpoint(models, "tiny")
        nbytes = sum(file.stat().st_size for file in model_files(folder))
        return Model(folder=folder, ranges=folder, tensors=folder, nbytes=nbytes, adapters=adapters(models, folder))
    plain = checkpoint(models, plain_size(size))
    quantised = size in QUANTISED_SIZES
    folder = quantised_checkpoint(models, size) if quantised else plain
    ranges = models / f"ranges-{size}.json"
    write_ranges(folder, ranges)
    nbytes = sum(file.stat().st_size for file in model_files(folder))
    tensors = models / f"llama-{size}.tensors"
    return Model(folder=folder, ranges=ranges, tensors=tensors, nbytes=nbytes, plain=plain if quantised else None)


def _demo_model() -> Path:
    """Return the folder of the demo's model, fetched on first use."""
    command = [sys.executable, str(ROOT / "tools" / "fetch_demo_model.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CONVERT_TIMEOUT_S, check=True)
    return Path(done.stdout.strip())


def _convert(python: Path, model: Model) -> dict[str, str]:
    """Make the file that tensorizer reads. Return the error text by peer when that fails."""
    if model.tensors.exists():
        return {}
    _say("converting for tensorizer")
    command = [str(python), "-m", "bench.runs.tensorizer_run", str(model.folder), "--file", str(model.tensors), "--convert"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CONVERT_TIMEOUT_S)
    return {"tensorizer": done.stderr[-2000:]} if done.returncode else {}


def _report(
    kind: Kind,
    settings: Settings,
    machine: dict[str, str],
    model: Model,
    everyone: Sequence[Contestant],
    done: Sequence[Measurement],
) -> Report:
    # Repacked matrices cannot be compared with the files, and the imports are those of the plain model.
    total, imports = worker_imports(model.folder) if kind.compares else (0.0, ())
    return Report(
        date=datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        settings=settings,
        machine=machine,
        model_bytes=model.nbytes,
        expected_sums=expected_sums(model.folder) if kind.compares else "",
        measurements=tuple(done),
        goals=kind.goals(done, model.nbytes),
        imports=imports,
        imports_total=total,
        about={one.name: one.about for one in everyone},
    )


def _keep(kind: Kind, report: Report, out: Path | None, page: Path | None) -> Path:
    """Write JSON and page and say which goals are met."""
    size = report.settings.size
    out = out or ROOT / "bench" / "results" / f"{report.date[:10]}-{size}.json"
    page = page or PAGES.get(size, out.with_suffix(".md"))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    kind.write(report, page)
    for goal in report.goals:
        state = {True: "met", False: "MISSED", None: "not measured"}[goal.met]
        measured = "" if goal.measured is None else f"{goal.measured:.3f}"
        _say(f"{state:13}{measured:>8} {'>=' if goal.at_least else '<='} {goal.limit:<6g} {goal.text}")
    differing = [one.contestant for one in report.measurements if one.sums and one.sums != report.expected_sums]
    if differing:
        _say(f"LOADED SOMETHING ELSE: {', '.join(differing)}")
    _say(f"{out}\n{page}")
    return out


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
