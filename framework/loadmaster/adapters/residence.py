"""Adapters on the ranks: they arrive whole, stay as long as somebody uses them, and everything they held is given back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, TypeVar

from loadmaster.adapters.catalogue import Catalogue, Entry
from loadmaster.adapters.identity import content_digest
from loadmaster.adapters.moving import Answer, Ask, bring_in, take_away
from loadmaster.adapters.reach import AtOnce, Reach
from loadmaster.adapters.uses import BASE, Use
from loadmaster.late import result_or_late
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.messages import encode
from loadmaster_engine.serve.adapter_messages import AdapterClose
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, ResourceError, UsageError

CALL_SECONDS: Final = 600.0
"""Seconds that a call to the ranks may wait for its turn and take."""

T = TypeVar("T")


class Residence:
    """What of the catalogue lies on the ranks. One thread lets adapters arrive; all else may be called from any.

    `ask` calls the ranks, at the moments that `reach` finds and in a `turn`: whoever has the ranks forget everything holds it
    too, so that nothing is asked about an adapter that they have just forgotten. `closing` ends an arrival at its next slice.
    """

    def __init__(
        self,
        host: PluginHost,
        catalogue: Catalogue,
        ask: Ask,
        turn: Callable[[], AbstractContextManager[None]],
        tell: Callable[[str], None],
    ) -> None:
        self.reach: Reach = AtOnce()
        self.closing = False
        self._host = host
        self._catalogue = catalogue
        self._ask = ask
        self._turn = turn
        self._tell = tell
        self._arriving: Entry | None = None

    def arrive(self, entry: Entry) -> None:
        """Bring an adapter to the ranks and let requests name it.

        Raises what is wrong with it, and then nobody has it, and those that made room for it are loaded again.
        """
        victims = self._make_room(entry)
        try:
            self._settle(entry)
        except BaseException:  # boundary: whatever stopped it, others are not lost for it
            for victim in victims:
                self._return(victim)
            raise

    def use(self, name: str) -> Use:
        """Hold an adapter for a request; an empty name stands for the base. Raises UsageError for an unknown name."""
        if not name:
            return BASE
        entry = self._catalogue.use(name)
        if not entry.number:
            return Use(end=lambda: self._release(entry))
        return Use(entry.number, entry.digest, lambda: self._release(entry), partial(_check_there, entry))

    def leave(self, name: str) -> Future[int]:
        """Let no more requests name an adapter. The future has the bytes given back, once those that use it have ended."""
        entry, unused = self._catalogue.retire(name)
        if unused:
            self._close(entry)
        return entry.closed

    def forget(self) -> None:
        """Note, on the thread that calls the ranks, that they have given everything back."""
        arriving = () if self._arriving is None else (self._arriving,)
        for entry in (*self._catalogue.held(), *arriving):
            entry.resident = False

    def bring_back(self, ask: Ask) -> dict[int, str]:
        """Load all adapters again, under their numbers, onto ranks that have forgotten them.

        Those whose files have changed or gone are dropped: returns what is to be told about them, by their numbers.
        """
        lost = {}
        for entry in self._catalogue.held():
            if entry.resident:
                continue
            try:
                self._bring_in(ask, entry)
                entry.resident = True
            except LoadmasterError as error:
                lost[entry.number] = f"adapter {entry.name} cannot be loaded again and is dropped: {error.report.summary}"
                if not entry.retired:
                    with contextlib.suppress(UsageError):  # it was unloaded at this moment
                        self.leave(entry.name)
        return lost

    def _settle(self, entry: Entry) -> None:
        """Bring an adapter for which there is room to the ranks, in the place of what has its name."""
        self._arriving = entry
        try:
            self._bring_in(partial(self._ask_between, entry), entry)
            replaced = self._between(entry, partial(self._catalogue.publish, entry))
        finally:
            self._arriving = None
        if replaced is not None:
            self._close(replaced)

    def _return(self, victim: Entry) -> None:
        """Load an adapter again, under its number, that made room for one which did not arrive. Says what comes of it."""
        if self.closing:
            return
        try:
            self._settle(Entry(victim.plan, victim.number, victim.digest))
        except LoadmasterError as error:
            self._tell(f"adapter {victim.name} made room and cannot be loaded again: {error.report.summary}")
        else:
            self._tell(f"adapter {victim.name} ({victim.nbytes} bytes) is there again")

    def _make_room(self, entry: Entry) -> Sequence[Entry]:
        """Take away what must go for an adapter, say so, and return it."""
        wait([each.closed for each in self._catalogue.held() if each.retired and not each.uses], CALL_SECONDS)
        victims = self._catalogue.make_room(entry.name, entry.nbytes)
        for victim in victims:
            self._close(victim)
            wait([victim.closed], CALL_SECONDS)
            self._tell(f"adapter {victim.name} ({victim.nbytes} bytes) made room for {entry.name} ({entry.nbytes} bytes)")
        return victims

    def _bring_in(self, ask: Ask, entry: Entry) -> None:
        """Bring an adapter to the ranks, and make sure that it is the one whose content is known."""
        bring_in(ask, entry.plan, entry.number, self.reach.slice_seconds)
        try:
            self._check_content(entry)
        except LoadmasterError:
            with contextlib.suppress(LoadmasterError):  # ranks that have ended hold nothing
                take_away(ask, entry.number)
            raise

    def _check_content(self, entry: Entry) -> None:
        if content_digest(self._host, entry.plan.source, entry.plan.files) != entry.digest:
            raise IntegrityError(
                "LM-ADAPTER-CHANGED",
                "the adapter's files changed while they were read",
                where={"adapter": entry.name, "source": entry.plan.source},
                hints=["load it again once they are complete"],
            )

    def _ask_between(self, entry: Entry, op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        return self._between(entry, partial(self._ask, op, bodies))

    def _between(self, entry: Entry, work: Callable[[], T]) -> T:
        """Do something about an adapter that arrives, when the ranks have time for it, and wait for what comes of it."""
        if self.closing:
            raise closing()

        def call() -> T:
            with self._turn():
                if not entry.resident:
                    why = "the engine fell asleep, or changed its weights"
                    raise ResourceError(
                        "LM-ADAPTER-ASLEEP", "an adapter did not arrive in time", why=why, hints=["load it again"]
                    )
                return work()

        late = ResourceError("LM-ENGINE-BUSY", f"the ranks had no time for an adapter in {CALL_SECONDS:.0f} s")
        return result_or_late(self.reach.begin(call), CALL_SECONDS, late)

    def _release(self, entry: Entry) -> None:
        if self._catalogue.release(entry):
            self._close(entry)

    def _close(self, entry: Entry) -> None:
        """Take an adapter that nobody uses any more from the ranks."""

        def call() -> Answer:
            with self._turn():
                if not entry.resident:
                    return Answer((), 0.0)  # given back with the weights, or merged into them
                return self._ask("adapter_close", encode(AdapterClose(number=entry.number)))

        self.reach.begin(call).add_done_callback(partial(self._closed, entry))

    def _closed(self, entry: Entry, answer: Future[Answer]) -> None:
        self._catalogue.drop(entry)
        error = answer.exception()
        if error is not None:
            entry.closed.set_exception(error)
        else:
            entry.closed.set_result(sum(state.nbytes for state in answer.result().states))


def _check_there(entry: Entry) -> None:
    if not entry.resident:
        why = "it could not be loaded again onto new weights"
        raise UsageError("LM-USAGE-ADAPTER", f"adapter {entry.name!r} is no longer there", why=why)


def closing() -> ResourceError:
    """Return what loads are refused with once the engine closes."""
    return ResourceError("LM-ENGINE-DRAINING", "the engine is closing and loads no more adapters")
