"""Python's garbage collector, held back while a model is brought up.

Imports and plans make hundreds of thousands of objects that stay. The collector walks them again and again and finds next to
nothing: a sixth of the time that torch and transformers take to import is its own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let nothing collect garbage inside, in this whole process; afterwards the collector is as it was.

    Memory of objects without cycles is given back at once all the same. Leaves a collector alone that is off already.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _age()
            gc.enable()


def _age() -> None:
    """Put all objects into the oldest generation, as if they had outlived collections, which is what most of them would have.

    Otherwise the very next allocation would have all of them walked after all. Where someone keeps objects frozen, nothing is
    done: `unfreeze` would thaw those as well.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
