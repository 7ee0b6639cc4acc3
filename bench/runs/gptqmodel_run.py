"""gptqmodel on the CPU: its own loader and the kernel that it chooses, in bfloat16."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.runs.decoding import decode_rate
from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import PROMPT, Stopwatch, report


def main() -> None:
    """Load, decode, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--decode", type=int, required=True)
    options = parser.parse_args()
    stopwatch = Stopwatch()

    import torch

    # Its thread pools refuse to start on a machine with few cores, so they are told of more while they are made.
    cores = os.cpu_count
    os.cpu_count = lambda: max(16, cores() or 0)

    from gptqmodel import GPTQModel
    from transformers.models.llama import modeling_llama  # noqa: F401  (the load shall not pay for imports)

    stopwatch.mark("imported")
    stopwatch.gate()
    with stopwatch.phase("load"):
        model = GPTQModel.load(str(options.model), device="cpu", dtype=torch.bfloat16)
    memory = own_memory()
    prompt = torch.tensor([PROMPT])

    def generate(count: int) -> list[int]:
        with torch.inference_mode():
            made = model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False
            )
        answer: list[int] = made[0, len(PROMPT) :].tolist()
        return answer

    generate(1)
    stopwatch.mark("first_token")
    rate, tokens = decode_rate(generate, options.decode)
    kernels = sorted({type(module).__name__ for module in model.model.modules() if hasattr(module, "qweight")})
    nbytes = sum(file.stat().st_size for file in options.model.glob("*.safetensors"))
    report(
        stopwatch.seconds,
        nbytes=nbytes,
        memory=memory,
        detail={"tokens_per_second": rate},
        tokens=tokens,
        notes=[f"kernel {', '.join(kernels) or 'not told'}"],
    )


if __name__ == "__main__":
    main()
