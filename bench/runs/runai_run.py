"""runai-model-streamer: all files streamed, every tensor kept."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.runs.stopwatch import Stopwatch, model_files
from bench.runs.tensors_run import measure


def main(model: Path) -> None:
    """Measure."""
    stopwatch = Stopwatch()

    import torch
    from runai_model_streamer import SafetensorsStreamer

    def load() -> tuple[dict[str, torch.Tensor], object]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(file) for file in model_files(model)])
            return dict(streamer.get_tensors()), None

    measure(stopwatch, load)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
