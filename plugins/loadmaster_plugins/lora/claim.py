"""What a LoRA does to a model: every stored tensor finds its module, or the adapter is refused with those that do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, Replacement, StoredAdapter
from loadmaster_hookspecs.errors import IntegrityError, PlanError
from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.lora.names import Repair, Sorted, find_repair, nearest, sort_names
from loadmaster_plugins.lora.pairs import make_part
from loadmaster_plugins.lora.settings import FILE, Settings, pattern_key, read_settings

SHOWN: Final = 8
"""Offenders that a message lists, at most."""

CHANGEABLE: Final = ("linear", "embedding")


class Scene(NamedTuple):
    """An adapter's settings and tensors, the model's modules by path, and the repair of names between them."""

    stored: StoredAdapter
    settings: Settings
    names: Sorted
    modules: Mapping[str, AdapterModule]
    repair: Repair


def claim(stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
    """Return the adapter's parts and replacements.

    Raises PlanError LM-ADAPTER-FIELD or LM-ADAPTER-UNMATCHED for what cannot be honoured or belongs nowhere, and IntegrityError
    LM-ADAPTER-MISSING, LM-ADAPTER-TARGET or LM-ADAPTER-SHAPE where tensors and configuration contradict each other.
    """
    settings = read_settings(stored.config)
    names = sort_names(stored.tensors)
    by_path = {module.path: module for module in modules}
    repair = find_repair([*names.pairs, *names.plain], by_path)
    scene = Scene(stored, settings, names, by_path, repair)
    _refuse_unmatched(scene)
    _refuse_untargeted(scene)
    parts = tuple(
        make_part(settings, stored, path, by_path[repair.model_path(path)], roles) for path, roles in names.pairs.items()
    )
    replacements = tuple(
        Replacement(path=repair.model_path(path), name=name, tensor=tensor)
        for path, own in names.plain.items()
        for name, tensor in own.items()
    )
    if not parts and not replacements:
        raise IntegrityError("LM-ADAPTER-EMPTY", "the adapter has no tensors", where={"adapter": stored.name})
    return AdapterClaim(
        summary=_summary(scene, parts, replacements),
        parts=parts,
        replacements=replacements,
        findings=(*settings.findings, *_remarks(scene, parts)),
    )


def _refuse_unmatched(scene: Scene) -> None:
    """Raise PlanError LM-ADAPTER-UNMATCHED for tensors of modules, or parameters, that the model does not have."""
    offenders: list[str] = []
    for path in scene.names.pairs:
        module = scene.modules.get(scene.repair.model_path(path))
        if module is None:
            offenders.append(f"{path} (nearest: {nearest(path, _changeable(scene.modules))})")
        elif module.kind not in CHANGEABLE:
            offenders.append(f"{path} (a module of kind {module.kind!r}: only linear layers and embeddings can be changed)")
    lost = len(offenders)
    for path, own in scene.names.plain.items():
        module = scene.modules.get(scene.repair.model_path(path))
        offenders += (f"{tensor} ({fault})" for name, tensor in own.items() if (fault := _fault(scene, path, name, module)))
    if not offenders:
        return
    pairs = len(scene.names.pairs)
    more = f"; and {len(offenders) - SHOWN} more" if len(offenders) > SHOWN else ""
    raise PlanError(
        "LM-ADAPTER-UNMATCHED",
        f"{len(offenders)} parts of the adapter belong to nothing in the model: {pairs - lost} of {pairs} pairs match",
        where={"adapter": scene.stored.name},
        why="; ".join(offenders[:SHOWN]) + more,
        hints=["the adapter was made for another model, or for another version of its code"],
    )


def _fault(scene: Scene, path: str, name: str, module: AdapterModule | None) -> str:
    """Return why a plain tensor cannot replace a parameter, or an empty string."""
    if module is None:
        return f"no such module; nearest: {nearest(path, scene.modules)}"
    if name not in module.parameters:
        return "the module's weight is quantised" if module.quantised else f"the module has no {name}"
    config = scene.settings.config
    biased = name == "bias" and (config.bias == "all" or (config.bias == "lora_only" and path in scene.names.pairs))
    vocabulary = name == "weight" and (module.kind == "embedding" or module.head)
    if not (biased or vocabulary or scene.settings.saves(path)):
        return f"neither modules_to_save nor bias in {FILE} speaks of it"
    return ""


def _refuse_untargeted(scene: Scene) -> None:
    """Raise IntegrityError where the configuration targets other modules than the file has pairs for."""
    targets = _targets(scene)
    if targets is None:
        return
    surplus = sorted(scene.names.pairs.keys() - targets)
    if surplus:
        raise _contradiction(
            "LM-ADAPTER-TARGET", scene, surplus, "the file has pairs for modules that target_modules leaves out"
        )
    absent = sorted(targets - scene.names.pairs.keys())
    if absent:
        raise _contradiction("LM-ADAPTER-MISSING", scene, absent, "the file has no pairs for modules that target_modules names")
    unsaved = [
        name
        for name in scene.settings.config.modules_to_save or ()
        if not any(path.endswith(name) for path in scene.names.plain)
    ]
    if unsaved:
        raise _contradiction("LM-ADAPTER-MISSING", scene, unsaved, "the file lacks modules that modules_to_save names")


def _targets(scene: Scene) -> set[str] | None:
    """Return the stored paths of the modules that the configuration targets, or None where it does not name any."""
    from peft.tuners.tuners_utils import check_target_module_exists

    config = scene.settings.config
    if config.target_modules is None:
        return None
    shown = {scene.repair.stored_path(path): module for path, module in scene.modules.items() if module.kind in CHANGEABLE}
    if isinstance(config.target_modules, str) and config.target_modules.lower() == "all-linear":
        config.target_modules = {path for path, module in shown.items() if module.kind == "linear" and not module.head}
    return {path for path in shown if check_target_module_exists(config, path)}


def _remarks(scene: Scene, parts: Sequence[AdapterPart]) -> Iterator[Finding]:
    """Yield the repair of names, scales that differ, and patterns without effect."""
    pairs = len(parts)
    if str(scene.repair):
        message = f"{pairs}/{pairs} pairs, {scene.repair}"
        yield Finding(level="info", code="LM-ADAPTER-PREFIX", where=FILE, message=message)
    scales = _scales(scene, parts)
    if len(scales) > 1:
        table = "; ".join(f"{kind} on {len(paths)} modules, first {paths[0]}" for kind, paths in scales.items())
        yield Finding(level="info", code="LM-ADAPTER-SCALES", where=FILE, message=f"scales differ: {table}")
    for field in ("rank_pattern", "alpha_pattern"):
        patterns = getattr(scene.settings.config, field)
        used = {pattern_key(patterns, path) for path in scene.names.pairs}
        for key in patterns.keys() - used:
            message = f"{field} has {key!r}, which fits no module of the adapter"
            yield Finding(level="warning", code="LM-ADAPTER-PATTERN", where=FILE, message=message)


def _scales(scene: Scene, parts: Sequence[AdapterPart]) -> dict[str, list[str]]:
    scales: dict[str, list[str]] = defaultdict(list)
    for part in parts:
        alpha = scene.settings.alpha(scene.repair.stored_path(part.path))
        scales[f"scale {part.scale:g} (r {part.axes['rank']}, alpha {alpha:g})"].append(part.path)
    return scales


def _summary(scene: Scene, parts: Sequence[AdapterPart], replacements: Sequence[Replacement]) -> str:
    pairs = len(parts)
    scales = _scales(scene, parts)
    facts = [
        "DoRA" if scene.settings.config.use_dora else "LoRA",
        f"{pairs}/{pairs} pairs",
        str(scene.repair),
        next(iter(scales), "") if len(scales) <= 1 else f"{len(scales)} different scales",
        f"{len(replacements)} parameters replaced" if replacements else "",
    ]
    return ", ".join(filter(None, facts))


def _changeable(modules: Mapping[str, AdapterModule]) -> list[str]:
    return [path for path, module in modules.items() if module.kind in CHANGEABLE]


def _contradiction(code: str, scene: Scene, paths: Collection[str], summary: str) -> IntegrityError:
    listed = list(paths)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return IntegrityError(
        code,
        summary,
        where={"adapter": scene.stored.name, "file": FILE},
        why=f"{len(listed)}: {', '.join(listed[:SHOWN])}{more}",
        hints=["the configuration and the tensors are not of one adapter: export both again"],
    )
