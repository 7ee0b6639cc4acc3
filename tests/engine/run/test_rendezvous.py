"""How ranks find each other: everything that is wrong is said at once, and no port is fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster_engine.run.rendezvous import check_init_method, open_store
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


def test_two_stores_at_once_get_ports_of_their_own() -> None:
    first, second = (open_store("auto", {}, 0, 1) for _ in range(2))
    assert first.port != second.port  # type: ignore[union-attr]
