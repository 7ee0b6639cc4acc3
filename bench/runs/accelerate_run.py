"""accelerate: `load_checkpoint_and_dispatch` into an empty transformers model, then `generate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import PROMPT, Stopwatch, report, wants_check
from bench.runs.sums import whole_sums
from bench.runs.touch import touch


def main() -> None:
    """Load, touch or generate one token, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--touch", action="store_true")
    options = parser.parse_args()
    stopwatch = Stopwatch()

    import torch
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama import modeling_llama  # noqa: F401  (the load shall not pay for imports)

    stopwatch.mark("imported")
    stopwatch.gate()
    with stopwatch.phase("load"):
        with init_empty_weights():
            config = AutoConfig.from_pretrained(options.model)
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        model = load_checkpoint_and_dispatch(model, str(options.model), device_map={"": "cpu"}, dtype=torch.bfloat16)
    tensors = {name: value.detach() for name, value in model.named_parameters()}
    with stopwatch.phase("touch"):
        nbytes = touch(tensors.values())
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False)
    stopwatch.mark("first_token")
    sums = whole_sums(tensors) if wants_check() else None
    report(stopwatch.seconds, nbytes=nbytes, memory=own_memory(), tokens=answer[0, -1:].tolist(), sums=sums)


if __name__ == "__main__":
    main()
