"""Packed modules are prepared side by side, each with one of torch's threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from loadmaster_engine.load.packed import PackedStack, prepare


class Recorded(PackedStack):
    """A packed module that notes how it was prepared, or fails."""

    def __init__(self, fails: bool = False, together: threading.Barrier | None = None) -> None:
        torch.nn.Module.__init__(self)
        self.fails, self.together = fails, together
        self.threads: list[int] = []

    def prepare(self) -> None:
        self.threads.append(torch.get_num_threads())
        if self.together is not None:
            self.together.wait(timeout=20)
        if self.fails:
            raise ValueError("cannot be prepared")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_modules_are_prepared_at_once_and_with_one_thread_each() -> None:
    together = threading.Barrier(3)
    modules = [Recorded(), *(Recorded(together=together) for _ in range(3))]
    prepare(torch.nn.Sequential(*modules))
    assert [module.threads for module in modules] == [[3], [1], [1], [1]]
    assert torch.get_num_threads() == 3
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [3]


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("failing", [0, 2])
def test_what_one_of_them_raises_is_raised(failing: int) -> None:
    modules = [Recorded(fails=number == failing) for number in range(4)]
    with pytest.raises(ValueError, match="cannot be prepared"):
        prepare(torch.nn.Sequential(*modules))
    assert torch.get_num_threads() == 3


def test_a_single_thread_prepares_one_after_the_other() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        modules = [Recorded() for _ in range(3)]
        prepare(torch.nn.Sequential(*modules))
    finally:
        torch.set_num_threads(before)
    assert [module.threads for module in modules] == [[1], [1], [1]]
