"""Arena pages: made ready beside other work without losing what is written meanwhile, private, and cheap for small arenas."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from loadmaster_engine.load import pages
from loadmaster_engine.load.arena import HostArena
from loadmaster_engine.load.pages import WORTHWHILE, Prefault, anonymous


def field(name: str) -> int:
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) * 1024 for row in rows if row[0] == f"{name}:")


def prefaulting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loadmaster-prefault"]


def wait_until(done: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.01)
    assert done()  # type: ignore[operator]


@pytest.mark.parametrize("huge", [True, False])
def test_pages_become_present_and_keep_what_is_written_meanwhile(huge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_huge_pages_pay", lambda: huge)
    before = field("RssAnon")
    memory = anonymous(WORTHWHILE)
    memory[-3:] = b"end"
    prefault = Prefault(memory)
    memory[:5] = b"begin"
    wait_until(lambda: not prefaulting())
    assert field("RssAnon") - before > 0.95 * WORTHWHILE
    assert (memory[:5], memory[5:8], memory[-3:]) == (b"begin", b"\0\0\0", b"end")
    prefault.stop()


def test_the_memory_is_the_process_own_and_not_shared_memory() -> None:
    before = field("RssShmem")
    memory = anonymous(8 << 20)
    memory[:] = b"x" * (8 << 20)
    assert field("RssShmem") - before < 1 << 20


def test_a_stopped_thread_ends_early_and_a_small_arena_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena(WORTHWHILE - 1)
    assert prefaulting() == []
    arena.settle()
    monkeypatch.setattr(pages, "STEP", 4096)
    stopped = Prefault(anonymous(4 * WORTHWHILE))
    stopped.stop()
    wait_until(lambda: not prefaulting(), 2.0)


def test_a_kernel_without_the_call_only_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "POPULATE_WRITE", 9999)
    memory = anonymous(WORTHWHILE)
    Prefault(memory)
    wait_until(lambda: not prefaulting())
    memory[:1] = b"x"
    assert memory[:1] == b"x"


def test_the_probe_prefers_the_faster_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    for huge, small, pays in ((1.0, 2.0, True), (2.0, 1.0, False)):
        times = {mmap.MADV_HUGEPAGE: huge, mmap.MADV_NOHUGEPAGE: small}
        monkeypatch.setattr(pages, "_touch", times.__getitem__)
        assert pages._huge_pages_pay() is pays
    monkeypatch.undo()
    assert pages._touch(mmap.MADV_NOHUGEPAGE) > 0
