"""Every stored tensor finds its module, as configuration and names say, or the adapter is refused with those that do not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from loadmaster_hookspecs.adapters import AdapterModule, StoredAdapter
from loadmaster_hookspecs.errors import IntegrityError, PlanError
from loadmaster_hookspecs.models import ModuleKind
from loadmaster_plugins.peft_files.config import FILE
from loadmaster_plugins.peft_files.expressions import check_times
from loadmaster_plugins.peft_files.names import find_repair, nearest, sort_names
from loadmaster_plugins.peft_files.scene import Changes, Scene, expert_layers, targets, wrapped_parameters

SHOWN: Final = 8
"""Offenders that a message lists, at most."""


def match(stored: StoredAdapter, config: Any, modules: Sequence[AdapterModule], changes: Changes) -> Scene:
    """Return which tensors belong to which modules; `config` is that of peft.

    Raises PlanError LM-ADAPTER-CONFIG for expressions that take very long to match, and LM-ADAPTER-UNMATCHED for tensors that
    belong nowhere; IntegrityError LM-ADAPTER-MISSING, LM-ADAPTER-TARGET or LM-ADAPTER-EMPTY where tensors and configuration
    contradict each other.
    """
    names = sort_names(stored.tensors, changes.roles)
    layers, stacks = expert_layers(names, modules)
    by_path = {module.path: module for module in (*modules, *layers)}
    repair = find_repair([*names.changed, *names.inner, *names.plain], by_path)
    scene = Scene(stored, config, changes, names, by_path, repair, wrapped_parameters(config, modules, repair), stacks)
    check_times(config, [*map(repair.stored_path, by_path), *scene.keys])
    _refuse_unmatched(scene)
    _refuse_untargeted(scene)
    _refuse_unsaved(scene)
    if not stored.tensors:
        raise IntegrityError("LM-ADAPTER-EMPTY", "the adapter has no tensors", where={"adapter": stored.name})
    return scene


def _refuse_unmatched(scene: Scene) -> None:
    """Raise PlanError LM-ADAPTER-UNMATCHED for tensors of modules, or parameters, that the model does not have."""
    offenders = list(_lost(scene))
    lost = len(offenders)
    for path, own in scene.names.plain.items():
        module = scene.modules.get(scene.repair.model_path(path))
        offenders += (f"{tensor} ({fault})" for name, tensor in own.items() if (fault := _fault(scene, path, name, module)))
    if not offenders:
        return
    changed = len(scene.paths)
    more = f"; and {len(offenders) - SHOWN} more" if len(offenders) > SHOWN else ""
    raise PlanError(
        "LM-ADAPTER-UNMATCHED",
        f"{len(offenders)} parts of the adapter belong to nothing in the model: "
        f"{changed - lost} of {changed} {scene.changes.noun} match",
        where={"adapter": scene.stored.name},
        why="; ".join(offenders[:SHOWN]) + more,
        hints=["the adapter was made for another model, or for another version of its code"],
    )


def _lost(scene: Scene) -> Iterator[str]:
    """Yield the modules that the model does not have or that cannot be changed, with what is wrong."""
    kinds = scene.changes.kinds
    for path in scene.paths:
        module = scene.modules.get(scene.repair.model_path(path))
        if module is None:
            yield f"{path} (nearest: {nearest(path, [each.path for each in scene.modules.values() if each.kind in kinds])})"
        elif path in scene.wrapped:
            continue
        elif module.kind not in kinds:
            yield (
                f"{path} (a module of kind {module.kind!r}: only {_plural(kinds)} can be changed, and parameters that "
                "target_parameters names)"
            )
        elif path in scene.names.inner:
            yield f"{path} ({scene.changes.noun} inside of others, of parameters that target_parameters does not name)"


def _plural(kinds: Sequence[ModuleKind]) -> str:
    return " and ".join({"linear": "linear layers", "embedding": "embeddings"}.get(kind, kind) for kind in kinds)


def _fault(scene: Scene, path: str, name: str, module: AdapterModule | None) -> str:
    """Return why a plain tensor cannot replace a parameter, or an empty string."""
    if module is None:
        return f"no such module; nearest: {nearest(path, scene.modules)}"
    if name not in module.parameters:
        return "the module's weight is quantised" if module.quantised else f"the module has no {name}"
    bias = getattr(scene.config, "bias", "none")  # `all`, or `lora_only` for the changed modules
    biased = name == "bias" and (bias == "all" or (bias != "none" and path in scene.names.changed))
    vocabulary = name == "weight" and (module.kind == "embedding" or module.head)
    saved = any(path.endswith(each) for each in scene.config.modules_to_save or ())  # peft compares the ends of names
    if not (biased or vocabulary or saved):
        return f"neither modules_to_save nor bias in {FILE} speaks of it"
    return ""


def _refuse_untargeted(scene: Scene) -> None:
    """Raise IntegrityError where the configuration targets other modules than the file has tensors for."""
    targeted, noun = _targets(scene), scene.changes.noun
    unfed = [key for path in scene.wrapped if not scene.levels(path) for key in scene.keys_of(path)]
    if unfed:
        raise _contradiction(
            "LM-ADAPTER-MISSING", scene, unfed, f"the file has no {noun} for parameters that target_parameters names"
        )
    if targeted is None:
        return
    own = scene.names.changed.keys() - scene.wrapped.keys()
    surplus = sorted(own - targeted)
    if surplus:
        raise _contradiction(
            "LM-ADAPTER-TARGET", scene, surplus, f"the file has {noun} for modules that target_modules leaves out"
        )
    absent = sorted(targeted - own)
    if absent:
        raise _contradiction(
            "LM-ADAPTER-MISSING", scene, absent, f"the file has no {noun} for modules that target_modules names"
        )


def _refuse_unsaved(scene: Scene) -> None:
    """Raise IntegrityError LM-ADAPTER-MISSING where the file lacks modules that the configuration says it brings."""
    saved = scene.config.modules_to_save or ()
    unsaved = [name for name in saved if not any(path.endswith(name) for path in scene.names.plain)]
    if unsaved:
        raise _contradiction("LM-ADAPTER-MISSING", scene, unsaved, "the file lacks modules that modules_to_save names")


def _targets(scene: Scene) -> set[str] | None:
    """Return the stored paths of the modules that the configuration targets, or None where it does not name any."""
    from peft.tuners.tuners_utils import check_target_module_exists

    config = scene.config
    if config.target_modules is None:
        return set() if targets(config) else None
    shown = {
        scene.repair.stored_path(path): module for path, module in scene.modules.items() if module.kind in scene.changes.kinds
    }
    if isinstance(config.target_modules, str) and config.target_modules.lower() == "all-linear":
        config.target_modules = {path for path, module in shown.items() if module.kind == "linear" and not module.head}
    return {path for path in shown if check_target_module_exists(config, path)}


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


def wrong_shape(
    stored: StoredAdapter, tensor: str, module: AdapterModule, wanted: tuple[int, ...], remark: str, *hints: str
) -> IntegrityError:
    """Return the error for a tensor of another shape than `wanted`; `remark` comes before the shapes."""
    return IntegrityError(
        "LM-ADAPTER-SHAPE",
        "a tensor of the adapter has another shape than its configuration and the model ask for",
        where={"adapter": stored.name, "tensor": tensor, "module": module.path},
        why=f"{remark}shape {list(stored.tensors[tensor].shape)}, needed {list(wanted)}",
        hints=[*hints, "the adapter may be of another model"],
    )
