"""All adapters of one rank's model: the calls that bring and take them, and the choice that steps make among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadmaster_engine.load.adapters import AdapterLoad
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.adapters.axes import TokenAxes
from loadmaster_engine.run.adapters.merging import Merged, merge, put
from loadmaster_engine.run.adapters.resident import Resident
from loadmaster_engine.run.adapters.selection import Selection
from loadmaster_engine.run.agreement import ADAPTER, Agreement
from loadmaster_engine.run.groups import Group
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.serve.adapter_messages import AdapterBuild, AdapterClose, AdapterMove, AdapterOpen, AdapterState
from loadmaster_hookspecs.errors import UsageError, WorkerError, from_report
from loadmaster_hookspecs.executors import Result
from loadmaster_hookspecs.sharding import ModulePlacement

if TYPE_CHECKING:
    import torch


class Adapters:
    """The adapters of one rank, by number. All ranks are called alike and in the same order.

    `open`, `move`, `build` and `close` answer the ops of these names with AdapterState and tell what goes wrong in it. They
    raise for calls out of order, and when the ranks can no longer reach each other.
    """

    def __init__(
        self, host: PluginHost, model: torch.nn.Module, placements: Sequence[ModulePlacement], group: Group, device: str
    ) -> None:
        self._host = host
        self._model = model
        self._shared = frozenset(placed.path for placed in placements if placed.placement.collective_out == "sum")
        self._group = group
        self._device = device
        self._axes = TokenAxes()
        self._residents: dict[int, Resident] = {}
        self._merged: Merged | None = None
        self.selection = Selection(model, self._axes)

    def open(self, body: bytes) -> Result:
        """Reserve an adapter's memory and open its files."""
        asked = decode(body, AdapterOpen)
        if asked.number <= 0 or asked.number in self._residents:
            raise WorkerError("LM-SERVICE-ORDER", f"an adapter was opened with number {asked.number}, which is taken")
        adapter = self._residents[asked.number] = Resident(asked.number, asked.plan)

        def begin() -> None:
            self.selection.check_fits(adapter)
            load = AdapterLoad(self._host, asked.plan, self._device)
            adapter.hold(load)
            load.read_ahead()

        adapter.attempt(begin)
        return self._answer(adapter)

    def move(self, body: bytes) -> Result:
        """Move bytes of an adapter into its memory."""
        asked = decode(body, AdapterMove)
        adapter = self._resident(asked.number)
        adapter.attempt(lambda: adapter.move(asked.seconds))
        return self._answer(adapter)

    def build(self, body: bytes) -> Result:
        """Prepare the next parts of an adapter, on all ranks at once: when one cannot, none does."""
        asked = decode(body, AdapterBuild)
        adapter = self._resident(asked.number)
        self._build(adapter, asked.parts)
        return self._answer(adapter)

    def close(self, body: bytes) -> Result:
        """Take an adapter away, if it is there: whoever could not open one closes it, too. Its last state is the answer."""
        asked = decode(body, AdapterClose)
        adapter = self._residents.get(asked.number)
        if adapter is None:
            return Result(body=encode(AdapterState(number=asked.number)))
        state = adapter.state
        self._close(adapter)
        return Result(body=encode(state))

    def end(self) -> None:
        """Take all adapters away."""
        for adapter in list(self._residents.values()):
            self._close(adapter)

    def take(self, number: int, load: AdapterLoad, agreement: Agreement) -> None:
        """Make an adapter that was loaded with the model ready. Raises what makes that impossible; the others are not told."""
        adapter = self._residents[number] = Resident(number, load.plan)

        def build() -> None:
            adapter.hold(load)
            adapter.build(self._host, self._model, self._shared, agreement.sum, len(load.plan.parts))

        adapter.attempt(build)
        if adapter.state.error is not None:
            raise from_report(adapter.state.error)
        self._answer(adapter)

    def merge(self, load: AdapterLoad, agreement: Agreement) -> None:
        """Change the weights by an adapter: number 0 is then the model with it. Raises like `take`."""
        self._merged = merge(self._host, self._model, load, self._shared, agreement.sum)

    @property
    def merged(self) -> Merged:
        """What merging changed. Raises UsageError LM-USAGE-ADAPTER when nothing is merged."""
        if self._merged is None:
            raise UsageError("LM-USAGE-ADAPTER", "no adapter is merged into the model")
        return self._merged

    def unmerge(self) -> None:
        """Take back what merging replaced, after the changed parameters were read again: number 0 is then the base."""
        for name, own in self.merged.own.items():
            put(self._model, name, own)
        self._merged = None

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Run the base model, with modules that have their own code back: what they multiply with is chosen meanwhile."""
        self.selection.one(0)
        with self.selection.aside():
            yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Learn from steps of the base model, one of a single token and then one of several, how modules see tokens.

        Raises PlanError for an adapter that cannot be served.
        """
        self.selection.one(0)
        with self._axes.watching(self._model):
            yield
        for adapter in self._residents.values():
            self.selection.check_fits(adapter)

    def _build(self, adapter: Resident, parts: int) -> None:
        agreement = Agreement(self._group, self._device, ADAPTER)

        def build() -> None:
            adapter.build(self._host, self._model, self._shared, agreement.sum, parts)
            agreement.done()

        adapter.attempt(build)
        agreement.end(adapter.state.error)

    def _close(self, adapter: Resident) -> None:
        del self._residents[adapter.number]
        self.selection.drop(adapter.number)
        adapter.close()

    def _answer(self, adapter: Resident) -> Result:
        """Let steps choose the adapter once it is ready, and no more when it failed, and say how far it is."""
        state = adapter.state
        if state.ready:
            self.selection.add(adapter)
        elif state.error is not None:
            self.selection.drop(adapter.number)
        return Result(body=encode(state))

    def _resident(self, number: int) -> Resident:
        if number not in self._residents:
            raise WorkerError("LM-SERVICE-ADAPTER", f"there is no adapter {number} to go on with")
        return self._residents[number]
