"""Loading one rank's part of an adapter into an arena of its own, in one go or piece by piece between other work."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from loadmaster_engine.attribution import AttributedFormat, AttributedTransform
from loadmaster_engine.load.arena import reserve
from loadmaster_engine.load.finite import FiniteCheck
from loadmaster_engine.load.readahead import will_need
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.transfer import Transfer
from loadmaster_engine.plan.adapter_source import AdapterSource
from loadmaster_engine.plan.shares import merged
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError
from loadmaster_hookspecs.plan import AdapterPlan
from loadmaster_hookspecs.transforms import Transform

if TYPE_CHECKING:
    import torch

PIECE_BYTES: Final = 1 << 20
"""Bytes moved between two looks at the clock, at most: well under a millisecond's work."""


class AdapterLoad:
    """An adapter on one rank: exactly the planned bytes are reserved, then filled by `move`.

    `tensors` has, once `done`, the tensors by their names in the plan. The memory lives as long as somebody holds one of them,
    unless `close` gives it back. `plan` has this rank's part only. All methods raise IntegrityError when a file is not the one
    that was planned from, ends early, or holds NaN or infinity, and ResourceError when memory or storage fail.
    """

    def __init__(self, host: PluginHost, plan: AdapterPlan, device: str) -> None:
        self.plan = plan
        self.part = plan.ranks[0]
        self.total = self.part.bytes_planned
        self.done = False
        self.tensors: dict[str, torch.Tensor] = {}

        def transform(name: str, version: int) -> Transform:
            return AttributedTransform(host, host.transform(name, version))

        with self._located():
            source = AdapterSource(host.open_source(plan.source))
            self._files = FileSet(plan, source, AttributedFormat(host, host.format(plan.format)))
            self._arena = reserve(self.part.bytes, device, self.part.rank)
        dtypes = {binding.parameter: binding.dtype for binding in self.part.bindings}
        check = FiniteCheck(dtypes, self._files.name)
        self._transfer = Transfer(self.part, self._files, self._arena, transform, piece=PIECE_BYTES, check=check)
        self._transfer.concurrent = False  # threads would go on while others work
        self._pieces = self._transfer.pieces()
        if not self.total:
            self.move(0.0)  # zeros alone

    @property
    def moved(self) -> int:
        """Bytes of the files that are in their place."""
        return self._transfer.moved

    def read_ahead(self) -> None:
        """Open the files, and have the bytes of this rank brought into the page cache meanwhile."""
        with self._located():
            try:
                for part in merged((op.file, op.source.offset, op.source.end) for op in self.part.reads):
                    with self._files.explained(part.file, part.start):
                        mapping = self._files.mapping(part.file)
                        if mapping is not None:
                            will_need(mapping, part.start, part.stop)
            finally:
                self._files.close()

    def move(self, seconds: float = math.inf) -> None:
        """Move bytes for about `seconds`, at least a piece, or until all are there."""
        end = time.monotonic() + seconds
        with self._located():
            for _ in self._pieces:
                if self.moved < self.total and time.monotonic() >= end:
                    return
            self._finish()

    def close(self) -> None:
        """Give the memory back and close the files. Nothing may use the tensors any more. Safe to call twice."""
        self._pieces.close()
        self._files.close()
        self.tensors = {}
        self._arena.settle()
        self._arena.release(0)

    def _finish(self) -> None:
        if self.done:
            return
        self._files.close()
        self._arena.settle()
        if self.moved != self.total:
            raise IntegrityError(
                "LM-VERIFY-BYTES",
                "the bytes read are not the bytes planned",
                where={"rank": self.part.rank},
                why=f"{self.total} planned, {self.moved} read",
            )
        self.tensors = {binding.parameter: self._arena.view(binding) for binding in self.part.bindings}
        self.done = True

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Say in every error which adapter it is about."""
        try:
            yield
        except LoadmasterError as error:
            raise error.located(adapter=self.plan.name) from error


def load_adapter(host: PluginHost, plan: AdapterPlan, device: str) -> AdapterLoad:
    """Return an adapter with all its bytes in their place. Raises what AdapterLoad raises."""
    load = AdapterLoad(host, plan, device)
    try:
        load.move()
    except LoadmasterError:
        load.close()
        raise
    return load
