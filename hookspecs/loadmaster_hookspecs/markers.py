"""The two decorators of the contract: `hookspec` declares a hook, `hookimpl` implements one."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "loadmaster"
"""Name of the pluggy project and of the one entry-point group that plugins register under."""

API_VERSION: Final = 1
"""Version of the contract. It grows when a hook or a record changes in an incompatible way."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
