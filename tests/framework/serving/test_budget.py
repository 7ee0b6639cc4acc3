"""Memory for serving: what fits is planned, what does not is refused with what would, before anything is read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from loadmaster import memory
from loadmaster.serving import AsyncEngine, EngineSettings
from loadmaster.serving.budget import ARRANGED, MARGIN, activation_bound, arranges, plan_kv
from loadmaster.serving.fit import check_plan
from loadmaster_engine.serve.messages import Probed
from loadmaster_hookspecs.kv import KvLayer, KvLayout
from loadmaster_hookspecs.plan import LoadPlan
from tiny_models import make_model, save_model

BLOCK_TOKENS = 16
LAYER = KvLayer(heads=2, key_dim=64, value_dim=64)
LAYOUT = KvLayout(layers=(LAYER,) * 4, dtype="BF16")
TOKEN = 4 * 2 * 128 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def plan(folder: Path) -> LoadPlan:
    return lm.plan(folder).data


def probed(activation: int = 0, layout: KvLayout = LAYOUT, free: int = 0) -> Probed:
    return Probed(layout=layout, activation=activation, free=free)


def test_what_is_left_becomes_blocks(plan: LoadPlan) -> None:
    settings = EngineSettings(max_running=10**6)
    kv = plan_kv(plan, [probed()], settings, 100_000_000)
    bound = activation_bound(plan.outline, plan.dtype, 1, settings, 128)
    assert kv.nbytes == kv.blocks * BLOCK_TOKENS * TOKEN
    # One layer's keys and values are gathered, at most twice their size.
    assert kv.nbytes * 1.5 + bound <= 100_000_000 * (1 - MARGIN) < (kv.nbytes + BLOCK_TOKENS * TOKEN) * 1.5 + bound
    assert kv.max_model_len == 128


def test_matrices_are_kept_twice_where_there_is_room(folder: Path, plan: LoadPlan) -> None:
    narrow = lm.plan(folder, dtype="bfloat16").data
    roles = narrow.ledger.roles[0]
    room = int((roles["linear"] + roles["embedding"]) / ARRANGED) + 1
    auto = EngineSettings()
    assert arranges(narrow, auto, room)
    assert not arranges(narrow, auto, room - 8)
    assert not arranges(narrow, EngineSettings(kv_bytes=8), room)
    assert not arranges(plan, auto, 10**12)  # float32
    assert arranges(narrow, EngineSettings(arrange_matrices=True), 0)
    assert not arranges(narrow, EngineSettings(arrange_matrices=False), 10**12)


def test_no_more_is_taken_than_requests_can_use(plan: LoadPlan) -> None:
    kv = plan_kv(plan, [probed()], EngineSettings(max_running=3, max_model_len=100), 10**10)
    assert kv.blocks == 3 * 7
    assert kv.max_model_len == 100


def test_adapters_to_come_keep_their_room(plan: LoadPlan) -> None:
    settings = EngineSettings(max_running=10**6)
    assert plan_kv(plan, [probed()], settings, 10**9, 10**8) == plan_kv(plan, [probed()], settings, 10**9 - int(10**8 / 0.9))


def test_ranks_of_a_node_share_its_memory_and_devices_do_not(plan: LoadPlan) -> None:
    one = plan_kv(plan, [probed()], EngineSettings(max_running=10**6), 10**9).blocks
    two = plan_kv(plan, [probed(), probed()], EngineSettings(max_running=10**6), 10**9).blocks
    assert two == pytest.approx(one / 2, rel=0.05)
    devices = plan_kv(plan, [probed(free=10**9), probed(free=2 * 10**9)], EngineSettings(max_running=10**6), 10**3).blocks
    assert devices == pytest.approx(one, rel=0.05)


def test_a_short_memory_shortens_contexts_and_says_so(plan: LoadPlan) -> None:
    settings = EngineSettings(max_batch_tokens=16, max_running=4)
    bound = activation_bound(plan.outline, plan.dtype, 1, settings, 128)
    kv = plan_kv(plan, [probed()], settings, int((bound + 70 * TOKEN * 1.5) / (1 - MARGIN)))
    assert 48 <= kv.max_model_len <= 80
    assert "which is what fits" in kv.notices[0]


def test_a_step_that_takes_more_than_its_bound_is_flagged_and_believed(plan: LoadPlan) -> None:
    bound = activation_bound(plan.outline, plan.dtype, 1, EngineSettings(), 128)
    settings = EngineSettings(max_running=10**6)
    kv = plan_kv(plan, [probed(activation=bound + 10**8)], settings, 10**9)
    assert any("more than its bound" in notice for notice in kv.notices)
    assert kv.blocks < plan_kv(plan, [probed()], settings, 10**9).blocks


def test_rotary_angles_that_depend_on_the_batch_bound_contexts(plan: LoadPlan) -> None:
    layout = KvLayout(layers=(LAYER,), dtype="F32", longest=64, longest_why="angles change beyond 64 positions")
    kv = plan_kv(plan, [probed(layout=layout)], EngineSettings(), 10**9)
    assert kv.max_model_len == 64
    assert "angles change beyond 64 positions" in kv.notices[0]
    with pytest.raises(lm.ResourceError, match="max_model_len 64 is the most"):
        plan_kv(plan, [probed(layout=layout)], EngineSettings(max_model_len=65), 10**9)


@pytest.mark.parametrize(
    "values", [{"kv_bytes": 10**9}, {"max_model_len": 100, "kv_bytes": 5 * BLOCK_TOKENS * TOKEN}, {"kv_bytes": 1}]
)
def test_wishes_that_do_not_fit_are_refused_with_what_does(plan: LoadPlan, values: dict[str, Any]) -> None:
    with pytest.raises(lm.ResourceError, match="fit") as caught:
        plan_kv(plan, [probed()], EngineSettings(**values), 50_000_000)
    assert caught.value.code == "LM-MEMORY-KV"
    words = caught.value.hints[0].replace(",", "").split()
    fitting = EngineSettings(max_model_len=min(128, int(words[1])), kv_bytes=int(words[4]))
    assert plan_kv(plan, [probed()], fitting, 50_000_000).blocks


def refused(plan: LoadPlan, settings: EngineSettings, available: int) -> tuple[str, ...]:
    with pytest.raises(lm.ResourceError) as caught:
        check_plan(plan, settings, available, processes=False)
    assert caught.value.code == "LM-MEMORY-FIT"
    return caught.value.hints


def test_remedies_are_named_that_are_enough(folder: Path) -> None:
    """A narrower type, a quantised variant where that is not enough, fewer ranks where these share a node."""
    settings = EngineSettings(max_batch_tokens=16, max_running=2, max_model_len=16)
    wide, narrow, many = (
        lm.plan(folder, read_mode="direct", dtype=dtype, tensor_parallel=ranks).data
        for dtype, ranks in (("float32", 1), ("bfloat16", 1), ("bfloat16", 4))
    )

    def least(plan: LoadPlan) -> int:
        """Return the fewest bytes that are enough."""
        return next(free for free in range(1_000_000, 100_000_000, 10_000) if fits(plan, settings, free))

    nbytes = sum(rank.bytes for rank in wide.ranks)
    assert "use --dtype bfloat16" in refused(wide, settings, least(wide) - nbytes // 4)
    assert not any("--dtype" in hint for hint in refused(wide, settings, least(wide) - nbytes // 2 - 100_000))
    assert any("4-bit weights would fit" in hint for hint in refused(narrow, settings, least(narrow) - nbytes // 8))
    assert not any("4-bit" in hint for hint in refused(narrow, settings, least(narrow) - nbytes // 2))
    assert "--tp 2 fits: more ranks do not divide a node's memory" in refused(many, settings, least(many) - 10_000)


def fits(plan: LoadPlan, settings: EngineSettings, available: int) -> bool:
    try:
        check_plan(plan, settings, available, processes=False)
    except lm.ResourceError:
        return False
    return True


def test_an_engine_that_does_not_fit_is_refused_before_anything_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    monkeypatch.setattr(memory, "available_memory", lambda: 200_000_000)

    def load(**settings: Any) -> AsyncEngine:
        return AsyncEngine(
            folder,
            settings=EngineSettings(**{"adapter_bytes": 0, **settings}),
            on_event=lambda event: stages.append(getattr(event, "stage", "")),
        )

    with pytest.raises(lm.ResourceError) as caught:
        load(max_batch_tokens=64, kv_bytes=10**9)
    assert caught.value.code == "LM-MEMORY-FIT"
    assert "+ keys and values 1.00 GB" in caught.value.report.why
    assert "reserve" not in stages
    # Two layers: gathering one of them takes as much again.
    assert 80_000_000 < int(caught.value.hints[0].split()[-1]) < 90_000_000
    with pytest.raises(lm.ResourceError, match=r"adapters 300\.0 MB") as caught:
        load(max_batch_tokens=64, adapter_bytes=300_000_000)
    assert any("adapter_bytes" in hint for hint in caught.value.hints)
    assert "reserve" not in stages
    engine = load(max_batch_tokens=64, max_running=2)
    assert engine.max_model_len == 128
    asyncio.run(engine.close())
