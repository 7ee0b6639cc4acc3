"""Memory for serving: weights, temporary memory, activations and keys and values against what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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

ARRANGED: Final = 0.25
"""Share of the memory left after the load that matrices kept a second time may take, unless they are asked for."""


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
    rows = min(tokens, settings.running)
    logits = 3 * rows * outline.vocab_size * 4
    return ranks * (tokens * size * (shared + masks) + logits) + tokens * size * divided


def arranges(plan: LoadPlan, settings: EngineSettings, available: int) -> bool:
    """Return whether matrices are kept a second time, arranged for the processor. `available` is free memory in bytes."""
    if plan.settings.device != "cpu" or plan.dtype != "BF16" or settings.arrange_matrices != "auto":
        return settings.arrange_matrices is True
    # The output matrix may be that of the embedding.
    matrices = sum(roles.get("linear", 0) + roles.get("embedding", 0) for roles in plan.ledger.roles)
    kv = 0 if settings.kv_bytes == "auto" else settings.kv_bytes
    return matrices <= ARRANGED * (available - kv)


def plan_kv(plan: LoadPlan, ranks: Sequence[Probed], settings: EngineSettings, available: int, adapters: int = 0) -> KvPlan:
    """Return the reservation. `available` is the node's free memory in bytes, after the load; `adapters` stays free for those
    to come.

    Raises ResourceError LM-MEMORY-KV with what fits where the wishes do not, and LM-SERVE-LENGTH for a context that is longer
    than the model's own.
    """
    outline = plan.outline
    positions, why = _positions(outline, ranks)
    longest = positions if settings.max_model_len == "auto" else settings.max_model_len
    block = _block_bytes(ranks, settings)
    if settings.max_model_len == "auto" and settings.kv_bytes != "auto" and settings.kv_bytes >= block:
        longest = min(longest, settings.kv_bytes // block * settings.block_size)
    for _ in range(2):  # a shorter context takes smaller masks, and is what comes of memory that is short
        activation = activation_bound(outline, plan.dtype, len(ranks), settings, longest)
        measured = sum(rank.activation for rank in ranks)
        fit = _fitting(ranks, settings, available, max(measured, activation) + adapters)
        longest = min(longest, max(fit, 1) * settings.block_size)
    room = _Room(fit, settings.block_size, block, positions, devices=all(rank.free for rank in ranks))
    blocks = _blocks(settings, room)
    longest = _longest(settings, room._replace(blocks=blocks), why)
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


class _Room(NamedTuple):
    """What can be had: `blocks` of `size` tokens and `block` bytes over all ranks, for contexts of `positions` at most."""

    blocks: int
    size: int
    block: int
    positions: int
    devices: bool


def _blocks(settings: EngineSettings, room: _Room) -> int:
    if settings.kv_bytes != "auto":
        blocks = settings.kv_bytes // room.block
        if blocks > room.blocks or not blocks:
            raise _refused(f"kv_bytes {settings.kv_bytes}", room)
        return blocks
    positions = room.positions
    wanted = min(positions, positions if settings.max_model_len == "auto" else settings.max_model_len)
    blocks = min(room.blocks, settings.running * -(-wanted // room.size))
    if not blocks:
        raise _refused("a single block", room)
    return blocks


def _longest(settings: EngineSettings, room: _Room, why: str) -> int:
    if settings.max_model_len == "auto":
        return min(room.positions, room.blocks * room.size)
    if settings.max_model_len > room.positions:
        raise ResourceError(
            "LM-SERVE-LENGTH",
            f"max_model_len {settings.max_model_len} is more than the model can do",
            why=f"it has {room.positions} positions{why}",
            hints=[f"max_model_len {room.positions} is the most"],
        )
    if settings.max_model_len > room.blocks * room.size:
        raise _refused(f"max_model_len {settings.max_model_len}", room)
    return settings.max_model_len


def _refused(what: str, room: _Room) -> ResourceError:
    tokens, nbytes = room.blocks * room.size, room.blocks * room.block
    return ResourceError(
        "LM-MEMORY-KV",
        f"{what} does not fit: there is room for {tokens} tokens of keys and values",
        why=f"{_gb(nbytes)} can be had for them; a block of {room.size} tokens takes {room.block} bytes over all ranks",
        hints=[
            f"max_model_len {min(tokens, room.positions)} or kv_bytes {nbytes} fit"
            if tokens
            else "free memory, or use a narrower --dtype",
            *(["a larger --tp divides weights, keys and values among more devices"] if room.devices else []),
        ],
    )


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB"
