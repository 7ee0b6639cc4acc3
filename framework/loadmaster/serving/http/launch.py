"""From the settings of a command to a running server: checks first, then the model, then connections."""

from __future__ import annotations

import asyncio
import pkgutil
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.sampling import read_defaults
from loadmaster.serving.http.server import serve
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.types import SamplingParams, ServingEngine
from loadmaster_engine.report import LoadReport
from loadmaster_hookspecs.executors import EventSink

ENGINE: Final = "loadmaster.serving.engine:AsyncEngine"
SETTINGS: Final = "loadmaster.serving.settings:settings_from"
"""The engine's class and what checks its settings, by name: they are imported when a model is to be loaded."""

_SAYS_HOW_TO_SAMPLE: Final = ("do_sample", "temperature", "top_k", "top_p")


class Loaded(NamedTuple):
    """An engine that is ready, and what its load did."""

    engine: ServingEngine
    report: LoadReport


def make_engine(
    path: str, settings: Mapping[str, Any], *, selection: PluginSelection, on_event: EventSink, **options: Any
) -> Loaded:
    """Return the engine for a model. `settings` are the engine's, `options` those of `loadmaster.Engine`.

    Raises UsageError for settings that the engine does not have, then what planning and loading raise.
    """
    checked = pkgutil.resolve_name(SETTINGS)(settings)
    engine = pkgutil.resolve_name(ENGINE)(path, settings=checked, selection=selection, on_event=on_event, **options)
    return Loaded(engine, engine.model.report)


def model_defaults(path: str, selection: PluginSelection) -> SamplingParams:
    """Return how a model samples when a request does not say. Reads headers and configuration only.

    The model's `generation_config.json` decides; where it says nothing, the OpenAI API's defaults hold (temperature 1).
    """
    index = open_index(PluginHost(selection), path)
    if not any(index.generation.get(name) is not None for name in _SAYS_HOW_TO_SAMPLE):
        return SamplingParams(temperature=1.0)
    found = read_defaults(index)
    return SamplingParams(temperature=found.temperature, top_k=found.top_k, top_p=found.top_p)


def run_server(engine: ServingEngine, settings: ServerSettings, listening: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, and return when all has ended. Owns engine and socket from here on."""
    asyncio.run(serve(engine, settings, listening, on_start))
