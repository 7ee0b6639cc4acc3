"""The plan as a table: what goes where, how it gets there, and the account of every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmaster.display.adapters import adapter_lines
from loadmaster.display.columns import align, facts
from loadmaster.display.findings import finding_lines, ignored_text
from loadmaster.display.quantised import quantised_lines
from loadmaster.display.rank_split import heads_line, rank_split
from loadmaster.display.serving_need import serving_line
from loadmaster.display.units import count, size
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.plan import LoadPlan


def render_plan(plan: LoadPlan) -> str:
    """Return the plan as text: source and model, the table of ranks, the ledger, findings and the digest."""
    blocks = [facts(_head(plan)), _ranks(plan), facts(_account(plan)), finding_lines(_remarks(plan))]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(plan: LoadPlan) -> list[tuple[str, str]]:
    total = sum(file.size for file in plan.files)
    return [
        ("source", f"{plan.source}  ({count(len(plan.files), 'file')}, {size(total)})"),
        ("format", plan.format),
        ("model", _model(plan)),
        ("dtype", _dtype(plan)),
        *quantised_lines(plan),
        *adapter_lines(plan),
        ("split", _split(plan)),
    ]


def _model(plan: LoadPlan) -> str:
    outline = plan.outline
    return (
        f"{outline.architecture} by {plan.family}: {count(outline.num_layers, 'layer')}, hidden {outline.hidden_size}, "
        f"{outline.query_heads} query and {outline.kv_heads} key-value heads of {outline.head_dim}, "
        f"vocabulary {outline.vocab_size}"
    )


def _dtype(plan: LoadPlan) -> str:
    """The type that parameters get, and the sentence of the plan that says why."""
    reason = next((finding.message for finding in plan.findings if _about_dtype(finding)), "")
    if not reason:
        reason = "as stored" if plan.settings.dtype == "auto" else "as asked"
    return f"{TORCH_NAMES.get(plan.dtype, plan.dtype)}: {reason}"


def _about_dtype(finding: Finding) -> bool:
    return finding.level == "info" and "DTYPE" in finding.code


def _remarks(plan: LoadPlan) -> list[Finding]:
    """The findings that no line above them has told already."""
    return [finding for finding in plan.findings if not _about_dtype(finding)]


def _split(plan: LoadPlan) -> str:
    ranks = count(len(plan.ranks), "rank")
    if len(plan.ranks) == 1:
        return f"none, {ranks} holds everything, device {plan.settings.device}"
    return ", ".join(filter(None, (f"{plan.strategy} over {ranks}", heads_line(plan), f"device {plan.settings.device}")))


def _ranks(plan: LoadPlan) -> list[str]:
    """One row per rank and the totals: what it owns, reads, copies into its arena and maps, and what it holds by role."""
    roles = sorted({role for by_role in plan.ledger.roles for role in by_role})
    split = rank_split(plan)
    header = ["rank", *split.names, "read", "repeated", "arena", "mapped", *roles, "scratch"]
    rows = [header]
    for rank, owned, by_role in zip(plan.ranks, split.rows, plan.ledger.roles or [{}] * len(plan.ranks), strict=True):
        repeated = rank.bytes_planned - rank.bytes_charged
        moved = [size(rank.bytes_planned), size(repeated), size(rank.bytes), size(rank.bytes_mapped)]
        rows.append([str(rank.rank), *owned, *moved, *(size(by_role.get(role, 0)) for role in roles), size(rank.scratch)])
    if len(plan.ranks) > 1:
        rows.append(_total(plan, len(split.names), roles))
    return align(rows, right=range(1 + len(split.names), len(header)))


def _total(plan: LoadPlan, num_owned: int, roles: Sequence[str]) -> list[str]:
    planned = sum(rank.bytes_planned for rank in plan.ranks)
    charged = sum(rank.bytes_charged for rank in plan.ranks)
    by_role: Counter[str] = Counter()
    for roles_of_rank in plan.ledger.roles:
        by_role.update(roles_of_rank)
    arena, mapped = sum(rank.bytes for rank in plan.ranks), sum(rank.bytes_mapped for rank in plan.ranks)
    moved = [size(planned), size(planned - charged), size(arena), size(mapped)]
    scratch = size(sum(rank.scratch for rank in plan.ranks))
    return ["total", *[""] * num_owned, *moved, *(size(by_role[role]) for role in roles), scratch]


def _account(plan: LoadPlan) -> list[tuple[str, str]]:
    ledger = plan.ledger
    used = f"{len(ledger.used)}/{ledger.tensors} tensors, {size(ledger.bytes_unique)}, {ignored_text(ledger.ignored)}"
    aliases = ", ".join(f"{name} shares {target}" for name, target in ledger.aliased.items())
    lines = [
        ("ledger", used),
        ("shared", aliases),
        ("reads", _reads(plan)),
        ("fills", _fills(plan)),
        ("storage", _storage(plan)),
        ("serving", serving_line(plan)),
        ("planned", f"from {size(plan.bytes_read_to_plan)} of headers and configuration"),
        ("digest", plan.digest),
    ]
    return [(name, value) for name, value in lines if value]


def _reads(plan: LoadPlan) -> str:
    """How many operations and bytes go each way, the transforms on the way, and the tied tensors that are compared."""
    operations: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    transforms: Counter[str] = Counter()
    for op in (op for rank in plan.ranks for op in rank.reads):
        operations[op.via] += 1
        num_bytes[op.via] += op.source.nbytes
        if op.transform is not None:
            transforms[op.transform.name] += 1
    ways = [f"{operations[via]} {via} ({size(num_bytes[via])})" for via in sorted(operations)]
    ways += [f"{number} through {name}" for name, number in sorted(transforms.items())]
    compares = sum(len(rank.compares) for rank in plan.ranks)
    return ", ".join([*ways, f"{compares} compared"] if compares else ways)


def _fills(plan: LoadPlan) -> str:
    fills = [op.dest.nbytes for rank in plan.ranks for op in rank.fills]
    return f"{len(fills)} with zeros ({size(sum(fills))})" if fills else ""


def _storage(plan: LoadPlan) -> str:
    charged = sum(rank.bytes_charged for rank in plan.ranks)
    unique = plan.ledger.bytes_unique
    return f"{size(charged)} leave storage, {charged / unique if unique else 1:.3f} times the unique bytes"
