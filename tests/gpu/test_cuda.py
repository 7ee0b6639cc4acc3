"""Loading and running on CUDA devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loadmaster as lm
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_one_device_equals_the_reference(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, device="cuda", executor="multiprocess") as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-4
        assert len(engine.generate([IDS], max_tokens=4, temperature=0.0)[0].token_ids) == 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_equal_the_reference(tmp_path: Path) -> None:
    model = make_model("llama")
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, device="cuda", tensor_parallel=2) as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-4
