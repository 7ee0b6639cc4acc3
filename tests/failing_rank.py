"""A plugin by which a function fails on rank 1 alone, in this process or in its worker, when a test says which and when."""

from __future__ import annotations

import os
import pkgutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from loadmaster.plugin import Event, hookimpl

ORDERS: Final = "LOADMASTER_TEST_FAILING"
"""The variable that names the file with the order: function, number of the call, error. There is none while nothing fails."""

WORDS: Final = "rank 1 alone"
FUNCTIONS: Final = {
    "trial": "loadmaster_engine.run.paged.part:ServingPart.take_over",
    "attention": "loadmaster_plugins.transformers_models.paged:probe_attention",
    "both ways": "loadmaster_plugins.transformers_models.trial:Noted.attend",
    "lean": "loadmaster_plugins.transformers_models.lean:LeanLayer._feed",
    "product": "loadmaster_engine.load.packed:PackedLinear.forward",
    "step": "transformers.models.llama.modeling_llama:LlamaMLP.forward",
    "norms": "loadmaster_plugins.lora.product:magnitude_factor",
}
ERRORS: Final[dict[str, type[Exception]]] = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}


def rank() -> str:
    """Return the name of the rank whose thread or process this is."""
    here = threading.current_thread().name
    return here if here.startswith("loadmaster-r") else Path("/proc/self/comm").read_text().strip()


def breaking(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is the other one but where an order for it is there."""
    calls: dict[int, Iterator[int]] = defaultdict(count)  # of every order, from 0 on

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        orders = Path(os.environ[ORDERS])
        if rank() == "loadmaster-r1" and orders.exists():
            wanted, number, error = orders.read_text().splitlines()
            if wanted == name and next(calls[orders.stat().st_mtime_ns]) == int(number):
                raise ERRORS[error](f"{WORDS} has no memory")
        return function(*args, **kwargs)

    return wrapper


def install(replace: Callable[[Any, str, Any], None]) -> None:
    """Replace all functions by ones that can fail."""
    for name, target in FUNCTIONS.items():
        path, _, attribute = target.rpartition(":")
        owner, _, last = attribute.rpartition(".")
        place = pkgutil.resolve_name(f"{path}:{owner}" if owner else path)
        replace(place, last, breaking(name, getattr(place, last)))


class Failing:
    """Gives and takes back orders."""

    def __init__(self, orders: Path) -> None:
        self._orders = orders

    @contextmanager
    def fails(self, name: str, number: int = 0, error: str = "MemoryError") -> Iterator[None]:
        """Have rank 1 fail in call `number` of a function, from when the order is given."""
        self._orders.write_text(f"{name}\n{number}\n{error}")
        yield
        self._orders.unlink()


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Let rank 1 fail on order, in this process and in workers of engines with the plugin `failing_rank`."""
    monkeypatch.setenv(ORDERS, str(tmp_path / "orders"))
    install(monkeypatch.setattr)
    return Failing(tmp_path / "orders")


@hookimpl
def loadmaster_event(event: Event) -> None:
    """Take part as a plugin, so that workers import this."""


if rank().startswith("loadmaster-r"):
    install(setattr)
