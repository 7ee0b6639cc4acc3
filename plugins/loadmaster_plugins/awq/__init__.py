"""The `awq` quantizer: matrices of 4 bits as autoawq writes them, in its layouts gemm, gemv and gemv_fast."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.quantization import Quantizer
from loadmaster_plugins.awq.quantizer import Awq


@hookimpl
def loadmaster_quantizers() -> list[Quantizer]:
    """Return the one quantizer of this plugin."""
    return [Awq()]
