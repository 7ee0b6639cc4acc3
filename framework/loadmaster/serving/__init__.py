"""Serving: many requests at once over one loaded model."""

from __future__ import annotations

from loadmaster.serving.engine import AsyncEngine
from loadmaster.serving.settings import EngineSettings, settings_from
from loadmaster.serving.types import Delta, EngineStats, SamplingParams, ServingEngine, TokenLogprob

__all__ = [
    "AsyncEngine",
    "Delta",
    "EngineSettings",
    "EngineStats",
    "SamplingParams",
    "ServingEngine",
    "TokenLogprob",
    "settings_from",
]
