"""The environment of every producer, with the versions that its last release works with, and of the reference."""

from __future__ import annotations

from typing import Final

from bench.environments import TORCH, Environment

_NUMPY: Final = "numpy==2.2.6"

ENVIRONMENTS: Final = {
    environment.name: environment
    for environment in (
        # Its package index page has a wheel with CUDA kernels of another torch, which it does without when they do not load.
        Environment(
            name="auto-gptq",
            requirements=(
                *("auto-gptq==0.7.1", "transformers==4.46.3", "tokenizers<0.21", "datasets<4", "huggingface_hub<1"),
                *("peft<0.14", "accelerate<1.3", _NUMPY, TORCH),
            ),
            pinned_as_here=False,
        ),
        Environment(
            name="autoawq",
            requirements=(
                *("autoawq==0.2.9", "transformers==4.51.3", "huggingface_hub<1", "accelerate<1.8", "datasets<4"),
                *(_NUMPY, TORCH),
            ),
            pinned_as_here=False,
        ),
        # It asks for torch 2.14.1 and works with the one that everything else here is tested with.
        Environment(
            name="gptqmodel",
            requirements=(
                *("accelerate==1.15.0", "transformers==5.24.0", "numpy==2.4.6", "safetensors==0.8.0"),
                *("threadpoolctl>=3.7.0", "device-smi>=0.5.7", "protobuf>=7.36.2", "pillow>=13.0.0", "pypcre>=0.6.4"),
                *("tokenicer>=0.0.14", "logbar>=0.4.15", "ninja>=1.13.2", "datasets>=5.1.0", "pyarrow>=26.0.0"),
                *("dill>=0.4.1", "requests>=2.34.2", "torchao>=0.18.0", "defuser>=0.0.28", TORCH),
            ),
            alone=("gptqmodel==7.7.0",),
            pinned_as_here=False,
        ),
    )
}
"""Packages by producer. Their sources are built where there is no wheel; none of them needs a compiler for the CPU."""
