"""gptqmodel 7.7 on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

# Its thread pools refuse to start on a machine with few cores.
os.cpu_count = lambda: 16

from gptqmodel import BACKEND, GPTQModel, QuantizeConfig  # noqa: E402  (reads the number of cores while it is imported)

from conformance.producers.expected import keep_expected  # noqa: E402
from conformance.producers.task import read_task  # noqa: E402


def main() -> None:
    """Quantise, save, load again with the producer's plain kernel, and keep what that decodes."""
    task = read_task()
    config = QuantizeConfig(device="cpu", offload_to_disk=False, **task.settings)
    model = GPTQModel.load(str(task.base), config, dtype=getattr(torch, task.compute))
    samples = [{"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))} for ids in task.calibration]
    model.quantize(samples, batch_size=1)
    model.save(str(task.out))
    if task.probe:
        keep_expected(task.out, _decoded(task.out), task.probe, "gptqmodel")


@torch.inference_mode()
def _decoded(folder: Path) -> dict[str, torch.Tensor]:
    """Return the matrices [out, in] of the saved model, decoded in float16 by the producer's plain kernel."""
    model = GPTQModel.load(str(folder), backend=BACKEND.GPTQ_TORCH, device="cpu", dtype=torch.float16).model
    packed = {name: module for name, module in model.named_modules() if hasattr(module, "dequantize_weight")}
    return {name: module.dequantize_weight().t() for name, module in packed.items()}


if __name__ == "__main__":
    main()
