"""fastsafetensors on the CPU, without GPUDirect."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.runs.stopwatch import Stopwatch, model_files
from bench.runs.tensors_run import measure


def main(model: Path) -> None:
    """Measure."""
    stopwatch = Stopwatch()

    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load() -> tuple[dict[str, torch.Tensor], object]:
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
        loader.add_filenames({0: [str(file) for file in model_files(model)]})
        buffers = loader.copy_files_to_device()
        return {name: buffers.get_tensor(name) for name in loader.get_keys()}, (loader, buffers)

    measure(stopwatch, load)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
