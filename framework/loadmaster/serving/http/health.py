"""`/health`: whether requests make sense now."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from loadmaster.serving.http.gate import Gate
from loadmaster.serving.http.monitor import Monitor
from loadmaster.serving.http.replies import json_reply


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The server at one moment. `last_step_age` is seconds since the engine's last sign of life."""

    healthy: bool
    status: Literal["ok", "draining", "dead"]
    stage: str
    last_step_age: float
    running: int
    waiting: int


class HealthEndpoint:
    """Answers 200 while the engine lives and requests are let in, 503 otherwise."""

    def __init__(self, monitor: Monitor, gate: Gate) -> None:
        self._monitor = monitor
        self._gate = gate

    async def endpoint(self, _: Request) -> Response:
        """Answer `GET /health`."""
        health = self.read()
        return json_reply(health, 200 if health.healthy else 503)

    def read(self) -> Health:
        """Return the server's health now."""
        stats = self._monitor.read()
        status: Literal["ok", "draining", "dead"] = "dead" if not stats.alive else "draining" if self._gate.closing else "ok"
        return Health(
            healthy=status == "ok",
            status=status,
            stage=stats.stage,
            last_step_age=stats.last_step_age,
            running=stats.running,
            waiting=stats.waiting,
        )
