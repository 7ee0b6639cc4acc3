"""What a LoRA does to a model: its pairs of factors, its replaced parameters, and what is worth a remark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, Replacement, StoredAdapter
from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.lora.pairs import ROLES, make_part
from loadmaster_plugins.lora.settings import Settings, pattern_key, read_settings
from loadmaster_plugins.peft_files.config import FILE
from loadmaster_plugins.peft_files.matching import Changes, Scene, match

PAIRS: Final = Changes("pairs", ROLES, ("linear", "embedding"))


def claim(stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
    """Return the adapter's parts and replacements.

    Raises PlanError LM-ADAPTER-FIELD or LM-ADAPTER-UNMATCHED for what cannot be honoured or belongs nowhere, and IntegrityError
    LM-ADAPTER-MISSING, LM-ADAPTER-TARGET or LM-ADAPTER-SHAPE where tensors and configuration contradict each other.
    """
    settings = read_settings(stored.config)
    scene = match(stored, settings.config, modules, PAIRS)
    parts = tuple(make_part(settings, stored, path, scene.module(path), roles) for path, roles in scene.names.changed.items())
    replacements = scene.replacements()
    return AdapterClaim(
        summary=_summary(scene, settings, parts, replacements),
        parts=parts,
        replacements=replacements,
        findings=(*settings.findings, *scene.remarks(), *_remarks(scene, settings, parts)),
    )


def _remarks(scene: Scene, settings: Settings, parts: Sequence[AdapterPart]) -> Iterator[Finding]:
    """Yield scales that differ, and patterns without effect."""
    scales = _scales(scene, settings, parts)
    if len(scales) > 1:
        table = "; ".join(f"{kind} on {len(paths)} modules, first {paths[0]}" for kind, paths in scales.items())
        yield Finding(level="info", code="LM-ADAPTER-SCALES", where=FILE, message=f"scales differ: {table}")
    for field in ("rank_pattern", "alpha_pattern"):
        patterns = getattr(settings.config, field)
        used = {pattern_key(patterns, path) for path in scene.names.changed}
        for key in patterns.keys() - used:
            message = f"{field} has {key!r}, which fits no module of the adapter"
            yield Finding(level="warning", code="LM-ADAPTER-PATTERN", where=FILE, message=message)


def _scales(scene: Scene, settings: Settings, parts: Sequence[AdapterPart]) -> dict[str, list[str]]:
    scales: dict[str, list[str]] = defaultdict(list)
    for part in parts:
        alpha = settings.alpha(scene.repair.stored_path(part.path))
        scales[f"scale {part.scale:g} (r {part.axes['rank']}, alpha {alpha:g})"].append(part.path)
    return scales


def _summary(scene: Scene, settings: Settings, parts: Sequence[AdapterPart], replacements: Sequence[Replacement]) -> str:
    scales = _scales(scene, settings, parts)
    facts = [
        "DoRA" if settings.config.use_dora else "LoRA",
        scene.matched(),
        str(scene.repair),
        next(iter(scales), "") if len(scales) <= 1 else f"{len(scales)} different scales",
        f"{len(replacements)} parameters replaced" if replacements else "",
    ]
    return ", ".join(filter(None, facts))
