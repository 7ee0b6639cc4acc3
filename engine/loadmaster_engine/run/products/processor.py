"""What this machine's processor multiplies directly."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NATIVE: Final = {
    "BF16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "F16": frozenset({"avx512_fp16", "amx_fp16", "fphp"}),
}
"""The processor features, as the kernel names them, with which torch multiplies an element type directly."""


def multiplies(dtype: str, features: frozenset[str] | None = None) -> bool:
    """Return whether a processor with `features`, by default this one, multiplies an element type directly."""
    wanted = NATIVE.get(dtype)
    return wanted is None or bool(wanted & (processor_features() if features is None else features))


def processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the features of the first processor, empty where the system does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(named, []))
