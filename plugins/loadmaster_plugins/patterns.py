"""How long a regular expression may take: patterns and the names that they are matched with both come with the file.

Python's matcher goes back over every choice it made. A repetition has as many choices as a name has characters, an optional
element two, and alternatives as many as there are; all of them multiply. That bounds the time of most patterns.
Others may still be quick with the names that there are, which a process of its own can try: its time is limited.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

LONGEST: Final = 1000
"""Characters of a pattern."""

LONGEST_NAME: Final = 256
"""Characters of a module's name that is matched."""

MOST_CHOICES: Final = 4 * 10**8
"""Bound of the product of all choices: four repetitions and four alternatives, or three and four hundred."""

CHOICES_OF_REPEAT: Final = 100
"""Choices counted for a repetition: places in a name of usual length."""

TRIAL_SECONDS: Final = 1
"""Processor time that a trial may take."""

_TRIAL_WAIT: Final = 60.0
"""Seconds to wait for a trial on a machine that is busy."""

_TRIAL: Final = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({TRIAL_SECONDS}, {TRIAL_SECONDS}))
expressions, names = json.load(sys.stdin)
for text, whole in expressions:
    compiled = re.compile(text)
    for name in names:
        compiled.fullmatch(name) if whole else compiled.match(name)
"""

_SPACED: Final = re.compile(r"\(\?[a-zA-Z]*x")
"""Turns on the way of writing patterns in which spaces mean nothing."""

_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[:=!>]|<[=!]|P<\w+>))?|\)|\||(?:[*+?]|\{\d*,?\d*\})[?+]?|.", re.DOTALL
)


class Expression(NamedTuple):
    """A regular expression that names are matched with: from their beginning, or as a `whole`."""

    text: str
    whole: bool


def tried_in_time(expressions: Sequence[Expression], names: Sequence[str]) -> bool:
    """Match all names with all expressions, elsewhere, and return whether that took less than `TRIAL_SECONDS`."""
    try:
        ended = subprocess.run(  # nothing of the file is part of the command
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            input=json.dumps([expressions, names]).encode(),
            timeout=_TRIAL_WAIT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def takes_long(pattern: str) -> bool:
    """Tell whether matching could take long: too many choices, or a repeated group, whose repetitions multiply."""
    if len(pattern) > LONGEST or _SPACED.search(pattern):
        return True
    choices, alternatives, before = 1, [1], ""
    for token in _TOKEN.findall(pattern):
        if token.startswith("("):
            alternatives.append(1)
        elif token == ")" and len(alternatives) > 1:
            choices *= alternatives.pop()
        elif token == "|":
            alternatives[-1] += 1
        elif token[0] == "?":
            choices *= 2
        elif token[0] in "*+" or (token[0] == "{" and len(token) > 1):
            if before == ")":
                return True
            choices *= CHOICES_OF_REPEAT if token[0] in "*+" or "," in token else 1
        before = token
    return choices * prod(alternatives) > MOST_CHOICES
