"""Adapters in other files than peft's usual one: pickles that are read without being run, and several shards with an index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

import loadmaster as lm
from peft_adapters import Made, adapter_tensors, check, make_adapter

STORED = "adapter_model.safetensors"


def pickled(made: Made, dtype: torch.dtype = torch.float32) -> Made:
    """Save the tensors as peft does without safetensors."""
    torch.save(
        {name: value.to(dtype) for name, value in load_file(made.adapter / STORED).items()}, made.adapter / "adapter_model.bin"
    )
    (made.adapter / STORED).unlink()
    return made


@pytest.mark.parametrize("dora", [False, True])
def test_pickled_adapters_give_pefts_logits(dora: bool, tmp_path: Path) -> None:
    made = pickled(make_adapter(tmp_path, use_dora=dora))
    plan = lm.plan(made.model, tensor_parallel=2, adapters={"it": made.adapter})
    assert plan.data.adapters[0].format == "torch-zip"
    assert len(plan.data.adapters[0].ledger.used) == plan.data.adapters[0].ledger.tensors
    check(made, (1, 2))


def test_the_host_reads_a_pickle_without_torch(tmp_path: Path) -> None:
    made = pickled(make_adapter(tmp_path))
    code = f"""
import sys
from loadmaster.cli.program import run

assert run(["inspect", {str(made.adapter)!r}]) == 0
print([name for name in ("torch", "peft") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout.endswith("[]\n"), ended.stdout + ended.stderr


def test_a_pickle_beside_safetensors_is_left_out_and_said(tmp_path: Path) -> None:
    made = make_adapter(tmp_path)
    (made.adapter / "adapter_model.bin").write_bytes(b"not read")
    plan = lm.plan(made.model, adapters={"it": made.adapter})
    assert plan.data.adapters[0].format == "hf-safetensors"
    (remark,) = [finding for finding in plan.findings if finding.code == "LM-ADAPTER-FILE"]
    assert "adapter_model.bin is left out" in remark.message
    check(made, (1,), ("live",))


def test_pickled_models_stay_refused(tmp_path: Path) -> None:
    made = make_adapter(tmp_path)
    torch.save(load_file(made.model / "model.safetensors"), made.model / "pytorch_model.bin")
    (made.model / "model.safetensors").unlink()
    torch.save(adapter_tensors(made.adapter), made.model / "adapter_model.bin")
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(made.model)
    assert caught.value.code == "LM-FORMAT-PICKLE"


def test_shards_with_an_index(tmp_path: Path) -> None:
    made = make_adapter(tmp_path)
    tensors = adapter_tensors(made.adapter)
    (made.adapter / STORED).unlink()
    save_torch_state_dict(tensors, made.adapter, filename_pattern="adapter_model{suffix}.safetensors", max_shard_size=10_000)
    files = sorted(path.name for path in made.adapter.glob("*.safetensors"))
    assert len(files) > 2
    plan = lm.plan(made.model, tensor_parallel=2, adapters={"it": made.adapter})
    assert [file.name for file in plan.data.adapters[0].files] == files
    check(made, (1, 2))
    (made.adapter / files[1]).unlink()
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(made.model, adapters={"it": made.adapter})
    assert caught.value.code == "LM-SHARD-MISSING"


def test_errors_call_the_configuration_by_the_name_that_it_has(tmp_path: Path) -> None:
    made = make_adapter(tmp_path)
    (made.adapter / "adapter_config.json").write_text("{")
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(made.model, adapters={"it": made.adapter})
    assert caught.value.report.summary == "adapter_config.json is malformed"
    assert caught.value.report.where == {"adapter": "it", "file": "adapter_config.json"}
    (made.adapter / STORED).unlink()
    with pytest.raises(lm.LoadmasterError, match=r"files?: adapter_config\.json"):
        lm.plan(made.model, adapters={"it": made.adapter})
