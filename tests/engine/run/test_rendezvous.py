"""How ranks find each other: everything that is wrong is said at once, and no port is fixed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.executors.process_watch import open_files
from loadmaster_engine.run.rendezvous import MeetingFile, check_init_method, memory_address, open_store
from loadmaster_hookspecs import UsageError


def test_an_incomplete_environment_is_told_in_one_message() -> None:
    with pytest.raises(UsageError) as caught:
        check_init_method("env://", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "abc"}, 2)
    why = caught.value.report.why
    assert "RANK is not set" in why
    assert "MASTER_PORT is 'abc'" in why


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("tcp://127.0.0.1", "the port"),
        ("tcp://:80000", "the host is missing; the port is '80000'"),
        ("file:///no/such/folder/store", "/no/such/folder"),
        ("udp://x", "the form is not known"),
        ("nonsense", "the form is not known"),
    ],
)
def test_methods_that_cannot_work_are_refused(method: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_init_method(method, {}, 2)
    assert problem in caught.value.report.why


def test_sound_methods_pass(tmp_path: Path) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    for method in ("auto", "env://", "tcp://127.0.0.1:29400", f"file://{tmp_path}/store"):
        check_init_method(method, environ, 2)


def test_two_meetings_at_once_do_not_mix_and_open_no_socket() -> None:
    before = open_sockets()
    first, second = memory_address(), memory_address()
    for address, value in ((first, "one"), (second, "two")):
        open_store(address, {}, 0, 2).set("who", value)
    assert [open_store(address, {}, 1, 2).get("who") for address in (first, second)] == [b"one", b"two"]
    assert open_sockets() == before


def open_sockets() -> set[str]:
    return {target for target in open_files(os.getpid()).values() if target.startswith("socket:")}


def test_a_file_of_an_earlier_meeting_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.touch()
    check_init_method(f"file://{store}", {}, 2)
    store.write_bytes(b"old")
    for address in (store, tmp_path):
        with pytest.raises(UsageError, match="exists already"):
            check_init_method(f"file://{address}", {}, 2)


@pytest.mark.parametrize("found", [False, True])
def test_the_file_of_a_meeting_is_left_as_it_was_found(tmp_path: Path, found: bool) -> None:
    path = tmp_path / "store"
    method = f"file://{path}"
    if found:
        path.touch()
    for _ in range(2):
        file = MeetingFile(method)
        check_init_method(method, {}, 2)
        open_store(method, {}, 0, 2).set("who", "one")
        assert path.stat().st_size
        for _ in range(2):
            file.clear()
            assert path.exists() == found
            assert not found or path.stat().st_size == 0


def test_other_methods_have_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for method in ("auto", "env://", "tcp://127.0.0.1:29400", f"file://{tmp_path}/never-made"):
        MeetingFile(method).clear()
