"""auto-gptq 0.7.1 on the CPU."""

from __future__ import annotations

import sys

import torch
from auto_gptq import BaseQuantizeConfig
from auto_gptq.modeling import LlamaGPTQForCausalLM, Qwen2GPTQForCausalLM
from auto_gptq.modeling._const import CPU
from transformers import AutoModelForCausalLM

from conformance.producers.expected import keep_expected
from conformance.producers.half import halve
from conformance.producers.task import copy_text_files, read_task

CLASSES = {"llama": LlamaGPTQForCausalLM, "qwen2": Qwen2GPTQForCausalLM}


def main() -> None:
    """Quantise, save with the producer's own code, and keep what its modules compute."""
    task = read_task()
    _stay_on_cpu()
    model = AutoModelForCausalLM.from_pretrained(task.base, torch_dtype=getattr(torch, task.compute))
    vars(model)["seqlen"] = len(task.calibration[0])
    # `from_pretrained` of the producer insists on CUDA; this is what it does afterwards.
    quantised = CLASSES[model.config.model_type](model, False, BaseQuantizeConfig(**task.settings))
    samples = [{"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))} for ids in task.calibration]
    quantised.quantize(samples, cache_examples_on_gpu=False)
    halve(quantised.model)
    quantised.save_quantized(str(task.out))
    copy_text_files(task.base, task.out)
    if task.probe:
        keep_expected(task.out, _decoded(quantised.model), task.probe, "auto-gptq")


def _stay_on_cpu() -> None:
    """Point the device that the package has written into its modules at the CPU."""
    for name, module in list(sys.modules.items()):
        if name.startswith("auto_gptq.") and hasattr(module, "CUDA_0"):
            vars(module)["CUDA_0"] = CPU
    torch.cuda.synchronize = lambda *_: None


@torch.inference_mode()
def _decoded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what the packed modules multiply with: one row of the identity picks out one column of the matrix, exactly."""
    packed = {name: module for name, module in model.named_modules() if hasattr(module, "qweight")}
    found = {}
    for name, module in packed.items():
        module.bias, bias = None, module.bias
        found[name] = module(torch.eye(module.infeatures, dtype=torch.float16)).t()
        module.bias = bias
    return found


if __name__ == "__main__":
    main()
