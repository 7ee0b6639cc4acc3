"""What the tests with real worker processes share: small models."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from safetensors.numpy import save_file

from bigram_family import TENSOR, write_bigram_model
from runnable_model import write_tokenizer
from tiny_models import make_model, save_model

SERVED: Final = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 12 MB with a tokenizer of bytes and a chat template, whose answers differ from prompt to prompt."""
    folder = tmp_path_factory.mktemp("served") / "model"
    folder.mkdir()
    vocabulary = write_tokenizer(folder)
    return save_model(make_model("llama", vocab_size=vocabulary, **SERVED), folder)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with three key-value heads for nine query heads."""
    model = make_model("llama", num_attention_heads=9, num_key_value_heads=3, head_dim=8, hidden_size=72)
    return save_model(model, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bigram model: its processes import torch alone and are there in a third of the time that those of others take."""
    folder = tmp_path_factory.mktemp("bigram") / "model"
    save_file({TENSOR: write_bigram_model(folder, 64)}, folder / "model.safetensors")
    (folder / f"{TENSOR}.npy").unlink()
    return folder
