"""vLLM on the CPU, eager: process start to first token. Its own log tells when weights are loaded, and how long that took."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

from bench.runs.decoding import decode_rate
from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import BALLAST, PROMPT, Stopwatch, release_ballast, report

GATE_LINE = "Starting to load model"
WEIGHTS_LINE = re.compile(r"Loading weights took ([\d.]+) seconds")

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def main() -> None:
    """Load, generate one token, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--decode", type=int, default=0, help="tokens after the first whose speed is measured")
    options = parser.parse_args()
    stopwatch = Stopwatch()
    os.environ.update(SETTINGS)
    if options.tp > 1:
        cores = sorted(os.sched_getaffinity(0))
        # Its own choice of cores asks for a NUMA node per worker, which small machines do not have.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(options.tp))
    log = LogWatch(stopwatch)

    from vllm import LLM, SamplingParams

    stopwatch.mark("imported")
    settings: dict[str, Any] = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 512}
    engine = LLM(str(options.model), tensor_parallel_size=options.tp, **settings)
    stopwatch.mark("loaded")

    def generate(count: int) -> list[int]:
        sampling = SamplingParams(max_tokens=count, temperature=0.0)
        answer = engine.generate([{"prompt_token_ids": list(PROMPT)}], sampling, use_tqdm=False)
        return [*answer[0].outputs[0].token_ids]

    tokens = generate(1)
    stopwatch.mark("first_token")
    memory = own_memory()
    detail: dict[str, float] = {}
    if options.decode:
        detail["tokens_per_second"], tokens = decode_rate(generate, options.decode)
    if log.weights:
        stopwatch.seconds["load"] = max(log.weights)
    notes = ["load is vLLM's own figure for reading weights; it repacks them afterwards, so they cannot be summed"]
    nbytes = sum(file.stat().st_size for file in options.model.glob("*.safetensors"))
    log.close()
    report(stopwatch.seconds, nbytes=nbytes, memory=memory, detail=detail, tokens=tokens, notes=notes)


class LogWatch:
    """Reads what this process and its children print and passes it on; frees the ballast on the gate's line."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.weights: list[float] = []
        self._stopwatch = stopwatch
        self._stdout = os.dup(1)
        self._stderr = os.dup(2)
        self._reading, writing = os.pipe()
        for stream in (1, 2):
            os.dup2(writing, stream)
        os.close(writing)
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Give standard output and error back; children that still print keep the pipe."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._stdout, 1)
        os.dup2(self._stderr, 2)

    def _watch(self) -> None:
        rest = ""
        while data := os.read(self._reading, 1 << 16):
            os.write(self._stderr, data)
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            for line in lines:
                self._note(line)

    def _note(self, line: str) -> None:
        if GATE_LINE in line and "load_asked" not in self._stopwatch.seconds:
            self._stopwatch.mark("load_asked")
            # Nobody waits for this: vLLM goes on while the memory is being freed.
            release_ballast(os.environ.get(BALLAST, ""))
        if found := WEIGHTS_LINE.search(line):
            self.weights.append(float(found[1]))


if __name__ == "__main__":
    main()
