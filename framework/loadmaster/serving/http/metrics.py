"""`/metrics` in the text format of Prometheus: the engine's counters, the responses of the server, and what the load did."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadmaster.serving.http.engine_metrics import EngineCollector
from loadmaster.serving.http.monitor import Monitor
from loadmaster_engine.report import LoadReport

_log = logging.getLogger(__name__)

ROUTES: Final = frozenset(
    {
        "/v1/models",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/health",
        "/metrics",
    }
)
"""Paths that are told apart; all others count as `other`, so that strangers cannot make up labels."""


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, monitor: Monitor, report: LoadReport | None) -> None:
        self._registry = CollectorRegistry()
        self.responses = Counter(
            "loadmaster_http_responses", "Responses by path and status.", ["path", "status"], registry=self._registry
        )
        self._registry.register(EngineCollector(monitor))
        if report is not None:
            self._registry.register(LoadCollector(report))

    async def endpoint(self, _: Request) -> Response:
        """Answer `GET /metrics`."""
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})


class LoadCollector(Collector):
    """The numbers of the load report; they do not change while the server runs."""

    def __init__(self, report: LoadReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield seconds by stage and bytes by kind."""
        seconds = GaugeMetricFamily("loadmaster_load_seconds", "Wall time of the stages of the load.", labels=["stage"])
        for stage, value in self._report.seconds.items():
            seconds.add_metric([stage], value)
        yield seconds
        nbytes = GaugeMetricFamily("loadmaster_load_bytes", "Bytes of the load, over all ranks.", labels=["kind"])
        for kind in ("planned", "read", "unique"):
            nbytes.add_metric([kind], getattr(self._report, f"bytes_{kind}"))
        yield nbytes
        yield GaugeMetricFamily(
            "loadmaster_load_amplification", "Bytes brought into the node over unique bytes.", value=self._report.amplification
        )


class ResponseCount:
    """Counts responses by path and status, and logs them."""

    def __init__(self, app: ASGIApp, responses: Counter) -> None:
        self._app = app
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in ROUTES else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                _log.info("%s %r %d", scope["method"], scope["path"], message["status"])
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)
