"""The `gptq` quantizer: matrices of 2, 3, 4 or 8 bits as auto-gptq, GPTQModel and their relatives write them."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.quantization import Quantizer
from loadmaster_plugins.gptq.quantizer import Gptq


@hookimpl
def loadmaster_quantizers() -> list[Quantizer]:
    """Return the one quantizer of this plugin."""
    return [Gptq()]
