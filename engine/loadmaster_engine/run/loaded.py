"""One set of weights on one rank: its part of a plan, the load of it, and the model that is bound to it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from loadmaster_engine.load.arena import check_device
from loadmaster_engine.load.stages import RankLoad
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.report import RankReport
from loadmaster_engine.run.adapters.adapters import Adapters
from loadmaster_engine.run.agreement import Agreement
from loadmaster_engine.run.building import begin_build
from loadmaster_engine.run.collectives import ModelCollectives, attach
from loadmaster_engine.run.groups import Group
from loadmaster_engine.run.messages import Assignment
from loadmaster_hookspecs.errors import WorkerError
from loadmaster_hookspecs.executors import EventSink
from loadmaster_hookspecs.models import CausalModel

BUILD_SECONDS = 120.0
"""Seconds that a rank waits for its model to be built, at most."""


class LoadedModel:
    """A model on its way from an assignment to answering steps. Its memory goes when it is closed and forgotten.

    Making one begins to build the model, beside the stages of `loading`. Raises UsageError LM-USAGE-DEVICE for a device that
    is not there.
    """

    def __init__(self, host: PluginHost, assignment: Assignment, emit: EventSink) -> None:
        check_device(assignment.device, assignment.rank)
        self.assignment = assignment
        self.loading = RankLoad(host, assignment.plan, 0, assignment.device, emit)
        self._host = host
        self._building = begin_build(host, assignment.plan)
        self._model: CausalModel | None = None
        self._adapters: Adapters | None = None
        self._collectives: ModelCollectives | None = None

    @property
    def model(self) -> CausalModel:
        """The model that is bound to the weights."""
        if self._model is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to run before its model was bound")
        return self._model

    def build(self) -> CausalModel:
        """Wait for the model to be built and return it. Raises what the build raises, and WorkerError LM-BUILD-SLOW."""
        try:
            return self._building.result(timeout=BUILD_SECONDS)
        except TimeoutError:
            if self._building.done():
                raise  # the build's own
            raise WorkerError(
                "LM-BUILD-SLOW",
                f"the model was not built within {BUILD_SECONDS:g} s",
                where={"rank": self.assignment.rank},
                hints=["the machine is overloaded, or the storage that holds the Python packages does not answer"],
            ) from None

    def bind(self, group: Group) -> None:
        """Bind the model to what was loaded, and put the collectives of `group` around its modules."""
        model = self.build()
        self.loading.bind(model)
        modules = self.assignment.plan.ranks[0].modules
        self._collectives = ModelCollectives(group)
        attach(model.module, modules, self._collectives)
        self._collectives.offer_agreement(model.module, self.assignment.device)
        self._model = model
        self._adapters = Adapters(self._host, model.module, modules, group, self.assignment.device)

    @property
    def adapters(self) -> Adapters:
        """The adapters on the model."""
        if self._adapters is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked for adapters before its model was bound")
        return self._adapters

    def adapt(self, agreement: Agreement) -> None:
        """Merge the plan's adapter, or make its adapters choosable, with the numbers from 1 on. All ranks do this at once.

        The others are not told of what it raises: that is up to the caller.
        """
        for number, load in enumerate(self.loading.adapters, 1):
            if self.assignment.plan.settings.adapter_mode == "merged":
                self.adapters.merge(load, agreement)
            else:
                self.adapters.take(number, load, agreement)
        self.loading.adapters = ()

    def within(self, agreement: Agreement) -> AbstractContextManager[None]:
        """Return a context in which the model's modules add up and join by an agreement, so that a rank may fail in them."""
        if self._collectives is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to try a model before it was bound")
        return self._collectives.within(agreement)

    def unmerge(self) -> None:
        """Read again what merging changed."""
        self.loading.replay(self.adapters.merged.touched)
        self.adapters.unmerge()

    def verify(self) -> RankReport:
        """Prove that nothing is left without storage, and return what this rank did."""
        return self.loading.verify(self.model)

    def close(self) -> None:
        """Close the files. The weights live as long as somebody holds the model."""
        if self._adapters is not None:
            self._adapters.end()
        self.loading.close()

    def release(self) -> None:
        """Close the files and take the model apart, so that the weights' memory goes at once. Nothing may use it any more.

        Modules refer to each other, and a garbage collector needs a quarter of a second to find out that nobody else does.
        """
        self.close()
        self.loading.release()
        built = self._building.done() and self._building.exception() is None
        for module in list(self._building.result().module.modules()) if built else ():
            vars(module).clear()
