"""How long a regular expression may take: patterns and the names that they are matched with both come with the file.

Python's matcher goes back over every choice it made. A repetition has as many choices as a name has characters, an optional
element two, and alternatives as many as there are; all of them multiply.
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

LONGEST: Final = 1000
"""Characters of a pattern."""

LONGEST_NAME: Final = 256
"""Characters of a module's name that is matched."""

MOST_CHOICES: Final = 4 * 10**8
"""Bound of the product of all choices: four repetitions and four alternatives, or three and four hundred."""

CHOICES_OF_REPEAT: Final = 100
"""Choices counted for a repetition: places in a name of usual length."""

_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[:=!>]|<[=!]|P<\w+>))?|\)|\||(?:[*+?]|\{\d*,?\d*\})[?+]?|.", re.DOTALL
)


def takes_long(pattern: str) -> bool:
    """Tell whether matching could take long: too many choices, or a repeated group, whose repetitions multiply."""
    if len(pattern) > LONGEST:
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
