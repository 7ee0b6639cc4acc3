"""From the settings of a command to a running server: checks first, then the model, then connections."""

from __future__ import annotations

import asyncio
import pkgutil
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.sampling import read_defaults
from loadmaster.serving.http.server import serve
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.types import SamplingParams, ServingEngine
from loadmaster_hookspecs.executors import EventSink

ENGINE: Final = "loadmaster.serving.engine:AsyncEngine"
"""The engine's class, by name: loading it must cost nothing where only a command's help is wanted."""

_SAYS_HOW_TO_SAMPLE: Final = ("do_sample", "temperature", "top_k", "top_p")


def make_engine(path: str, *, selection: PluginSelection, on_event: EventSink, **settings: Any) -> ServingEngine:
    """Return the engine for a model, loaded and ready. `settings` are those of a plan and of the engine.

    Raises what planning and loading raise, UsageError for settings that the engine does not have.
    """
    made = pkgutil.resolve_name(ENGINE)(path, selection=selection, on_event=on_event, **settings)
    return cast(ServingEngine, made)


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
