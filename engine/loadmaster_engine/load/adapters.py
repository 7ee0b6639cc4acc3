"""Loading one rank's part of an adapter into an arena of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster_engine.attribution import AttributedFormat, AttributedTransform
from loadmaster_engine.load.arena import reserve
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.transfer import Transfer
from loadmaster_engine.plan.adapter_source import AdapterSource
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError
from loadmaster_hookspecs.plan import AdapterPlan, RankPlan
from loadmaster_hookspecs.transforms import Transform

if TYPE_CHECKING:
    import torch


class LoadedAdapter:
    """An adapter on one rank. Its tensors live as long as somebody holds one of them."""

    def __init__(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> None:
        self.plan = plan
        self.tensors = tensors


def load_adapter(host: PluginHost, plan: AdapterPlan, part: RankPlan, device: str) -> LoadedAdapter:
    """Reserve exactly the planned bytes, fill them, and return the tensors by their names in the plan.

    Raises IntegrityError when a file is not the one that was planned from, or ends early.
    """
    arena = reserve(part.bytes, device, part.rank)

    def transform(name: str, version: int) -> Transform:
        return AttributedTransform(host, host.transform(name, version))

    source = AdapterSource(host.open_source(plan.source))
    files = FileSet(plan, source, AttributedFormat(host, host.format(plan.format)))
    try:
        transfer = Transfer(part, files, arena, transform)
        transfer.run(lambda _: None)
        arena.settle()
    except LoadmasterError as error:
        raise error.located(adapter=plan.name) from error
    finally:
        files.close()
    if transfer.moved != part.bytes_planned:
        raise IntegrityError(
            "LM-VERIFY-BYTES",
            "the bytes read are not the bytes planned",
            where={"rank": part.rank, "adapter": plan.name},
            why=f"{part.bytes_planned} planned, {transfer.moved} read",
        )
    return LoadedAdapter(plan, {binding.parameter: arena.view(binding) for binding in part.bindings})
