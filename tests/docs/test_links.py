"""Every link between the pages leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as common renderers make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file), target


def test_the_front_page_leads_to_every_page() -> None:
    front = {"README.md", "docs/index.md"}
    linked = {
        (path.parent / target.partition("#")[0]).resolve()
        for path in map(ROOT.joinpath, front)
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    }
    assert [page.name for page in PAGES if page.resolve() not in linked and page.name != "index.md"] == []
