"""Does a model fit that is to be served: judged from the plan and the settings alone, before anything is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from loadmaster.adapters.limits import total_bytes
from loadmaster.display.units import size
from loadmaster.memory import scratch_bytes
from loadmaster.remedies import narrower
from loadmaster.serving.budget import GATHERED, MARGIN, activation_bound
from loadmaster.serving.settings import EngineSettings
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.plan import LoadPlan

PROCESS_BYTES: Final = 32 << 20
"""What a worker process takes besides (measured: 25 MB). What all of them share has been taken when this is judged."""

THREAD_BYTES: Final = 8 << 20
"""What a rank in this process takes besides: its modules, and what libraries keep once they are used (measured: up to 5 MB)."""


class Need(NamedTuple):
    """What serving needs at least, in bytes over all ranks of a node.

    A token's keys and values take `token` bytes, all that are asked for `kv`, and `share` times that with what is gathered.
    `mapped` bytes of weights are files in the page cache, which takes no more than there is. `roles` has all weights by role;
    `scratch` is taken by the load for a while, before anything but the weights is there.
    """

    weights: int
    mapped: int
    roles: dict[str, int]
    scratch: int
    adapters: int
    libraries: int
    activation: int
    token: int
    kv: int
    share: float

    @property
    def others(self) -> int:
        """All but keys and values."""
        return self.weights + self.adapters + self.libraries + self.activation

    @property
    def total(self) -> int:
        """All of it."""
        return self.others + int(self.kv * self.share)

    def __str__(self) -> str:
        """Return the sum in words."""
        roles = ", ".join(f"{role} {size(nbytes)}" for role, nbytes in sorted(self.roles.items()))
        beside = f" beside {size(self.mapped)} of mapped files" if self.mapped else ""
        before = f"; the load takes {size(self.scratch)} for a while before" if self.scratch else ""
        others = (
            ("adapters", self.adapters),
            ("libraries", self.libraries),
            ("activations", self.activation),
            ("keys and values", self.kv),
        )
        parts = [
            f"weights {size(self.weights)}{beside} ({roles})",
            *(f"{name} {size(nbytes)}" for name, nbytes in others if nbytes),
        ]
        return f"{' + '.join(parts)}, {self.share - 1:.0%} of which is gathered at a time{before}"

    def fitting(self, usable: int, block_size: int) -> int:
        """Return the tokens, in whole blocks, whose keys and values fit beside everything else."""
        left = max(0, usable - self.others)
        return int(left / self.share) // (self.token * block_size) * block_size


def check_plan(plan: LoadPlan, settings: EngineSettings, available: int, *, adapters: int = 0, processes: bool) -> str:
    """Return the sum of what serving needs at least, in words, beside what there is.

    Raises ResourceError LM-MEMORY-FIT when that exceeds what can be used of `available` bytes.

    Keys and values are estimated from the configuration: exact for attention without a latent. Temporary memory of the load is
    given back before any of this is taken, and has been checked by itself. `adapters` is the memory for those, in bytes;
    `processes` says that ranks have one each.
    """
    least = partial(need_of, plan, settings, adapters, processes)
    need = least(len(plan.ranks))
    usable = int(available * (1 - MARGIN))
    if need.total <= usable:
        return f"serving needs {size(need.total)} at least, {size(usable)} of {size(available)} can be used: {need}"
    raise ResourceError(
        "LM-MEMORY-FIT",
        f"the model does not fit: {size(need.total)} needed, {size(usable)} of {size(available)} can be used",
        where={"ranks": len(plan.ranks), "device": plan.settings.device},
        why=str(need),
        hints=[
            *_shorter(plan.outline, settings, need, usable),
            *narrower(plan, usable - need.total + need.weights),
            *_fewer_adapters(need, usable, total_bytes(plan.adapters)),
            *_fewer_ranks(len(plan.ranks), least, usable),
            "free memory or raise the container's limit",
        ],
    )


def need_of(plan: LoadPlan, settings: EngineSettings, adapters: int, processes: bool, ranks: int) -> Need:
    """Return what serving a plan over so many ranks needs; `adapters` and `processes` are as in `check_plan`."""
    outline = plan.outline
    token = 2 * _kv_heads(outline, ranks) * outline.head_dim * outline.num_layers * itemsize(plan.dtype)
    tokens = settings.block_size if settings.max_model_len == "auto" else settings.max_model_len
    kv = tokens * token if settings.kv_bytes == "auto" else settings.kv_bytes
    if settings.max_model_len == "auto" and settings.kv_bytes != "auto":
        tokens = min(outline.max_positions or tokens, max(tokens, kv // token))
    return Need(
        weights=sum(rank.bytes for rank in plan.ranks),
        mapped=sum(op.source.nbytes for rank in plan.ranks for op in rank.reads if op.via == "mapped" and not op.repeated),
        roles=dict(sum((Counter(roles) for roles in plan.ledger.roles), Counter())),
        scratch=scratch_bytes(plan),
        adapters=adapters,
        libraries=ranks * (PROCESS_BYTES if processes else THREAD_BYTES),
        activation=activation_bound(outline, plan.dtype, ranks, settings, tokens),
        token=token,
        kv=kv,
        share=1 + GATHERED / outline.num_layers,
    )


def _kv_heads(outline: ModelOutline, ranks: int) -> int:
    """Return the key-value heads that all ranks keep together, at most: ranks that cut a group of query heads both keep its."""
    if ranks <= outline.kv_heads or ranks % outline.kv_heads == 0:
        return max(outline.kv_heads, ranks)
    return outline.kv_heads + ranks - 1


def _shorter(outline: ModelOutline, settings: EngineSettings, need: Need, usable: int) -> list[str]:
    fit = need.fitting(usable, settings.block_size)
    if not fit:
        return []
    return [f"max_model_len {min(fit, outline.max_positions or fit)} fits, with kv_bytes {fit * need.token}"]


def _fewer_adapters(need: Need, usable: int, own: int) -> list[str]:
    """Return the hint for less memory for adapters to come; those of the plan take `own` bytes in any case."""
    left = need.adapters - (need.total - usable)
    return [f"adapter_bytes {left} fits"] if need.adapters and left >= own else []


def _fewer_ranks(ranks: int, least: Callable[[int], Need], usable: int) -> list[str]:
    """Return the hint for ranks that share a node's memory: each has activations and libraries of its own."""
    fewer = (count for count in range(ranks // 2, 0, -1) if ranks % count == 0)  # these can be planned for certain
    return [f"--tp {count} fits: more ranks do not divide a node's memory" for count in fewer if least(count).total <= usable][
        :1
    ]
