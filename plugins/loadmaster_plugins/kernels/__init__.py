"""Kernels that multiply with quantised matrices: a universal one, torch's int4 product, and the producers' own modules."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.quantization import MatrixKernel
from loadmaster_plugins.kernels.dequant import Dequant
from loadmaster_plugins.kernels.producer_awq import AutoAwq
from loadmaster_plugins.kernels.producer_gptq import AutoGptq
from loadmaster_plugins.kernels.torch_int4 import TorchInt4


@hookimpl
def loadmaster_kernels() -> Sequence[MatrixKernel]:
    """Return the kernels. Each says itself which matrices it suits."""
    return [Dequant(), TorchInt4(), AutoGptq(), AutoAwq()]
