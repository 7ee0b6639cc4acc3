"""What the tests with real worker processes share: a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_models import make_model, save_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with three key-value heads for nine query heads."""
    model = make_model("llama", num_attention_heads=9, num_key_value_heads=3, head_dim=8, hidden_size=72)
    return save_model(model, tmp_path_factory.mktemp("llama"))
