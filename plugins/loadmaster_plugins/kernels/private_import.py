"""Imports one module of an installed package without running the package's own `__init__`.

The root of a package may import much that is not needed, or fail on a newer release of something it uses, while the one module
that is wanted works. What is imported here is a private copy: it is in nobody's `sys.modules` afterwards, so that whoever
imports the package itself gets it whole, and a setting of the copy changes nothing for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Final

_LOCK: Final = Lock()


def installed(root: str) -> bool:
    """Whether the top-level package `root` can be found. Imports nothing."""
    return importlib.util.find_spec(root) is not None


@cache
def private_module(name: str) -> ModuleType:
    """Return a private copy of the module `name`, below packages that are entered but not run. One copy per process.

    Raises ImportError when the module, or something that it imports, is not there.
    """
    with _LOCK:
        root = name.partition(".")[0]
        public = _taken_out(root)
        try:
            for package in _packages(name):
                _enter(package)
            return importlib.import_module(name)
        finally:
            _taken_out(root)
            sys.modules.update(public)


def _packages(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _enter(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"no package named {package}", name=package)
    sys.modules[package] = importlib.util.module_from_spec(spec)


def _taken_out(root: str) -> dict[str, ModuleType]:
    """Take the package `root` and all below it out of `sys.modules` and return them."""
    names = [name for name in sys.modules if name == root or name.startswith(f"{root}.")]
    return {name: sys.modules.pop(name) for name in names}
