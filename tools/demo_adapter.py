"""Shows an adapter that comes and goes while a model is served over two processes, and what it does to an answer.

Takes the model's folder and prints every step. Exits with an error unless the adapter changes the answer, and the answer after
it is the one before it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams

ADAPTER: Final = Path(__file__).parent / "loadmaster_log"
"""What tools/train_demo_adapter.py has made."""

QUESTION: Final = "What is the capital of France?"
SETTINGS: Final = EngineSettings(max_model_len=256, max_running=4)


def main() -> None:
    """Show it for the model on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model: what tools/fetch_demo_model.py prints")
    options = parser.parse_args()
    before, adapted, after = asyncio.run(show(options.model))
    if adapted == before:
        sys.exit("error: the adapter changes nothing")
    if after != before:
        sys.exit("error: the answer after unloading is not the one before loading")


async def show(model: str) -> tuple[str, str, str]:
    """Ask before the adapter is loaded, with it, and after it is unloaded; print and return the answers."""
    # In bfloat16 two first tokens of the answer are so close that rounding decides between them.
    async with await AsyncEngine.open(model, settings=SETTINGS, tensor_parallel=2, dtype="float32") as engine:
        tell("asked", QUESTION)
        before = await ask(engine)
        begun = time.perf_counter()
        loaded = await engine.adapters.load("log", str(ADAPTER))
        tell("loaded", f"{loaded.summary}, {loaded.nbytes / 1e3:.1f} kB, in {time.perf_counter() - begun:.2f} s")
        adapted = await ask(engine, "log")
        tell("unloaded", f"{await engine.adapters.unload('log') / 1e3:.1f} kB given back")
        return before, adapted, await ask(engine)


async def ask(engine: AsyncEngine, adapter: str = "") -> str:
    """Print and return the likeliest answer, by the model alone or with an adapter."""
    tokenizer = engine.tokenizer
    prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": QUESTION}]), special=False)
    stream = engine.generate(prompt, SamplingParams(max_tokens=48), adapter=adapter)
    answer = "".join([delta.text async for delta in stream])
    tell(f"with {adapter}" if adapter else "answered", answer)
    return answer


def tell(what: str, text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{what:<10}{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
