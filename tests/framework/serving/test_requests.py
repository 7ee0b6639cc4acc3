"""One request's life: streaming, stop texts, logprobs, refusal, cancel, drain, and what happens when a worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from engine.executors.process_watch import becomes_true
from loadmaster.serving import AsyncEngine, Delta, EngineSettings, SamplingParams, ServingEngine
from loadmaster.serving.loop import StepLoop
from loadmaster_engine.serve.scheduler import Limits, Scheduler
from runnable_model import write_runnable_model

PROMPT = list(b"Once upon a time")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("served") / "model")


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[AsyncEngine]:
    async with await AsyncEngine.open(folder, settings=EngineSettings(**{"max_running": 8, **settings})) as engine:
        checked: ServingEngine = engine  # what the server is written against
        assert checked.max_model_len == engine.max_model_len
        yield engine


async def collect(engine: AsyncEngine, **values: Any) -> list[Delta]:
    return [delta async for delta in engine.generate(PROMPT, SamplingParams(**{"max_tokens": 20, **values}))]


def text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_text_logprobs_and_counts(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder) as engine:
            deltas = await collect(engine, logprobs=3)
            ids = [token for delta in deltas for token in delta.ids]
            assert len(ids) == 20
            assert text(deltas) == engine.tokenizer.decode(ids)
            assert [delta.finish_reason for delta in deltas] == [None] * 19 + ["length"]
            assert {delta.prompt_tokens for delta in deltas} == {len(PROMPT)}
            for delta in deltas:
                (logprob,) = delta.logprobs
                assert logprob.id == delta.ids[0] == logprob.top[0][0]
                assert logprob.logprob == logprob.top[0][2] <= 0
                assert len(logprob.top) == 3
            (seconds,) = engine.stats().first_token_seconds
            assert 0 < seconds < 60
            assert engine.stats().first_token_seconds == ()

    asyncio.run(scene())


def test_a_full_queue_takes_no_more(folder: Path) -> None:
    async def scene() -> None:
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        async with opened(folder, max_running=2, max_waiting=3) as engine:
            alone = text([delta async for delta in engine.generate(PROMPT, params)])
            streams = [engine.generate(PROMPT, params) for _ in range(5)]
            with pytest.raises(lm.ResourceError, match="too many requests") as caught:
                engine.generate(PROMPT, params)
            assert caught.value.code == "LM-ENGINE-BUSY"
            assert "2 in a batch and 3 that wait" in caught.value.report.why
            assert [text([delta async for delta in stream]) for stream in streams] == [alone] * 5
            assert text([delta async for delta in engine.generate(PROMPT, params)]) == alone, "there is room again"
        async with opened(folder, max_running=1, max_waiting=0) as engine:
            streams = [engine.generate(PROMPT, params) for _ in range(1100)]
            for stream in streams:
                await stream.aclose()

    asyncio.run(scene())


def test_stop_texts_and_stop_tokens(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder) as engine:
            whole = await collect(engine)
            ids = [token for delta in whole for token in delta.ids]
            ended = await collect(engine, stop_ids=(ids[5],))
            first = ids.index(ids[5])
            assert [token for delta in ended for token in delta.ids] == ids[:first]
            assert ended[-1].finish_reason == "stop"
            stop = text(whole)[4:7]
            stopped = await collect(engine, stop=(stop,))
            assert text(stopped) == text(whole)[: text(whole).index(stop)]
            assert stopped[-1].finish_reason == "stop"
            assert engine.stats().kv_blocks_used == 0

    asyncio.run(scene())


def test_a_request_that_is_dropped_gives_its_blocks_back(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder) as engine:
            left = engine.generate(PROMPT, SamplingParams(max_tokens=400))
            async for _ in left:
                break
            await left.aclose()
            waiting = asyncio.create_task(collect(engine, max_tokens=400))
            await asyncio.sleep(0.05)
            waiting.cancel()
            unread = engine.generate(PROMPT, SamplingParams(max_tokens=400))
            del unread
            assert len(await collect(engine)) == 20
            for _ in range(100):
                if engine.stats().requests_cancelled == 3:
                    break
                await asyncio.sleep(0.05)
            stats = engine.stats()
            assert (stats.requests_cancelled, stats.requests_done, stats.running, stats.kv_blocks_used) == (3, 1, 0, 0)

    asyncio.run(scene())


def test_what_cannot_be_is_refused_before_anything_is_queued(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder, max_model_len=32) as engine:
            assert engine.max_model_len == 32
            cases: list[tuple[list[int], dict[str, Any], str]] = [
                ([], {}, "LM-USAGE-PROMPT"),
                ([10**6], {}, "LM-USAGE-PROMPT"),
                ([1] * 32, {}, "LM-USAGE-PROMPT"),
                ([1], {"top_p": 7.0}, "LM-USAGE-SAMPLING"),
            ]
            for prompt, values, code in cases:
                with pytest.raises(lm.UsageError) as caught:
                    engine.generate(prompt, SamplingParams(**values))
                assert caught.value.code == code
            with pytest.raises(lm.UsageError, match="LM-USAGE-ADAPTER"):
                engine.generate([1], SamplingParams(), adapter="french")
            deltas = [delta async for delta in engine.generate([1] * 31, SamplingParams(max_tokens=9))]
            assert sum(len(delta.ids) for delta in deltas) == 1
            assert deltas[-1].finish_reason == "length"

    asyncio.run(scene())


def test_draining_ends_what_runs_and_takes_nothing_new(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder) as engine:
            running = asyncio.create_task(collect(engine))
            await asyncio.sleep(0)
            assert await engine.drain(60.0)
            assert len(await running) == 20
            with pytest.raises(lm.ResourceError, match="LM-ENGINE-DRAINING"):
                engine.generate(PROMPT, SamplingParams())
            assert engine.stats().stage == "drain"

    asyncio.run(scene())


def test_closing_cancels_what_runs(folder: Path) -> None:
    async def scene() -> None:
        async with opened(folder) as engine:
            running = asyncio.create_task(collect(engine, max_tokens=400))
            await asyncio.sleep(0.05)
            await engine.close()
            assert (await running)[-1].finish_reason == "cancelled"
            assert not engine.stats().alive

    asyncio.run(scene())


def test_workers_that_die_while_nobody_asks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def call(op: str, body: bytes) -> bytes:
        calls.append(op)
        raise lm.WorkerError("LM-WORKER-DIED", "rank 0 has died")

    monkeypatch.setattr("loadmaster.serving.loop.HEARTBEAT_SECONDS", 0.01)
    limits = Limits(block_size=4, batch_tokens=4, running=1)
    loop = StepLoop(Scheduler(4, limits), call, lambda: None)
    loop.start()
    assert becomes_true(lambda: not loop.alive, 5.0)
    assert calls == ["alive"]
    assert "rank 0 has died" in loop.error
    assert loop.stop(1.0)
