"""safetensors: `load_file` of every file; with `--clone` every tensor is copied to private memory."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.runs.stopwatch import Stopwatch, model_files
from bench.runs.tensors_run import measure


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--clone", action="store_true")
    options = parser.parse_args()
    stopwatch = Stopwatch()

    import torch
    from safetensors.torch import load_file

    def load() -> tuple[dict[str, torch.Tensor], object]:
        tensors = {}
        for file in model_files(options.model):
            for name, tensor in load_file(file).items():
                tensors[name] = tensor.clone() if options.clone else tensor
        return tensors, None

    measure(stopwatch, load)


if __name__ == "__main__":
    main()
