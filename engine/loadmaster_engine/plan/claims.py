"""Which stored tensors are quantised matrices, and the checkpoint as it would look if each were one plain weight.

A model family maps names, stacks experts and joins halves. It does so for plain weights, and it is shown plain weights: every
claimed set of tensors is replaced by one that only has a shape. What the family says about those is then carried over to the
real tensors (`plan.expansion`), so that neither families nor quantizers know of each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from loadmaster_engine.plan.quantizer_results import checked_claim, checked_layouts
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import IntegrityError, PlanError, PluginError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex, TensorMeta
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import FileReader
from loadmaster_hookspecs.quantization import Claim, Quantizer
from loadmaster_hookspecs.sources import Source

MAX_VALUES = 1 << 20
"""Bytes of one tensor that a quantizer may ask for while it makes up its mind."""

PACKED = (".qweight", ".weight_packed", ".weight_scale", ".absmax")
"""Endings of names that only quantised weights have: worth a better error than a missing parameter."""


class Claimed(NamedTuple):
    """Stored tensors `prefix.*` that a quantizer claims as one matrix, and how they are laid out over its axes.

    `general` is the same with fewer assumptions, if there is such a claim.
    """

    prefix: str
    quantizer: str
    claim: Claim
    layouts: tuple[TensorLayout, ...]
    general: Claimed | None = None


class Claims(NamedTuple):
    """The claims by the name of the weight that each stands for, and the index as it is shown to the model's family."""

    by_weight: Mapping[str, Claimed]
    shown: CheckpointIndex
    findings: tuple[Finding, ...]


class StoredTensors:
    """The tensors of one prefix, and access to the values of small ones."""

    def __init__(self, name: str, tensors: Mapping[str, TensorMeta], index: CheckpointIndex, source: Source) -> None:
        self.name = name
        self.tensors = tensors
        self._index = index
        self._source = source

    def values(self, suffix: str, nbytes: int | None = None) -> bytes:
        """Return the first `nbytes` bytes of a tensor, or all. Raises IntegrityError for more than `MAX_VALUES`."""
        tensor = self.tensors[suffix]
        wanted = tensor.nbytes if nbytes is None else min(nbytes, tensor.nbytes)
        if wanted > MAX_VALUES:
            raise IntegrityError(
                "LM-QUANT-VALUES",
                "a tensor that must be read to plan is too large",
                where={"tensor": tensor.name},
                why=f"{wanted} bytes, the limit is {MAX_VALUES}",
            )
        return self._source.read(self._index.files[tensor.file].name, tensor.start, wanted)


