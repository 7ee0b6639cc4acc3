"""What a producer's script is told: where the model is, where the result goes, and how to quantise."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


class Task(NamedTuple):
    """One quantisation.

    `settings` are the producer's own words, `calibration` the token sequences it measures with, all of one length, and `probe`
    the tokens whose logits are kept; without them nothing but the quantised model is written. `compute` is the float type to
    measure in: float16 is what people use, float32 several times faster on most CPUs. The file is the same but for rounding.
    """

    base: Path
    out: Path
    settings: dict[str, Any]
    calibration: list[list[int]]
    probe: list[int] | None
    compute: str


def read_task() -> Task:
    """Read the task from the JSON file that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", type=Path)
    told = json.loads(parser.parse_args().task.read_text(encoding="utf-8"))
    base, out = Path(told["base"]), Path(told["out"])
    return Task(base, out, told["settings"], told["calibration"], told["probe"], told["compute"])


def copy_text_files(base: Path, out: Path) -> None:
    """Copy what turns text into tokens. The old transformers of some producers cannot read what a new one has written."""
    for name in TEXT_FILES:
        if (base / name).exists():
            shutil.copyfile(base / name, out / name)
