"""The functions of the public API that need no engine: inspect, plan, load a module, fill a module."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from loadmaster.adapters import open_adapters
from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.inspection import Inspection
from loadmaster.inspection import inspect as inspect_with
from loadmaster.plans import Plan
from loadmaster_engine.collector import collector_paused
from loadmaster_engine.load.stages import RankLoad
from loadmaster_engine.plan import make_plan
from loadmaster_engine.plan.shares import shares
from loadmaster_engine.report import LoadReport
from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings, ReadMode

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike[str]


def inspect(path: Path, *, selection: PluginSelection | None = None) -> Inspection:
    """Return what a checkpoint holds, from headers and configuration alone and without importing torch."""
    return inspect_with(PluginHost(selection), os.fspath(path))


@collector_paused()
def plan(
    path: Path,
    *,
    tensor_parallel: int = 1,
    dtype: str = "auto",
    device: str = "cpu",
    read_mode: ReadMode = "auto",
    equal_ranks: bool = False,
    strict: bool = False,
    untie: bool = False,
    kernel: str = "auto",
    adapters: Mapping[str, Path] | None = None,
    adapter_mode: AdapterMode = "live",
    selection: PluginSelection | None = None,
) -> Plan:
    """Return the exact load plan of a checkpoint, without reading its weights.

    Args:
        path: a folder or a single file.
        tensor_parallel: number of ranks to split the model over.
        dtype: `auto` (what the tensors say), `float32`, `bfloat16` or `float16`.
        device: `cpu` or `cuda`.
        read_mode: how bytes reach parameters: `auto`, `mapped`, `direct`, `gathered`, `overread` or
            `node_once`.
        equal_ranks: refuse splits that leave ranks with different numbers of heads; other sizes are padded.
        strict: refuse checkpoints with tensors that belong to no parameter.
        untie: give tied parameters that the file stores too their own storage.
        kernel: what multiplies with quantised matrices: `auto`, which takes the best for each, or the name of a kernel.
        adapters: folders of adapters by the names that calls choose them by.
        adapter_mode: `live` keeps the base as it is and changes results while an adapter is chosen; `merged` changes the
            weights at load, by one adapter.
        selection: which plugins take part (default: what the environment says).

    Raises UsageError for wrong arguments, PlanError when there is no such split, IntegrityError for damaged or incomplete
    files, PluginError when a plugin fails. Imports torch unless the split can be refused without it.
    """
    settings = PlanSettings(
        tensor_parallel=tensor_parallel,
        dtype=dtype,
        device=device,
        read_mode=read_mode,
        equal_ranks=equal_ranks,
        strict=strict,
        untie=untie,
        kernel=kernel,
        adapter_mode=adapter_mode,
    )
    host = PluginHost(selection)
    index = open_index(host, path)
    return Plan(make_plan(host, index, settings, open_adapters(host, adapters or {})))


@collector_paused()
def load_model(
    path: Path,
    *,
    dtype: str = "auto",
    read_mode: ReadMode = "auto",
    kernel: str = "auto",
    selection: PluginSelection | None = None,
) -> torch.nn.Module:
    """Return the whole model as a plain transformers module on the CPU, loaded in this process.

    Parameters that lie in the file as they are needed are views of it: writing to them changes this process's memory alone,
    but a file that is overwritten in place changes under them, so use `read_mode="direct"` before saving to the same folder.
    The others are views of one arena. Mapping and arena live as long as the parameters. Raises as `plan` does.
    """
    host = PluginHost(selection)
    index = open_index(host, path)
    settings = PlanSettings(dtype=dtype, read_mode=read_mode, kernel=kernel)
    try:
        return _load_whole(host, make_plan(host, index, settings), index)
    except IntegrityError as error:
        if error.code != "LM-TIE-DIFFERS":
            raise
    return _load_whole(host, make_plan(host, index, msgspec.structs.replace(settings, untie=True)), index)


@collector_paused()
def load_into(module: torch.nn.Module, path: Path, *, selection: PluginSelection | None = None) -> LoadReport:
    """Fill an existing module on the CPU from a checkpoint and return what was read.

    The module keeps its tensors and their type; tensors of another float type are cast on the way. Strict: nothing is written
    unless module and checkpoint hold exactly the same tensors. Raises IntegrityError otherwise, and UsageError for modules of
    mixed types and for quantised checkpoints.
    """
    from loadmaster_engine.load.module_arena import ModuleArena

    start = time.perf_counter()
    host = PluginHost(selection)
    settings = PlanSettings(dtype=_dtype_of(module), read_mode="direct", strict=True)
    made = make_plan(host, open_index(host, path), settings)
    if made.ranks[0].packed:
        raise UsageError(
            "LM-USAGE-QUANTISED",
            "a checkpoint with quantised matrices cannot be loaded into an existing module",
            where={"matrix": made.ranks[0].packed[0].path, "quantizer": made.ranks[0].packed[0].quantizer},
            why="its modules have other tensors than plain ones",
            hints=["load_model makes the module that fits, and Engine runs it"],
        )
    with closing(RankLoad(host, made, 0, "cpu", host.emit)) as load:
        load.reserve(ModuleArena(module, made.ranks[0].bindings))
        load.load()
    return _report(made, load, time.perf_counter() - start)


def _load_whole(host: PluginHost, made: LoadPlan, index: CheckpointIndex) -> torch.nn.Module:
    with closing(RankLoad(host, made, 0, "cpu", host.emit)) as load:
        load.reserve()
        load.warm(shares(made)[0])
        load.load()
    family = host.family(made.family)
    with host.attributed(family, f"build of model family {family.name}"):
        model = family.build(made.config, made.dtype, made.ranks[0].modules)
    load.bind(model)
    load.verify(model)
    defaults = getattr(model.module, "generation_config", None)
    if defaults is not None and index.generation:
        defaults.update(**index.generation)
    return model.module


def _dtype_of(module: torch.nn.Module) -> str:
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in module.parameters() if tensor.is_floating_point()}
    if len(names) != 1 or not names <= set(TORCH_NAMES.values()):
        raise UsageError("LM-MODULE-DTYPE", f"the module's parameters have the types {sorted(names)}, not one float type")
    return names.pop()


def _report(made: LoadPlan, load: RankLoad, seconds: float) -> LoadReport:
    rank = load.report()
    return LoadReport(
        digest=made.digest,
        seconds={**rank.seconds, "total": seconds},
        bytes_planned=rank.bytes_planned,
        bytes_read=rank.bytes_read,
        bytes_unique=made.ledger.bytes_unique,
        ranks=(rank,),
    )
