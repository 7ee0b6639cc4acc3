"""The server as one ASGI application."""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from loadmaster.serving.http.adapters import AdapterEndpoints
from loadmaster.serving.http.disconnect import ClientGone, on_client_gone
from loadmaster.serving.http.endpoints import Endpoints
from loadmaster.serving.http.errors import ApiError, on_api_error, on_http_error, on_unexpected
from loadmaster.serving.http.gate import Gate, Gated
from loadmaster.serving.http.health import HealthEndpoint
from loadmaster.serving.http.host import HostCheck
from loadmaster.serving.http.key import KeyCheck
from loadmaster.serving.http.metrics import Metrics, ResponseCount
from loadmaster.serving.http.models import Models
from loadmaster.serving.http.monitor import Monitor
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.types import ServingEngine
from loadmaster_hookspecs.errors import LoadmasterError


def make_app(
    engine: ServingEngine, settings: ServerSettings, gate: Gate | None = None, monitor: Monitor | None = None
) -> Starlette:
    """Return the application over an engine, which stays the caller's.

    `gate` is what the caller closes to stop it, `monitor` the one place that reads the engine's statistics.
    """
    gate = gate or Gate()
    monitor = monitor or Monitor(engine)
    metrics = Metrics(monitor, settings.report)
    models = Models(engine, settings.models, int(time.time()))
    endpoints = Endpoints(engine, settings, models)
    adapters = AdapterEndpoints(engine, settings, models)
    health = HealthEndpoint(monitor, gate)
    return Starlette(
        routes=[
            Route("/v1/models", models.all, methods=["GET"]),
            Route("/v1/models/{name:path}", models.one, methods=["GET"]),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/load_lora_adapter", adapters.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", adapters.unload, methods=["POST"]),
            Route("/health", health.endpoint, methods=["GET"]),
            Route("/metrics", metrics.endpoint, methods=["GET"]),
        ],
        middleware=[
            Middleware(ResponseCount, responses=metrics.responses),
            *([Middleware(HostCheck, hosts=settings.hosts)] if settings.hosts else []),
            *([Middleware(KeyCheck, key=settings.key, open_paths=("/health",))] if settings.key else []),
            Middleware(Gated, gate=gate),
        ],
        exception_handlers={
            ApiError: on_api_error,
            LoadmasterError: on_api_error,
            ClientGone: on_client_gone,
            HTTPException: on_http_error,
            Exception: on_unexpected,
        },
    )
