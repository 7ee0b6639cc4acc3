"""What a load did: bytes and seconds, per stage and per rank."""

from __future__ import annotations

from typing import Any

import msgspec


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did.

    `bytes_planned` and `bytes_read` count every byte taken out of files, `bytes_repeated` those of them that another rank
    of the node takes as well (served by the page cache). Of `bytes_read`, `bytes_by_call` went through read calls,
    `bytes_mapped` were copied out of the shared mapping, and `bytes_viewed` were not copied at all: parameters are views of
    them in the mapping. Where one rank reads for others, `bytes_by_call` counts what it read, for whomever, so that only the
    sums over all ranks agree. `bytes_adapters` is what live adapters of the plan hold, in arenas of their own. `seconds` has
    the wall time per stage; that of reading adapters is `adapters`, a part of `load`, and their files are in no other count.
    `peak_rss` is the process's peak resident memory in bytes, shared file pages included. `counters` holds what transforms
    counted, for example `overflow`.
    """

    rank: int
    seconds: dict[str, float]
    bytes_planned: int
    bytes_read: int
    bytes_repeated: int
    bytes_by_call: int
    bytes_mapped: int
    bytes_viewed: int = 0
    bytes_arena: int
    bytes_adapters: int = 0
    peak_rss: int
    counters: dict[str, int] = {}

    def line(self) -> str:
        """Return one parseable line of `key=value` pairs: rank, bytes, seconds, MB/s and peak RSS."""
        load = self.seconds.get("load", 0.0)
        rate = self.bytes_read / load / 1e6 if load else 0.0
        adapters = f" adapter_bytes={self.bytes_adapters}" if self.bytes_adapters else ""
        return (
            f"loadmaster rank={self.rank} bytes={self.bytes_read} seconds={load:.3f} "
            f"mb_per_s={rate:.1f} peak_rss_mb={self.peak_rss / 1e6:.1f}{adapters}"
        )


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a load did in total.

    `seconds` has the wall time of every stage as the host saw it, `total` among them; `memory_usable` the bytes of host memory
    that later stages may count on (0: not looked at).
    """

    digest: str
    seconds: dict[str, float]
    bytes_planned: int
    bytes_read: int
    bytes_unique: int
    ranks: tuple[RankReport, ...]
    memory_usable: int = 0
    notices: tuple[str, ...] = ()

    @property
    def amplification(self) -> float:
        """Bytes brought into the node over unique bytes: 1.0 when nothing was read twice."""
        charged = sum(rank.bytes_read - rank.bytes_repeated for rank in self.ranks)
        return charged / self.bytes_unique if self.bytes_unique else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["amplification"] = self.amplification
        return plain

    def __str__(self) -> str:
        return "\n".join(rank.line() for rank in self.ranks)