def settings_of(host: PluginHost, config: Mapping[str, Any], read: FileReader) -> dict[str, Mapping[str, Any]]:
    """Return what configuration and small files say about quantisation, by the quantizer that understands it."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, quantizer in host.quantizers().items():
        with host.attributed(quantizer, f"settings of quantizer {name}"):
            settings = quantizer.settings(config, read)
        if settings is not None:
            found[name] = settings
    return found


def claim_matrices(host: PluginHost, index: CheckpointIndex, source: Source, read: FileReader) -> Claims:
    """Ask every quantizer about every set of tensors that share a prefix.

    Raises PlanError LM-QUANT-UNCLAIMED when the checkpoint is quantised in a way that no active plugin reads, IntegrityError
    for incomplete sets, PluginError when two quantizers claim one set equally well.
    """
    settings = settings_of(host, index.config, read)
    quantizers = host.quantizers()
    by_weight: dict[str, Claimed] = {}
    tensors = dict(index.tensors)
    label = next(iter(settings), "") or _said(index.config)
    contradictions: list[Finding] = []
    for prefix, members in _by_prefix(index.tensors).items():
        if members.keys() <= {"weight", "bias"}:
            continue
        claimed = _claim(host, quantizers, settings, StoredTensors(prefix, members, index, source))
        if claimed is None:
            continue
        for suffix in claimed.claim.suffixes:
            del tensors[members[suffix].name]
        by_weight[f"{prefix}.weight"] = claimed
        if label and claimed.quantizer not in (label, *settings):
            contradictions.append(_other_label(label, claimed.quantizer))
        tensors[f"{prefix}.weight"] = _weight(claimed, members, index)
    _refuse_unclaimed(index, tensors, by_weight, known=bool(settings))
    remarks = (finding for claimed in by_weight.values() for finding in claimed.claim.findings)
    findings = dict.fromkeys((*contradictions, *remarks))
    return Claims(by_weight, msgspec.structs.replace(index, tensors=tensors) if by_weight else index, tuple(findings))


def _by_prefix(tensors: Mapping[str, TensorMeta]) -> Mapping[str, dict[str, TensorMeta]]:
    groups: dict[str, dict[str, TensorMeta]] = defaultdict(dict)
    for name, tensor in tensors.items():
        prefix, _, suffix = name.rpartition(".")
        groups[prefix][suffix] = tensor
    return groups


def _claim(
    host: PluginHost, quantizers: Mapping[str, Quantizer], settings: Mapping[str, Mapping[str, Any]], stored: StoredTensors
) -> Claimed | None:
    """Return the best claim on one set of tensors."""
    claims: dict[str, Claim] = {}
    for name, quantizer in quantizers.items():
        with host.attributed(quantizer, f"claim of quantizer {name} for {stored.name}"):
            claim = checked_claim(quantizer.claim(stored, settings.get(name)), stored)
        if claim is not None:
            claims[name] = claim
    if not claims:
        return None
    best = max(claim.score for claim in claims.values())
    winners = [name for name, claim in claims.items() if claim.score == best]
    if len(winners) > 1:
        raise PluginError(
            "LM-PLUGIN-TIE",
            "more than one quantizer claims a matrix",
            where={"tensor": f"{stored.name}.*"},
            why="; ".join(f"{name}: {claims[name].evidence} ({best:g})" for name in winners),
            hints=[f"leave one out: -p no:{name}" for name in winners],
        )
    (winner,) = winners
    with host.attributed(quantizers[winner], f"layout of quantizer {winner} for {stored.name}"):
        return _laid_out(quantizers[winner], claims[winner], stored)


def _laid_out(quantizer: Quantizer, claim: Claim, stored: StoredTensors) -> Claimed:
    layouts = checked_layouts(quantizer.layout(claim), claim, stored)
    general = None if claim.general is None else _laid_out(quantizer, claim.general, stored)
    return Claimed(stored.name, quantizer.name, claim, layouts, general)


def _weight(claimed: Claimed, members: Mapping[str, TensorMeta], index: CheckpointIndex) -> TensorMeta:
    """Return the plain weight that claimed tensors stand for: a shape, and no bytes of its own."""
    if "weight" in members and "weight" not in claimed.claim.suffixes:
        raise IntegrityError(
            "LM-QUANT-BOTH",
            "a matrix is stored twice, plain and quantised",
            where={"tensor": members["weight"].name, "file": index.files[members["weight"].file].name},
            why=f"{claimed.quantizer} claims {', '.join(f'{claimed.prefix}.{suffix}' for suffix in claimed.claim.suffixes)}",
            hints=["remove one of them from the checkpoint: nothing says which one is meant"],
        )
    first = members[claimed.claim.suffixes[0]]
    shape = (claimed.claim.out_features, claimed.claim.in_features)
    return TensorMeta(
        name=f"{claimed.prefix}.weight",
        dtype=claimed.claim.dtype,
        shape=shape,
        file=first.file,
        start=first.start,
        stop=first.start,
    )


def _other_label(label: str, quantizer: str) -> Finding:
    return Finding(
        level="warning",
        code="LM-QUANT-LABEL",
        where="quantization_config",
        message=f"matrices are stored as {quantizer} stores them, the configuration says {label[:80]}: read as stored",
        fix="correct quant_method in the configuration",
    )


def _refuse_unclaimed(
    index: CheckpointIndex, left: Mapping[str, TensorMeta], claimed: Mapping[str, Claimed], *, known: bool
) -> None:
    """Raise PlanError where the checkpoint is quantised and nothing, or not everything, was claimed.

    `known` says that a quantizer understood the settings.
    """
    said = _said(index.config)
    packed: Sequence[str] = [name for name in left if name.endswith(PACKED)]
    if not packed and (claimed or not said):
        return
    if not packed and known:
        raise PlanError(
            "LM-QUANT-UNCLAIMED",
            f"the configuration says that weights are quantised ({said}), and none is",
            where={"file": "config.json"},
            hints=["remove quantization_config from the configuration if the weights are meant to be plain"],
        )
    raise PlanError(
        "LM-QUANT-UNCLAIMED",
        f"the weights are quantised ({said or 'the configuration does not say how'}) and no active plugin reads them",
        where={"tensor": packed[0]} if packed else {"file": "config.json"},
        hints=["install or enable the plugin for this quantisation", "see what is active: loadmaster plugins list"],
    )


def _said(config: Mapping[str, Any]) -> str:
    """Return the method that a configuration names, `unknown` when it names none but has settings, or an empty string."""
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings:
            return str(settings.get("quant_method", "unknown")) if isinstance(settings, Mapping) else "unknown"
    return ""
