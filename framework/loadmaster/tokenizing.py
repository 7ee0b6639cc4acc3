"""The model's tokenizer in the host, made while it waits for its workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Final

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import Tokenizer

PATIENCE: Final = 60.0
"""Seconds that whoever asks waits for a tokenizer that is being made, before making another one."""


def make_tokenizer(host: PluginHost, index: CheckpointIndex) -> Tokenizer:
    """Return the tokenizer that lies beside the weights. Raises UsageError when there is none."""
    family = host.match_family(index.config)
    source = host.open_source(index.source)
    with host.attributed(family, f"tokenizer of model family {family.name}"):
        return family.tokenizer(index, SmallFiles(source))


class TokenizerAhead:
    """A tokenizer that is made once: by a thread if `begin` was called, else by whoever asks first.

    What goes wrong on the thread is not told: whoever asks makes it again, and gets the error where it belongs.
    """

    def __init__(self, make: Callable[[], Tokenizer]) -> None:
        self._make = make
        self._made: Tokenizer | None = None
        self._making: Future[Tokenizer] | None = None

    def begin(self) -> None:
        """Make it on a thread of its own, which ends with this process if it is stuck."""
        self._making = Future()
        Thread(target=self._fulfil, args=(self._making,), name="loadmaster-tokenizer", daemon=True).start()

    def get(self) -> Tokenizer:
        """Return the tokenizer. Raises what making it raises."""
        if self._made is None:
            self._made = self._finished() or self._make()
        return self._made

    def _fulfil(self, making: Future[Tokenizer]) -> None:
        try:
            making.set_result(self._make())
        except BaseException as error:  # boundary: whoever asks meets the error again # noqa: BLE001
            making.set_exception(error)

    def _finished(self) -> Tokenizer | None:
        """Return what the thread made, or None where there is no thread, it failed, or it is not done in time."""
        if self._making is None:
            return None
        wait([self._making], PATIENCE)
        made = self._making.done() and self._making.exception() is None
        return self._making.result() if made else None
