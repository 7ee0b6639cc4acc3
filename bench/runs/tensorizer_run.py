"""tensorizer: reads its own file format; `--convert` writes that file once, untimed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.runs.stopwatch import Stopwatch, model_files
from bench.runs.tensors_run import measure


def main() -> None:
    """Convert or measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--convert", action="store_true")
    options = parser.parse_args()
    if options.convert:
        convert(options.model, options.file)
        return
    stopwatch = Stopwatch()

    import torch
    from tensorizer import TensorDeserializer

    def load() -> tuple[dict[str, torch.Tensor], object]:
        deserializer = TensorDeserializer(str(options.file), device="cpu")
        return {name: deserializer[name].data for name in deserializer.keys()}, deserializer  # noqa: SIM118

    measure(stopwatch, load)


def convert(model: Path, file: Path) -> None:
    """Write the tensors of a checkpoint as one `.tensors` file. It is complete or absent."""
    from safetensors.torch import load_file
    from tensorizer import TensorSerializer

    scratch = file.with_suffix(".making")
    serializer = TensorSerializer(str(scratch))
    serializer.write_state_dict({name: value for part in model_files(model) for name, value in load_file(part).items()})
    serializer.close()
    os.replace(scratch, file)


if __name__ == "__main__":
    main()
