"""Waiting for a call that another thread makes: what has not begun in time is not made at all."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from loadmaster_hookspecs.errors import ResourceError

T = TypeVar("T")


def result_or_late(done: Future[T], seconds: float, late: ResourceError) -> T:
    """Return what a call gives, or raise what it raises.

    Raises `late` when it has not begun within `seconds`: then it never will. One that has begun may take as long again.
    """
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise  # the call's own
        if done.cancel():
            raise late from None
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise late from None
