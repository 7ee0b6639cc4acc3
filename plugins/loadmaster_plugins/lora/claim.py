"""What a LoRA does to a model: its pairs of factors, its replaced parameters, and what is worth a remark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, Replacement, StoredAdapter
from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.lora.experts import expert_parts
from loadmaster_plugins.lora.pairs import ROLES, make_part
from loadmaster_plugins.lora.parameters import make_wrapped
from loadmaster_plugins.lora.settings import Settings, pattern_key, read_settings
from loadmaster_plugins.peft_files.config import FILE
from loadmaster_plugins.peft_files.matching import match
from loadmaster_plugins.peft_files.scene import Changes, Scene

PAIRS: Final = Changes("pairs", ROLES, ("linear", "embedding"))


def claim(stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
    """Return the adapter's parts and replacements.

    Raises PlanError LM-ADAPTER-FIELD or LM-ADAPTER-UNMATCHED for what cannot be honoured or belongs nowhere, and IntegrityError
    LM-ADAPTER-MISSING, LM-ADAPTER-TARGET or LM-ADAPTER-SHAPE where tensors and configuration contradict each other.
    """
    settings = read_settings(stored.config)
    scene = match(stored, settings.config, modules, PAIRS)
    parts = (
        *(_part(settings, scene, path) for path in scene.paths if scene.repair.model_path(path) not in scene.stacks),
        *expert_parts(settings, scene),
    )
    replacements = scene.replacements()
    return AdapterClaim(
        summary=_summary(scene, settings, replacements),
        parts=parts,
        replacements=replacements,
        findings=(*settings.findings, *scene.remarks(), *_remarks(scene, settings)),
    )


def _part(settings: Settings, scene: Scene, path: str) -> AdapterPart:
    """Return what the pairs of one module do to it."""
    module = scene.module(path)
    if not scene.is_whole(path):
        return make_wrapped(settings, scene, path, module)
    (key,) = scene.keys_of(path)
    return make_part(settings, scene.stored, key, module, scene.names.changed[path])


def _remarks(scene: Scene, settings: Settings) -> Iterator[Finding]:
    """Yield scales that differ, and patterns without effect."""
    scales = _scales(scene, settings)
    if len(scales) > 1:
        table = "; ".join(f"{kind} on {len(paths)} modules, first {paths[0]}" for kind, paths in scales.items())
        yield Finding(level="info", code="LM-ADAPTER-SCALES", where=FILE, message=f"scales differ: {table}")
    for field in ("rank_pattern", "alpha_pattern"):
        patterns = getattr(settings.config, field)
        used = {pattern_key(patterns, key) for key in scene.keys}
        for key in patterns.keys() - used:
            message = f"{field} has {key!r}, which fits no module of the adapter"
            yield Finding(level="warning", code="LM-ADAPTER-PATTERN", where=FILE, message=message)


def _scales(scene: Scene, settings: Settings) -> dict[str, list[str]]:
    """Return what has each scale, by the scale and what it is made of."""
    scales: dict[str, list[str]] = defaultdict(list)
    for key in scene.keys:
        kind = f"scale {settings.scale(key):g} (r {settings.rank(key)}, alpha {settings.alpha(key):g})"
        scales[kind].append(scene.repair.model_path(key))
    return scales


def _summary(scene: Scene, settings: Settings, replacements: Sequence[Replacement]) -> str:
    scales = _scales(scene, settings)
    facts = [
        "DoRA" if settings.config.use_dora else "LoRA",
        scene.matched(),
        str(scene.repair),
        next(iter(scales), "") if len(scales) <= 1 else f"{len(scales)} different scales",
        f"{len(replacements)} parameters replaced" if replacements else "",
    ]
    return ", ".join(filter(None, facts))
