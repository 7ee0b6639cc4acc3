"""The `tensor-parallel` shard strategy: columns, rows, heads and vocabulary, in equal or uneven parts."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.sharding import ShardStrategy
from loadmaster_plugins.tensor_parallel.strategy import TensorParallel


@hookimpl
def loadmaster_shard_strategies() -> list[ShardStrategy]:
    """Return the one strategy of this plugin."""
    return [TensorParallel()]
