"""Two sets of weights of one model, for tests in which the second ones take the place of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_models import make_model, save_model


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama", eos_token_id=None), tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama", seed=1, eos_token_id=None), tmp_path_factory.mktemp("new"))
