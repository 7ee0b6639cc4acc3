"""How much memory something takes for a while, on the CPU by the process's high-water mark, on a device by its allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

STATUS: Final = Path("/proc/self/status")
CLEAR: Final = Path("/proc/self/clear_refs")
RESET_PEAK: Final = "5"
"""What written to `clear_refs` sets the high-water mark to the present size (Linux 4.0)."""


class Peak:
    """Measures between entering and leaving; `nbytes` is the rise, 0 where the system does not let it be measured.

    The mark is the process's: what other threads of it take meanwhile counts too.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._before = 0
        self.nbytes = 0

    def __enter__(self) -> Self:
        if self._device == "cpu":
            self._before = _resident("VmRSS") if _reset() else 0
        else:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device == "cpu":
            self.nbytes = max(0, _resident("VmHWM") - self._before) if self._before else 0
        else:
            import torch

            self.nbytes = torch.cuda.max_memory_allocated(self._device) - self._before


def _reset() -> bool:
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
