"""From stored names to modules of the model: what a tensor is, whose it is, and a prefix that may have to be repaired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

PEFT_PREFIX: Final = "base_model.model."
"""What peft puts in front of the model's own names."""

WRAPPED: Final = ".base_layer."
"""What peft puts between a module that it wraps and that module's own parameters."""

NESTED: Final = ".base_layer"
"""What peft puts behind a module's path for each wrapper that lies around the one in question."""


class Sorted(NamedTuple):
    """Stored tensors by the module path in their names: `changed` by role, `plain` by the parameter they would replace.

    `inner` has what changes modules inside of other wrappers, by path, then by the number of these, then by role.
    """

    changed: dict[str, dict[str, str]]
    plain: dict[str, dict[str, str]]
    inner: dict[str, dict[int, dict[str, str]]]


def sort_names(names: Iterable[str], roles: Mapping[str, str]) -> Sorted:
    """Sort stored names by what they are: `roles` has the ends of the names of tensors that change modules, and their parts.

    Nothing is dropped: what has none of these ends is a plain parameter.
    """
    changed: dict[str, dict[str, str]] = defaultdict(dict)
    plain: dict[str, dict[str, str]] = defaultdict(dict)
    inner: dict[str, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for name in names:
        own = name.removeprefix(PEFT_PREFIX)
        ending = next((end for end in roles if own.endswith(end)), None)
        if ending is not None:
            path, depth = _unwrap(own.removesuffix(ending))
            (inner[path][depth] if depth else changed[path])[roles[ending]] = name
        else:
            path, _, last = own.replace(WRAPPED, ".").rpartition(".")
            plain[path][last] = name
    return Sorted(dict(changed), dict(plain), {path: dict(levels) for path, levels in inner.items()})


def _unwrap(path: str) -> tuple[str, int]:
    """Return a module's path without wrappers, and their number."""
    depth = 0
    while path.endswith(NESTED):
        path, depth = path.removesuffix(NESTED), depth + 1
    return path, depth


class Repair(NamedTuple):
    """A prefix of stored module paths, and what the model has in its place."""

    drop: str = ""
    add: str = ""

    def model_path(self, stored: str) -> str:
        """Return the path in the model for a path in the file."""
        return self.add + stored.removeprefix(self.drop) if stored.startswith(self.drop) else stored

    def stored_path(self, path: str) -> str:
        """Return the path in the file for a path in the model."""
        return self.drop + path.removeprefix(self.add) if path.startswith(self.add) else path

    def __str__(self) -> str:
        if not self.drop:
            return f"prefix {self.add} added" if self.add else ""
        return f"prefix {self.drop} replaced by {self.add}" if self.add else f"prefix {self.drop} removed"


def find_repair(stored: Collection[str], paths: Collection[str]) -> Repair:
    """Return the one change of prefix that takes every stored path to a module of the model; none where names fit already.

    A change must be unique for the longest common ending of names, which has at least two parts; otherwise nothing is repaired.
    """
    known = set(paths)
    if not stored or any(path in known for path in stored):
        return Repair()
    first = min(stored).split(".")
    for begin in range(len(first) - 1):
        ending = ".".join(first[begin:])
        drop = "".join(f"{part}." for part in first[:begin])
        hits = [path for path in known if path == ending or path.endswith(f".{ending}")]
        repairs = {Repair(drop, path.removesuffix(ending)) for path in hits}
        whole = [each for each in repairs if all(p.startswith(drop) and each.model_path(p) in known for p in stored)]
        if whole:
            return whole[0] if len(whole) == 1 else Repair()
    return Repair()


def nearest(path: str, paths: Collection[str]) -> str:
    """Return the module whose name is most like `path`."""
    return next(iter(get_close_matches(path, sorted(paths), n=1, cutoff=0.0)), "none")
