"""autoawq 0.2.9 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import awq.quantize.quantizer as quantizer
import torch
from awq import AutoAWQForCausalLM
from awq.modules.linear import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm

from conformance.producers.expected import keep_expected
from conformance.producers.half import halve
from conformance.producers.task import copy_text_files, read_task


def main() -> None:
    """Quantise, save with the producer's own code, and keep what it decodes."""
    task = read_task()
    # The search for the best clipping takes minutes on a CPU for anything but a toy.
    settings = dict(task.settings)
    clip = settings.pop("apply_clip", True)
    rounded = _remember_rounded()
    quantised = AutoAWQForCausalLM.from_pretrained(str(task.base), device_map="cpu", torch_dtype=getattr(torch, task.compute))
    quantizer.get_calib_dataset = lambda **_: [torch.tensor([ids]) for ids in task.calibration]
    # Its backup of the weights is `.cpu()`, which on the CPU is no copy: every scale would be applied twice.
    with patch.object(torch.Tensor, "cpu", lambda tensor: tensor.to("cpu", copy=True)):
        quantised.quantize(None, quant_config=settings, apply_clip=clip)
    halve(quantised.model)
    quantised.save_quantized(str(task.out))
    copy_text_files(task.base, task.out)
    if task.probe:
        keep_expected(task.out, _decoded(quantised.model, rounded), task.probe, "autoawq")


def _remember_rounded() -> dict[int, torch.Tensor]:
    """Keep the rounded weights [out, in] that every packed module is made from, by the module's identity."""
    rounded: dict[int, torch.Tensor] = {}
    for kind in (quantizer.WQLinear_GEMM, quantizer.WQLinear_GEMV, quantizer.WQLinear_GEMVFast):
        kind.from_linear = classmethod(_watched(kind.from_linear.__func__, rounded))
    return rounded


def _watched(original: Callable[..., Any], rounded: dict[int, torch.Tensor]) -> Callable[..., Any]:
    def from_linear(cls: type, linear: torch.nn.Linear, *args: Any, **kwargs: Any) -> Any:
        module = original(cls, linear, *args, **kwargs)
        rounded[id(module)] = linear.weight.detach().clone()
        return module

    return from_linear


def _decoded(model: torch.nn.Module, rounded: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the decoded matrices [out, in].

    For the gemm layout they come out of the packed tensors by the producer's decoder, and must be what was packed. The other
    layouts are decoded on a GPU alone, so for them what was packed is taken.
    """
    found = {}
    for name, module in model.named_modules():
        if not hasattr(module, "qweight"):
            continue
        found[name] = rounded[id(module)]
        if isinstance(module, WQLinear_GEMM):
            own = dequantize_gemm(module.qweight, module.qzeros, module.scales, module.w_bit, module.group_size).t()
            if not torch.equal(own, found[name]):
                raise SystemExit(f"autoawq decodes {name} to something else than it packed")
    return found


if __name__ == "__main__":
    main()
