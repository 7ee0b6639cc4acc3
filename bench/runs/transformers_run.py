"""transformers: `from_pretrained` and `generate`; under torchrun with its own tensor parallelism."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.runs.process_memory import tree_memory
from bench.runs.stopwatch import PROMPT, Stopwatch, model_files, report, wants_check
from bench.runs.sums import Sums, merge_sums, tensor_sum
from bench.runs.touch import touch

if TYPE_CHECKING:
    import torch


def main() -> None:
    """Load, generate one token, report. In a group of ranks the first one reports for all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--touch", action="store_true")
    options = parser.parse_args()
    stopwatch = Stopwatch()
    world = int(os.environ.get("WORLD_SIZE", "1"))

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.llama import modeling_llama  # noqa: F401  (the load shall not pay for imports)

    stopwatch.mark("imported")
    if world > 1:
        torch.distributed.init_process_group("gloo")
    settings: dict[str, Any] = {"tp_plan": "auto"} if world > 1 else {}
    stopwatch.gate()
    with stopwatch.phase("load"):
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, **settings)
    tensors = {name: _local(value) for name, value in model.named_parameters()}
    if options.touch:
        with stopwatch.phase("touch"):
            touch(tensors.values())
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False)
    if not options.touch:
        stopwatch.mark("first_token")
    if world > 1:
        torch.distributed.barrier()
    memory = tree_memory(os.getppid() if world > 1 else os.getpid())
    # The ranks that are done must not be gone while the first one counts their memory.
    if world > 1:
        torch.distributed.barrier()
    found: dict[str, Any] = {
        "seconds": stopwatch.seconds,
        "nbytes": sum(value.numel() * value.element_size() for value in tensors.values()),
        "sums": _sums(tensors, options.model) if wants_check() else None,
    }
    ranks = _gathered(found, world)
    if ranks:
        seconds = {name: max(rank["seconds"].get(name, 0.0) for rank in ranks) for name in found["seconds"]}
        sums = merge_sums([rank["sums"] for rank in ranks]) if found["sums"] else None
        report(seconds, nbytes=sum(rank["nbytes"] for rank in ranks), memory=memory, tokens=answer[0, -1:].tolist(), sums=sums)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    to_local = getattr(parameter, "to_local", None)
    local: torch.Tensor = to_local() if to_local else parameter
    return local.detach()


def _sums(tensors: dict[str, torch.Tensor], folder: Path) -> Sums:
    """Sum what this rank holds; a dimension that is shorter than in the file is the one that was cut, evenly."""
    shapes = stored_shapes(folder)
    rank = int(os.environ.get("RANK", "0"))
    sums: Sums = {"whole": {}, "parts": {}}
    for name, tensor in tensors.items():
        cut = [own != stored for own, stored in zip(tensor.shape, shapes[name], strict=True)]
        start = tuple(size * rank if was_cut else 0 for size, was_cut in zip(tensor.shape, cut, strict=True))
        sums["parts" if any(cut) else "whole"][name] = tensor_sum(tensor, start)
    return sums


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of every stored tensor, from the headers."""
    shapes: dict[str, list[int]] = {}
    for file in model_files(folder):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


def _gathered(found: dict[str, Any], world: int) -> list[dict[str, Any]]:
    """Return what all ranks found on the first rank, and nothing on the others."""
    if world == 1:
        return [found]
    import torch

    folder = Path(tempfile.gettempdir()) / f"bench-{os.environ['MASTER_PORT']}-{os.getppid()}"
    folder.mkdir(exist_ok=True)
    rank = torch.distributed.get_rank()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    gathered = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))] if rank == 0 else []
    torch.distributed.barrier()
    (folder / f"{rank}.json").unlink()
    torch.distributed.barrier()
    if rank == 0:
        folder.rmdir()
    torch.distributed.destroy_process_group()
    return gathered


if __name__ == "__main__":
    main()
