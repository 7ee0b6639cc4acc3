"""Adapters of a loaded model: opened, planned, brought in and taken away while requests run."""

from __future__ import annotations

from loadmaster.adapters.opening import open_adapters

__all__ = ["open_adapters"]
