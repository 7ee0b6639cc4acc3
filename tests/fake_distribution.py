"""Installed distributions that exist for one test: metadata and modules in a folder that is put on `sys.path`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest


class FakeSite:
    """A folder like `site-packages`. What is installed here is found by `importlib.metadata` and can be imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def install(
        self, distribution: str, version: str, plugins: Mapping[str, str], modules: Mapping[str, str] | None = None
    ) -> Path:
        """Write a distribution whose `plugins` map entry-point names to values and whose `modules` map names to source text.

        Returns the folder of its metadata.
        """
        for name, text in (modules or {}).items():
            path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), encoding="utf-8")
        metadata = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        lines = [f"{name} = {value}" for name, value in plugins.items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[loadmaster]", *lines, ""]), encoding="utf-8")
        importlib.invalidate_caches()
        return metadata

    def forget(self) -> None:
        """Drop the modules that were imported from this folder, so that the next import reads them again."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{self.folder}/"):
                del sys.modules[name]
        importlib.invalidate_caches()


@contextmanager
def fake_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """Put an empty `FakeSite` in front of `sys.path`; its modules are forgotten at the end."""
    site = FakeSite(folder)
    monkeypatch.syspath_prepend(str(folder))
    try:
        yield site
    finally:
        site.forget()


def toy_format(name: str = "toy", score: float = 1.0, evidence: str = "toy.json") -> str:
    """Return the source of a plugin module with one format loader that gives every source the same score."""
    return f"""
        from loadmaster_hookspecs import hookimpl
        from loadmaster_hookspecs.findings import Match

        class Toy:
            name = {name!r}

            def detect(self, source):
                return Match(score={score!r}, evidence={evidence!r})

            def open(self, source):
                raise NotImplementedError

            def reader(self, source, file):
                raise NotImplementedError

        @hookimpl
        def loadmaster_formats():
            return [Toy()]
    """
