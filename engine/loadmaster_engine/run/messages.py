"""The calls that the host makes to the services, as data. Every message is encoded as msgpack."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.exchange import Round, alone, rounds
from loadmaster_engine.plan.shares import FileRange, shares
from loadmaster_engine.report import RankReport
from loadmaster_engine.run.sampler import Sampling
from loadmaster_hookspecs.errors import ErrorReport
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import AdapterPlan, LoadPlan, PlanSettings

WORKER = "loadmaster_engine.run.service:worker_service"
PLANNER = "loadmaster_engine.run.planning:planner_service"

T = TypeVar("T")


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Op `plan` of the planner: answered with a LoadPlan."""

    index: CheckpointIndex
    settings: PlanSettings
    adapters: tuple[AdapterRequest, ...] = ()


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Op `assign`: the plan with this rank's part only, and the device to hold it. Answered with nothing.

    `share` lists what this rank brings into memory of the files that the ranks of the node map; `rounds` has its part of the
    bytes that one rank reads for all.
    """

    plan: LoadPlan
    rank: int
    world_size: int
    device: str
    share: tuple[FileRange, ...] = ()
    rounds: tuple[Round, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Op `share`: rank 0 makes memory for all ranks and answers with its address; with an address, a rank maps it."""

    address: str = ""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Op `exchange`: read this rank's share of round `number`, and copy out of the round before it. Answered with nothing."""

    number: int


class ShadowState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rank is with a second set of weights: the answer to every op on it, which none of them raises instead.

    Ops: `shadow_begin` (with an Assignment), `shadow_state`, `shadow_adapt`, `shadow_try`, `shadow_drop` (again until it is not
    `busy`). `shadow_swap`, which puts it in the place of the first set, is answered with nothing. `done` are bytes that were
    moved, `report` is there when everything is verified.
    """

    busy: bool = False
    done: int = 0
    report: RankReport | None = None
    error: ErrorReport | None = None


class Meet(msgspec.Struct, frozen=True, kw_only=True):
    """Ops `open` (rank 0 opens the meeting point) and `join` (every rank joins). `open` is answered with a Meet to join by."""

    method: str


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Op `begin`: run the prompts (token ids) as one batch with adapter number `adapter`, 0 for none. Answered with Tokens, one
    per row. The adapters that are loaded with the model have the numbers from 1 on, in the plan's order; a merged one has none.
    """

    rows: tuple[tuple[int, ...], ...]
    sampling: tuple[Sampling, ...]
    adapter: int = 0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Op `append`: one token per row, answered with the next Tokens; op `logits`: one sequence, run with adapter number
    `adapter`, and answered in bulk.
    """

    ids: tuple[int, ...]
    adapter: int = 0


def assign(plan: LoadPlan) -> list[bytes]:
    """Return the encoded assignment of every rank. On several devices rank `r` gets device number `r`."""
    world = len(plan.ranks)
    device = plan.settings.device
    return [
        encode(
            Assignment(
                plan=msgspec.structs.replace(plan, ranks=(part,), adapters=_of_rank(plan, part.rank)),
                rank=part.rank,
                world_size=world,
                device=device if device == "cpu" else f"{device}:{part.rank}",
                share=share,
                rounds=own,
            )
        )
        for part, share, own in zip(plan.ranks, shares(plan), rounds(plan.ranks), strict=True)
    ]


def assign_apart(plan: LoadPlan) -> list[bytes]:
    """Return the encoded assignments for ranks that load without waiting for each other."""
    return assign(msgspec.structs.replace(plan, ranks=tuple(map(alone, plan.ranks))))


def _of_rank(plan: LoadPlan, rank: int) -> tuple[AdapterPlan, ...]:
    return tuple(msgspec.structs.replace(adapter, ranks=(adapter.ranks[rank],)) for adapter in plan.adapters)


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as msgpack."""
    return msgspec.msgpack.encode(message)


def decode(body: bytes, kind: type[T]) -> T:
    """Return the message in `body`. Raises msgspec.ValidationError when it is not of that kind."""
    return msgspec.msgpack.decode(body, type=kind)
