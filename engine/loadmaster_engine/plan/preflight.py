"""What can be refused from the configuration alone, before modelling code is imported or a worker started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from loadmaster_engine.attribution import AttributedStrategy
from loadmaster_engine.plan.claims import settings_of
from loadmaster_engine.plan.element_types import CHOICES
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_hookspecs.errors import PlanError, UsageError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import FileReader, ModelOutline
from loadmaster_hookspecs.plan import PlanSettings, ReadMode
from loadmaster_hookspecs.sharding import Topology

STRATEGY = "tensor-parallel"
DEVICES = ("cpu", "cuda")
READ_MODES = get_args(ReadMode)
ADAPTER_MODES = get_args(AdapterMode)


def topology_of(settings: PlanSettings) -> Topology:
    """Return the ranks that the settings ask for."""
    return Topology(tensor_parallel=settings.tensor_parallel, equal=settings.equal_ranks)


def check_settings(settings: PlanSettings) -> None:
    """Raise UsageError for a setting that no plan could follow, listing the values that exist."""
    if settings.tensor_parallel < 1:
        raise UsageError(
            "LM-USAGE-TP", f"tensor parallel size must be at least 1, not {settings.tensor_parallel}", hints=["use --tp 1"]
        )
    for code, name, value, known in (
        ("LM-USAGE-DTYPE", "dtype", settings.dtype, CHOICES),
        ("LM-USAGE-ADAPTER", "adapter mode", settings.adapter_mode, ADAPTER_MODES),
        ("LM-USAGE-DEVICE", "device", settings.device, DEVICES),
        ("LM-USAGE-READ-MODE", "read mode", settings.read_mode, READ_MODES),
    ):
        if value not in known:
            raise UsageError(code, f"unknown {name} {value!r}", hints=[f"use one of: {', '.join(known)}"])


def preflight(host: PluginHost, index: CheckpointIndex, settings: PlanSettings, read: FileReader) -> ModelOutline:
    """Judge settings and split and return the model's outline. Imports no torch and reads small files beside the weights only.

    Raises UsageError for unknown settings and PlanError naming module, sizes and the sizes that work when the model cannot be
    split as asked.
    """
    check_settings(settings)
    family = host.match_family(index.config)
    with host.attributed(family, f"outline of model family {family.name}"):
        outline = family.outline(index.config)
    findings = AttributedStrategy(host, host.strategy(STRATEGY)).check(outline, topology_of(settings))
    raise_errors([*findings, *_groups(host, index, settings, outline, read)])
    return outline


def _groups(
    host: PluginHost, index: CheckpointIndex, settings: PlanSettings, outline: ModelOutline, read: FileReader
) -> Iterator[Finding]:
    """Yield an error for every width that equal ranks could share only by cutting a scale group, or by padding it."""
    world = settings.tensor_parallel
    if not settings.equal_ranks or world == 1:
        return
    for name, said in settings_of(host, index.config, read).items():
        quantizer = host.quantizer(name)
        with host.attributed(quantizer, f"outline of quantizer {name}"):
            quantised = quantizer.outline(said)
        group = quantised.group_size if quantised else 0
        for width, size in outline.widths.items() if group else ():
            works = group_aligned(size, group)
            if world not in works:
                yield Finding(
                    level="error",
                    code="LM-PLAN-GROUPS",
                    where=f"{outline.architecture} {width}",
                    message=f"{size} columns in groups of {group} cannot be divided equally over {world} ranks",
                    fix=f"equal sizes that work: {', '.join(map(str, works))}; or allow uneven ranks, which work at any size",
                )


def group_aligned(size: int, group: int, limit: int = 64) -> list[int]:
    """Return the numbers of equal parts, up to `limit`, into which `size` columns can be cut at the borders of groups."""
    return [parts for parts in range(1, limit + 1) if size % (group * parts) == 0] or [1]


def raise_errors(findings: Sequence[Finding]) -> None:
    """Raise PlanError for the findings of level `error`, all of them in one message."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise PlanError(
            errors[0].code,
            errors[0].message,
            where={"module": errors[0].where},
            why="; ".join(finding.message for finding in errors[1:]),
            hints=[finding.fix for finding in errors if finding.fix],
        )
