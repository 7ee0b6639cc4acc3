"""What a checkpoint holds, told from its headers and configuration alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from loadmaster_engine.attribution import AttributedFormat
from loadmaster_engine.plan.adapter_source import CONFIG, MODEL_CONFIG, AdapterSource
from loadmaster_engine.plan.claims import Claims, claim_matrices
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.errors import LoadmasterError
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import ModelOutline

if TYPE_CHECKING:
    from loadmaster_engine.plugin_host import PluginHost
    from loadmaster_hookspecs.sources import Source

_MAX_CONFIG_BYTES: Final = 1 << 20


class InspectedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the checkpoint: its size in bytes and the number of tensors in it."""

    name: str
    size: int
    tensors: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at a glance. Sizes are bytes.

    `parameters` counts weights: a quantised matrix counts as many as it stands for, not its packed words, where a plugin can
    read it. `outline` is None when no plugin can build the model, and `findings` says why. `quantization` and `adapter` are
    what their configurations say, or empty; `quantised` is what the tensors are, matrices by kind. `bytes_read` is what this
    inspection took out of the source.
    """

    source: str
    format: str
    fingerprint: str
    files: tuple[InspectedFile, ...]
    tensors: int
    parameters: int
    bytes_total: int
    bytes_by_dtype: dict[str, int]
    architecture: str
    family: str = ""
    outline: ModelOutline | None = None
    quantization: str = ""
    quantised: dict[str, int] = {}
    adapter: str = ""
    generation: dict[str, Any] = {}
    ignored: tuple[Ignored, ...] = ()
    findings: tuple[Finding, ...] = ()
    bytes_read: int = 0

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for one weight, over everything in the checkpoint: scales, embeddings and norms included."""
        return 8 * self.bytes_total / self.parameters if self.parameters else 0.0


def inspect(host: PluginHost, uri: str) -> Inspection:
    """Return what the checkpoint at `uri` holds. Reads headers and small files only, and does not import torch.

    A model that no plugin can build is inspected all the same. Raises LoadmasterError when the address cannot be opened, holds
    no known format, or holds damaged files.
    """
    plain = host.open_source(uri)
    alone = _adapter_alone(plain)
    source: Source = AdapterSource(plain) if alone else plain
    index = AttributedFormat(host, host.detect_format(source)).open(source)
    family, outline, problems = ("", None, ()) if alone else _outline(host, index.config)
    claims, unread = _claims(host, index, source)
    return Inspection(
        source=index.source,
        format=index.format,
        fingerprint=index.fingerprint,
        files=_files(index),
        tensors=len(index.tensors),
        parameters=sum(prod(tensor.shape) for tensor in claims.shown.tensors.values()),
        bytes_total=sum(tensor.nbytes for tensor in index.tensors.values()),
        bytes_by_dtype=_bytes_by_dtype(index),
        architecture=outline.architecture if outline else _architecture(index.config),
        family=family,
        outline=outline,
        quantization=quantization_of(index.config),
        quantised=_kinds(claims),
        adapter=_adapter(plain),
        generation=index.generation,
        ignored=index.ignored,
        findings=(*index.findings, *problems, *claims.findings, *unread),
        bytes_read=source.bytes_read,
    )


def _adapter_alone(source: Source) -> bool:
    """Return whether a folder holds an adapter and no model."""
    names = {file.name for file in source.files()}
    return CONFIG in names and MODEL_CONFIG not in names


def _adapter(source: Source) -> str:
    """Return what an `adapter_config.json` beside the weights calls its adapter: `LORA, r 8`, or an empty string."""
    sizes = {file.name: file.size for file in source.files()}
    if CONFIG not in sizes:
        return ""
    try:
        config = msgspec.json.decode(source.read(CONFIG, 0, min(sizes[CONFIG], _MAX_CONFIG_BYTES)), type=dict[str, Any])
    except msgspec.DecodeError:
        return f"{CONFIG} is not a JSON object"
    return str(config.get("peft_type", "unnamed")) + (f", r {config['r']}" if "r" in config else "")


def quantization_of(config: Mapping[str, Any]) -> str:
    """Return what a configuration says about quantisation: `gptq, bits 4, group_size 128`, or an empty string.

    Wrapper models keep it in the part that describes their language model.
    """
    nested = config.get("text_config")
    settings = config.get("quantization_config") or (nested if isinstance(nested, Mapping) else {}).get("quantization_config")
    if not isinstance(settings, Mapping):
        return ""
    details = [f"{name} {settings[name]}" for name in ("bits", "w_bit", "group_size", "q_group_size") if name in settings]
    return ", ".join([str(settings.get("quant_method", "unnamed")), *details])


def _claims(host: PluginHost, index: CheckpointIndex, source: Source) -> tuple[Claims, Sequence[Finding]]:
    """Return the claims of quantizers, or none and the reason why they failed as a finding."""
    try:
        return claim_matrices(host, index, source, SmallFiles(source)), ()
    except LoadmasterError as error:
        return Claims({}, index, ()), (_as_finding(error, where="weights"),)


def _kinds(claims: Claims) -> dict[str, int]:
    """Return how many matrices there are of each kind: `{"gptq, 4 bits, groups of 128": 224}`."""
    kinds: Counter[str] = Counter()
    for claimed in claims.by_weight.values():
        claim = claimed.claim
        kinds[kind_of(claimed.quantizer, claim.bits, claim.group_size)] += 1
    return dict(kinds.most_common())


def kind_of(quantizer: str, bits: int, group_size: int) -> str:
    """Return what a quantised matrix is, in words."""
    groups = f"groups of {group_size}" if group_size else "groups in any order"
    return f"{quantizer}, {bits} bits, {groups}"


def _outline(host: PluginHost, config: Mapping[str, Any]) -> tuple[str, ModelOutline | None, Sequence[Finding]]:
    """Return the family's name and the outline, or the reason that there is none as a finding."""
    try:
        family = host.match_family(config)
        with host.attributed(family, f"outline of model family {family.name}"):
            return family.name, family.outline(config), ()
    except LoadmasterError as error:
        return "", None, (_as_finding(error, where="config.json"),)


def _as_finding(error: LoadmasterError, where: str) -> Finding:
    report = error.report
    message = f"{report.summary}: {report.why}" if report.why else report.summary
    fix = report.hints[0] if report.hints else ""
    return Finding(level="warning", code=report.code, where=where, message=message, fix=fix)


def _files(index: CheckpointIndex) -> tuple[InspectedFile, ...]:
    tensors = Counter(tensor.file for tensor in index.tensors.values())
    return tuple(InspectedFile(name=file.name, size=file.size, tensors=tensors[file.id]) for file in index.files)


def _bytes_by_dtype(index: CheckpointIndex) -> dict[str, int]:
    """Return bytes per element type, largest first."""
    sizes: Counter[str] = Counter()
    for tensor in index.tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    return dict(sizes.most_common())


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else str(config.get("model_type", "unknown"))
