"""vLLM on the CPU, eager, without its prefix cache."""

from __future__ import annotations

import os
from typing import Any

from bench.runs.process_memory import own_memory
from bench.runs.serving_workload import Prompts, measure, parser
from bench.runs.stopwatch import Stopwatch, report
from bench.runs.vllm_run import SETTINGS

BINDING = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's variable with the processors of every rank. By itself it leaves one free for its other processes."""


def main() -> None:
    """Load, serve, report."""
    made = parser()
    made.add_argument("--tp", type=int, default=1)
    made.add_argument("--all-cores", action="store_true", help="one rank computes on all processors")
    options = made.parse_args()
    stopwatch = Stopwatch()
    os.environ.update(SETTINGS)
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    if options.tp > 1:
        os.environ[BINDING] = "|".join(cores[rank % len(cores)] for rank in range(options.tp))
    elif options.all_cores:
        os.environ[BINDING] = ",".join(cores)

    from vllm import LLM, SamplingParams

    stopwatch.mark("imported")
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_model_len": max(options.first) + options.answer,
        "max_num_seqs": max(options.batches),
    }
    engine = LLM(str(options.model), tensor_parallel_size=options.tp, **settings)
    stopwatch.mark("loaded")

    def serve(prompts: Prompts, tokens: int) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        answers = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [[*answer.outputs[0].token_ids] for answer in answers]

    detail, tokens = measure(serve, options)
    nbytes = sum(file.stat().st_size for file in options.model.glob("*.safetensors"))
    report(stopwatch.seconds, nbytes=nbytes, memory=own_memory(), detail=detail, tokens=tokens)


if __name__ == "__main__":
    main()
