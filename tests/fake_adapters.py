"""Adapters without a model: files whose contents shift the letters that the fake engine answers with."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loadmaster.serving.types import AdapterInfo, AdapterStats
from loadmaster_hookspecs.errors import IntegrityError, PlanError, ResourceError, UsageError

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
BUDGET = 1000
"""Bytes that all loaded adapters may have together."""


def write_fake_adapter(folder: Path, content: bytes, **config: object) -> Path:
    """Write an adapter that the fake engine takes; with `unmatched` in its configuration one that fits no model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    (folder / TENSORS).write_bytes(content)
    return folder


def shift_of(content: bytes) -> int:
    """Return by how many letters an adapter with this content shifts answers: never by none."""
    return 1 + sum(content) % 25


class FakeAdapters:
    """The `ServingAdapters` of a fake engine. It begins with those `given`; a load takes `seconds`, and loads take turns."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.seconds = 0.0
        self._loaded: dict[str, AdapterInfo] = {}
        self._shifts: dict[str, int] = {}
        self._using: Counter[tuple[str, str]] = Counter()
        self._counted: dict[str, AdapterStats] = {}
        self._turn = asyncio.Lock()
        for name, path in given.items():
            self._add(name, path, pinned=False)

    def list(self) -> tuple[AdapterInfo, ...]:
        return tuple(msgspec.structs.replace(info, using=self._using[info.name, info.digest]) for info in self._loaded.values())

    async def load(self, name: str, path: str, *, pinned: bool = False) -> AdapterInfo:
        async with self._turn:
            await asyncio.sleep(self.seconds)
            return self._add(name, path, pinned)

    async def unload(self, name: str) -> int:
        info = self._known(name)
        del self._loaded[name]
        while self._using[name, info.digest]:
            await asyncio.sleep(0.005)
        return info.nbytes

    def pin(self, name: str, pinned: bool = True) -> None:
        self._loaded[name] = msgspec.structs.replace(self._known(name), pinned=pinned)

    @contextmanager
    def using(self, name: str, prompt_tokens: int) -> Iterator[int]:
        """Count a request in, give the shift of its letters, and count it out."""
        digest = self._known(name).digest if name else ""
        before = self._counted.get(name, AdapterStats(name=name, requests=0, prompt_tokens=0, cached_tokens=0))
        self._counted[name] = AdapterStats(
            name=name,
            requests=before.requests + 1,
            prompt_tokens=before.prompt_tokens + prompt_tokens,
            cached_tokens=before.cached_tokens + prompt_tokens // 4,
        )
        self._using[name, digest] += 1
        try:
            yield self._shifts[digest] if name else 0
        finally:
            self._using[name, digest] -= 1

    def stats(self) -> tuple[AdapterStats, ...]:
        return tuple(self._counted.values())

    def _add(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        content = _read(name, Path(path))
        digest = hashlib.sha256(content).hexdigest()
        there = self._loaded.get(name)
        if there is None or there.digest != digest:
            others = sum(info.nbytes for info in self._loaded.values() if info.name != name)
            if others + len(content) > BUDGET:
                raise ResourceError("LM-ADAPTER-BUDGET", "the adapter does not fit", why=f"{len(content)} bytes")
            self._shifts[digest] = shift_of(content)
            there = AdapterInfo(name=name, path=path, kind="fake", digest=digest, summary="2/2 pairs", nbytes=len(content))
        kept = name in self._loaded and self._loaded[name].pinned
        self._loaded[name] = msgspec.structs.replace(there, pinned=pinned or kept)
        return self._loaded[name]

    def _known(self, name: str) -> AdapterInfo:
        if name not in self._loaded:
            raise UsageError("LM-USAGE-ADAPTER", f"no adapter is called {name!r}")
        return self._loaded[name]


def _read(name: str, folder: Path) -> bytes:
    if not (folder / CONFIG).is_file():
        raise IntegrityError("LM-ADAPTER-CONFIG", f"the folder has no {CONFIG}", where={"adapter": name})
    unmatched = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("unmatched")
    if unmatched:
        raise PlanError("LM-ADAPTER-UNMATCHED", "tensors belong to nothing in the model", why=str(unmatched))
    return (folder / TENSORS).read_bytes()
