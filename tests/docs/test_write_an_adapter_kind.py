"""The tutorial's adapter kind is short, shown as it is, and its tests against peft pass."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-an-adapter-kind.md").read_text(encoding="utf-8")
PROJECT = ROOT / "contrib" / "loadmaster-vera"
MODULE = "src/loadmaster_vera/__init__.py"
SHOWN = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
