"""An inspection as text for a person."""

from __future__ import annotations

from loadmaster.display.columns import align, facts
from loadmaster.display.findings import finding_lines, ignored_text
from loadmaster.display.units import count, size
from loadmaster.inspection import Inspection

_SHOWN_FILES = 12


def render_inspection(found: Inspection) -> str:
    """Return format, contents and architecture, then the files, then findings."""
    lines = [(name, value) for name, value in _facts(found) if value]
    blocks = [facts(lines), _files(found), finding_lines(found.findings)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _facts(found: Inspection) -> list[tuple[str, str]]:
    types = ", ".join(f"{dtype} {size(num_bytes)}" for dtype, num_bytes in found.bytes_by_dtype.items())
    contents = f"{count(found.tensors, 'tensor')}, {count(found.parameters, 'parameter')}, {size(found.bytes_total)}"
    return [
        ("source", found.source),
        ("format", found.format),
        ("holds", contents),
        ("types", types),
        ("model", _model(found)),
        ("sizes", _sizes(found)),
        ("quantised", _quantised(found)),
        ("adapter", found.adapter),
        ("sampling", ", ".join(f"{name}={value}" for name, value in found.generation.items() if name in _SAMPLING)),
        ("files", f"{count(len(found.files), 'file')} of tensors, {ignored_text(found.ignored)}"),
        ("read", f"{size(found.bytes_read)} of headers and configuration"),
        ("identity", found.fingerprint),
    ]


def _model(found: Inspection) -> str:
    """The architecture and who builds it; nothing for an adapter that lies alone."""
    if found.family:
        return f"{found.architecture} by {found.family}"
    return "" if found.adapter and found.architecture == "unknown" else f"{found.architecture}, no plugin builds it"


def _quantised(found: Inspection) -> str:
    """What the tensors are, or what the configuration says where no plugin reads them."""
    kinds = ", ".join(f"{count(number, 'matrix', 'matrices')} ({kind})" for kind, number in found.quantised.items())
    return f"{kinds}; {found.bits_per_weight:.2f} bits per weight over all" if kinds else found.quantization


def _sizes(found: Inspection) -> str:
    outline = found.outline
    if outline is None:
        return ""
    parts = [
        count(outline.num_layers, "layer"),
        f"hidden {outline.hidden_size}",
        *(f"{name.removesuffix('_size')} {width}" for name, width in outline.widths.items()),
        f"{outline.query_heads} query and {outline.kv_heads} key-value heads of {outline.head_dim}",
        f"vocabulary {outline.vocab_size}",
    ]
    if outline.max_positions:
        parts.append(f"{outline.max_positions} positions")
    return ", ".join(parts)


def _files(found: Inspection) -> list[str]:
    rows = [[file.name, size(file.size), count(file.tensors, "tensor")] for file in found.files[:_SHOWN_FILES]]
    left = len(found.files) - len(rows)
    return align(rows, right=(1, 2)) + ([f"and {left} more"] if left else [])


_SAMPLING = frozenset({"do_sample", "temperature", "top_p", "top_k", "max_length", "max_new_tokens", "repetition_penalty"})
"""Keys of a generation configuration that change what an answer looks like."""
