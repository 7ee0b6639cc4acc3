"""Makes the quantised models of the demo: SmolLM2-135M-Instruct, quantised by the real auto-gptq or autoawq on first use.

Prints the folder on standard output. The text to measure with is this repository's own: its README and its pages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from bench.environments import ROOT, EnvironmentFailed
from conformance.folders import cache_folder, made
from conformance.produce import ProducerFailed, run_producer

FETCH_TIMEOUT_S: Final = 1200.0
SAMPLES: Final = 8
LENGTH: Final = 128


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Who quantises the demo's model, in which settings. Its width of 576 has no groups of 128, so 64 it is."""

    producer: str
    settings: dict[str, Any]


RECIPES: Final = {
    "gptq": Recipe(producer="auto-gptq", settings={"bits": 4, "group_size": 64, "sym": False, "desc_act": True}),
    "awq": Recipe(
        producer="autoawq",
        settings={"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM", "apply_clip": False},
    ),
}


def main() -> None:
    """Print the folder of the quantised demo model, after making it where it does not exist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=RECIPES)
    recipe = RECIPES[parser.parse_args().method]
    command = [sys.executable, str(ROOT / "tools" / "fetch_demo_model.py")]
    fetched = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=FETCH_TIMEOUT_S, check=True)
    base = Path(fetched.stdout.strip())
    try:
        folder = made(base.with_name(f"{base.name}-{recipe.producer}"), lambda out: _quantise(base, out, recipe))
    except (EnvironmentFailed, ProducerFailed) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{folder}\n")


def _quantise(base: Path, out: Path, recipe: Recipe) -> None:
    sys.stderr.write(f"quantising {base.name} with {recipe.producer} in an environment of its own, once; this takes minutes\n")
    sys.stderr.flush()
    task = {
        "base": str(base),
        "out": str(out),
        "settings": recipe.settings,
        "calibration": calibration(base, SAMPLES, LENGTH),
        "probe": None,
        "compute": "float32",
    }
    run_producer(recipe.producer, task, cache_folder())


def calibration(base: Path, samples: int, length: int) -> list[list[int]]:
    """Return sequences of tokens, evenly spread over this repository's pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    ids: list[int] = Tokenizer.from_file(str(base / "tokenizer.json")).encode(text).ids
    step = (len(ids) - length) // max(samples - 1, 1)
    return [ids[number * step : number * step + length] for number in range(samples)]


if __name__ == "__main__":
    main()
