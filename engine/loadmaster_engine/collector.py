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
            gc.enable()
