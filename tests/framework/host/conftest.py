from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_distribution import FakeSite, fake_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder for fake distributions; no choice about plugins comes from the environment."""
    monkeypatch.delenv("LOADMASTER_PLUGINS", raising=False)
    monkeypatch.delenv("LOADMASTER_DISABLE_PLUGINS", raising=False)
    with fake_site(tmp_path / "site", monkeypatch) as folder:
        yield folder
