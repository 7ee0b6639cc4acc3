"""Building a rank's model beside its load: modules are made by Python, while ranks meet and bytes move outside of it."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock, Thread
from typing import Final

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.models import CausalModel
from loadmaster_hookspecs.plan import LoadPlan

_one_at_a_time: Final = Lock()
"""Modelling code changes settings of the whole process while it builds, such as the default element type. Ranks that share a
process take turns."""


def begin_build(host: PluginHost, plan: LoadPlan) -> Future[CausalModel]:
    """Start building the model of the plan's only rank on a thread of its own; the result raises what the build raises."""
    outcome: Future[CausalModel] = Future()

    def build() -> None:
        try:
            family = host.family(plan.family)
            with _one_at_a_time, host.attributed(family, f"build of model family {family.name}"):
                outcome.set_result(family.build(plan.config, plan.dtype, plan.ranks[0].modules))
        except BaseException as error:  # noqa: BLE001  boundary: whatever ends the build reaches who waits for it
            outcome.set_exception(error)

    Thread(target=build, name="loadmaster-build", daemon=True).start()
    return outcome
