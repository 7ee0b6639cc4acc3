"""Waiting for calls of other threads: those that have not begun in time are never made, those that have are waited for."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from loadmaster.late import result_or_late
from loadmaster_hookspecs.errors import ResourceError

LATE = ResourceError("LM-ENGINE-BUSY", "no time")


def test_what_has_not_begun_in_time_is_never_made() -> None:
    waiting: Future[int] = Future()
    with pytest.raises(ResourceError, match="LM-ENGINE-BUSY"):
        result_or_late(waiting, 0.01, LATE)
    assert waiting.cancelled()


def test_what_has_begun_is_waited_for_once_more() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert goes_on.wait(30)
        return 3

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        assert begun.wait(30)
        threading.Timer(0.1, goes_on.set).start()
        assert result_or_late(done, 0.08, LATE) == 3


def test_a_call_that_is_late_itself_says_so() -> None:
    done: Future[int] = Future()
    done.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_or_late(done, 1, LATE)
