"""Adapters beside an update: they are planned on the weights that run, and cut as these are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import loadmaster as lm

DATA: Final = Path(__file__).parents[1] / "data"
ADAPTER: Final = DATA / "lora-r16-all"
OPTIONS: Final[dict[str, Any]] = {"executor": "inline", "dtype": "float32"}
IDS: Final = [5, 9, 61, 3]


def test_an_adapter_that_comes_later_needs_the_old_files_no_more(tmp_path: Path) -> None:
    old = shutil.copytree(DATA / "base", tmp_path / "old")
    with lm.Engine(DATA / "base", adapters={"it": ADAPTER}, **OPTIONS) as fresh, lm.Engine(old, **OPTIONS) as engine:
        engine.adapters.load("before", ADAPTER)
        engine.update_weights(DATA / "base")
        shutil.rmtree(old)
        engine.adapters.load("after", ADAPTER)
        expected = fresh.logits(IDS, adapter="it")
        assert np.array_equal(engine.logits(IDS, adapter="after"), expected)
        assert np.array_equal(engine.logits(IDS, adapter="before"), expected)


def test_weights_that_ranks_would_divide_in_another_way_are_refused() -> None:
    """Five ranks cut 1536 rows at any place, and in groups of 64 at others."""
    with lm.Engine(DATA / "base", tensor_parallel=5, adapters={"it": ADAPTER}, **OPTIONS) as engine:
        before = engine.logits(IDS, adapter="it")
        with pytest.raises(lm.PlanError, match="divided among the ranks in another way") as caught:
            engine.update_weights(DATA / "gptq-4b-g64-sym")
        assert caught.value.code == "LM-UPDATE-MODEL"
        assert np.array_equal(engine.logits(IDS, adapter="it"), before)
