"""Memory for serving: weights, temporary memory, activations and keys and values against what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from loadmaster.serving.settings import EngineSettings
from loadmaster_engine.serve.messages import Probed
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.plan import LoadPlan

MARGIN: Final = 0.1
"""Share of free memory that stays free: libraries and allocators take some."""

UNBOUNDED: Final = 32768
"""Tokens of the longest context of a model whose configuration gives no positions."""

GATHERED: Final = 2
"""Decoding gathers the keys and values of one layer at a time, padded to at most this many times their size."""


class KvPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation for keys and values: `blocks` per rank, `nbytes` over all ranks, and the longest context.

    `activation` bytes over all ranks are what a step may take for a while.
    """

    blocks: int
    nbytes: int
    max_model_len: int
    activation: int = 0
    notices: tuple[str, ...] = ()


def activation_bound(outline: ModelOutline, dtype: str, ranks: int, settings: EngineSettings, longest: int) -> int:
    """Return a bound in bytes on what a step of the largest batch takes for a while, over all ranks together.

    Counts, per token: six copies of the residual stream, projections of attention and feed-forward block twice, and masks;
    per running request: logits in float32 three times, as drawing needs them.
    """
    tokens, size = settings.max_batch_tokens, itemsize(dtype)
    heads = outline.query_heads + 2 * outline.kv_heads
    width = max([4 * outline.hidden_size, *outline.widths.values()])
    shared = 6 * outline.hidden_size
    divided = 2 * heads * outline.head_dim + 3 * width
    masks = (1 + outline.query_heads // outline.kv_heads) * longest
    rows = min(tokens, settings.max_running)
    logits = 3 * rows * outline.vocab_size * 4
    return ranks * (tokens * size * (shared + masks) + logits) + tokens * size * divided


def check_plan(plan: LoadPlan, settings: EngineSettings, available: int, adapters: int = 0) -> None:
    """Raise ResourceError LM-MEMORY-FIT, before anything is read, when what serving needs at least exceeds `available` bytes.

    Keys and values are estimated from the configuration: exact for attention without a latent. Temporary memory of the load is
    given back before any of this is taken, and has been checked by itself. `adapters` is the memory for those, in bytes.
    """
    outline, ranks = plan.outline, len(plan.ranks)
    weights = sum(rank.bytes for rank in plan.ranks)
    token = 2 * max(outline.kv_heads, ranks) * outline.head_dim * outline.num_layers * itemsize(plan.dtype)
    tokens = settings.block_size if settings.max_model_len == "auto" else settings.max_model_len
    kv = tokens * token if settings.kv_bytes == "auto" else settings.kv_bytes
    activation = activation_bound(outline, plan.dtype, ranks, settings, tokens)
    share = 1 + GATHERED / outline.num_layers
    usable = int(available * (1 - MARGIN))
    need = weights + adapters + activation + int(kv * share)
    if need <= usable:
        return
    fit = int(max(0, usable - weights - adapters - activation) / share) // token
    raise ResourceError(
        "LM-MEMORY-FIT",
        f"the model does not fit: {_gb(need)} needed, {_gb(usable)} of {_gb(available)} can be used",
        where={"ranks": ranks, "device": plan.settings.device},
        why=f"weights {_gb(weights)} + adapters {_gb(adapters)} + activations {_gb(activation)} + keys and values {_gb(kv)}, "
        f"{share - 1:.0%} of which is gathered at a time",
        hints=[
            *([f"max_model_len {fit} fits, with kv_bytes {fit * token}"] if fit >= settings.block_size else []),
            *([f"adapter_bytes {adapters - (need - usable)} fits"] if adapters >= need - usable else []),
            *(["use --dtype bfloat16"] if plan.dtype == "F32" and need / 2 <= usable else []),
            "free memory or raise the container's limit",
        ],
    )


def plan_kv(plan: LoadPlan, ranks: Sequence[Probed], settings: EngineSettings, available: int, adapters: int = 0) -> KvPlan:
    """Return the reservation. `available` is the node's free memory in bytes, after the load; `adapters` stays free for those
    to come.

    Raises ResourceError LM-MEMORY-KV with what fits where the wishes do not, and LM-SERVE-LENGTH for a context that is longer
    than the model's own.
    """
    outline = plan.outline
    positions, why = _positions(outline, ranks)
    longest = positions if settings.max_model_len == "auto" else settings.max_model_len
    for _ in range(2):  # a shorter context takes smaller masks, and is what comes of memory that is short
        activation = activation_bound(outline, plan.dtype, len(ranks), settings, longest)
        measured = sum(rank.activation for rank in ranks)
        fit = _fitting(ranks, settings, available, max(measured, activation) + adapters)
        longest = min(longest, max(fit, 1) * settings.block_size)
    block = _block_bytes(ranks, settings)
    blocks = _blocks(settings, positions, block, fit)
    longest = _longest(settings, positions, why, blocks, block)
    reason = why if longest == positions else ", which is what fits" if settings.max_model_len == "auto" else ""
    notices = [
        f"{blocks} blocks of {settings.block_size} tokens, {_gb(blocks * block)} of keys and values; "
        f"contexts up to {longest} tokens{reason}; activations up to {_gb(activation)}, measured {_gb(measured)}"
    ]
    if measured > activation:
        notices.append(
            f"a step of {settings.max_batch_tokens} tokens took {_gb(measured)}, more than its bound of {_gb(activation)}"
        )
    return KvPlan(
        blocks=blocks,
        nbytes=blocks * block,
        max_model_len=longest,
        activation=max(measured, activation),
        notices=tuple(notices),
    )


def _block_bytes(ranks: Sequence[Probed], settings: EngineSettings) -> int:
    """Return the bytes that a block takes over all ranks."""
    return sum(rank.layout.elements * itemsize(rank.layout.dtype) for rank in ranks) * settings.block_size


def _fitting(ranks: Sequence[Probed], settings: EngineSettings, available: int, others: int) -> int:
    """Return how many blocks fit beside what `others` take in bytes.

    Ranks share the node's memory, or have a device each, and the fullest one decides.
    """
    block = _block_bytes(ranks, settings)
    free = available
    if all(rank.free for rank in ranks):
        free = min(rank.free * block // _block_bytes([rank], settings) for rank in ranks)
    left = int(free * (1 - MARGIN)) - others
    return max(0, int(left / (1 + GATHERED / len(ranks[0].layout.layers))) // block)


def _positions(outline: ModelOutline, ranks: Sequence[Probed]) -> tuple[int, str]:
    """Return the longest context that the model knows, and why it is no longer where that is unusual."""
    layout = ranks[0].layout
    positions = outline.max_positions or UNBOUNDED
    if layout.longest and layout.longest < positions:
        return layout.longest, f", because {layout.longest_why}"
    return positions, "" if outline.max_positions else ", because the configuration gives no number of positions"


def _blocks(settings: EngineSettings, positions: int, block: int, fit: int) -> int:
    size = settings.block_size
    if settings.kv_bytes != "auto":
        blocks = settings.kv_bytes // block
        if blocks > fit or not blocks:
            raise _refused(f"kv_bytes {settings.kv_bytes}", fit, size, block)
        return blocks
    wanted = min(positions, positions if settings.max_model_len == "auto" else settings.max_model_len)
    blocks = min(fit, settings.max_running * -(-wanted // size))
    if not blocks:
        raise _refused("a single block", fit, size, block)
    return blocks


def _longest(settings: EngineSettings, positions: int, why: str, blocks: int, block: int) -> int:
    room = blocks * settings.block_size
    if settings.max_model_len == "auto":
        return min(positions, room)
    if settings.max_model_len > positions:
        raise ResourceError(
            "LM-SERVE-LENGTH",
            f"max_model_len {settings.max_model_len} is more than the model can do",
            why=f"it has {positions} positions{why}",
            hints=[f"max_model_len {positions} is the most"],
        )
    if settings.max_model_len > room:
        raise _refused(f"max_model_len {settings.max_model_len}", blocks, settings.block_size, block)
    return settings.max_model_len


def _refused(what: str, fit: int, size: int, block: int) -> ResourceError:
    return ResourceError(
        "LM-MEMORY-KV",
        f"{what} does not fit: there is room for {fit * size} tokens of keys and values",
        why=f"{_gb(fit * block)} can be had for them; a block of {size} tokens takes {block} bytes over all ranks",
        hints=[
            f"max_model_len {fit * size} or kv_bytes {fit * block} fit" if fit else "free memory, or use a narrower --dtype"
        ],
    )


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB"
