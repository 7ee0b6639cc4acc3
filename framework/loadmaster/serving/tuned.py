"""Settings with what `loadmaster tune` found out filled in."""

from __future__ import annotations

import msgspec

from loadmaster.serving.settings import EngineSettings
from loadmaster.tuning.kept import find
from loadmaster_hookspecs.plan import LoadPlan


def with_tuned(settings: EngineSettings, plan: LoadPlan) -> tuple[EngineSettings, str]:
    """Return the settings with a number for `max_running`, and a line for the user, empty where nothing was tuned."""
    if settings.max_running != "auto":
        return settings, ""
    tuning, line = find(plan)
    running = tuning.max_running if tuning else settings.running
    return msgspec.structs.replace(settings, max_running=running), line
