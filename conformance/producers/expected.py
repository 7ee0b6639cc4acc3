"""What a producer's file means according to the producer: decoded weights, and logits of transformers in float32 over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

PACKED = ("qweight", "qzeros", "scales", "g_idx")


def keep_expected(folder: Path, weights: Mapping[str, torch.Tensor], probe: list[int], producer: str) -> None:
    """Write `expected/` beside the saved model in `folder`.

    `weights` are the decoded matrices [out, in] by module, in the type in which the producer decodes. `weights.safetensors`
    holds them, `logits.safetensors` the probe `input_ids` [1, tokens] and `logits` [1, tokens, vocabulary] float32, and
    `versions.json` what was installed.
    """
    kept = folder / "expected"
    kept.mkdir()
    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, kept / "weights.safetensors")
    ids = torch.tensor([probe])
    save_file({"input_ids": ids, "logits": _logits(folder, weights, ids)}, kept / "logits.safetensors")
    versions = {name: version(name) for name in (producer, "transformers", "torch")}
    (kept / "versions.json").write_text(json.dumps(versions), encoding="utf-8")


def _logits(folder: Path, weights: Mapping[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Run a plain float32 model whose tensors are those of the saved files, matrices decoded."""
    config = AutoConfig.from_pretrained(folder)
    # A model made of this configuration must not try to be a quantised one.
    vars(config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    state = {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}
    state = {name: value for name, value in state.items() if name.rpartition(".")[2] not in PACKED}
    state |= {f"{name}.weight": value for name, value in weights.items()}
    strange = model.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)
    missing = set(strange.missing_keys) - ({"lm_head.weight"} if config.tie_word_embeddings else set())
    # auto-gptq writes a bias of zeros for every matrix.
    unused = [name for name in strange.unexpected_keys if not name.endswith(".bias") or bool(state[name].any())]
    if missing or unused:
        raise SystemExit(f"the saved model lacks {sorted(missing)} and has {unused} that nothing uses")
    with torch.inference_mode():
        logits: torch.Tensor = model(ids, use_cache=False).logits
    return logits.float().contiguous()
