"""loadmaster's serving engine: all requests at once from one event loop."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from bench.runs.process_memory import own_memory
from bench.runs.serving_workload import Prompts, measure, parser
from bench.runs.stopwatch import Stopwatch, report


def main() -> None:
    """Load, serve, report."""
    made = parser()
    made.add_argument("--tp", type=int, default=1)
    made.add_argument("--executor")
    made.add_argument("--threads", type=int, help="threads of all ranks together instead of a processor each")
    made.add_argument("--plain-matrices", action="store_true", help="matrices are not kept a second time")
    options = made.parse_args()
    stopwatch = Stopwatch()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)

    from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams

    stopwatch.mark("imported")

    async def serve_all() -> None:
        settings = EngineSettings(
            prefix_cache=False,
            max_running=max(options.batches),
            max_model_len=max(options.first) + options.answer,
            arrange_matrices=False if options.plain_matrices else "auto",
        )
        more: dict[str, Any] = {"tensor_parallel": options.tp, "executor": options.executor}
        async with await AsyncEngine.open(options.model, settings=settings, **more) as engine:
            stopwatch.mark("loaded")

            async def answered(prompt: list[int], tokens: int) -> list[int]:
                params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
                return [token async for delta in engine.generate(prompt, params) for token in delta.ids]

            loop = asyncio.get_running_loop()

            def serve(prompts: Prompts, tokens: int) -> list[list[int]]:
                async def everyone() -> list[list[int]]:
                    return await asyncio.gather(*(answered(prompt, tokens) for prompt in prompts))

                return asyncio.run_coroutine_threadsafe(everyone(), loop).result()

            detail, tokens = await asyncio.to_thread(measure, serve, options)
            made = engine.model.report
            notes = [f"plan {made.digest}", *engine.model.notices]
            report(stopwatch.seconds, nbytes=made.bytes_read, memory=own_memory(), detail=detail, tokens=tokens, notes=notes)

    asyncio.run(serve_all())


if __name__ == "__main__":
    main()
