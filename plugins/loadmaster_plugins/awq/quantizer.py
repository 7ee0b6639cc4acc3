"""The quantizer's methods, each put together from the module that has its idea."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import FileReader
from loadmaster_hookspecs.quantization import Claim, Matrix, PackedMatrix, QuantOutline, StoredMatrix
from loadmaster_plugins.awq import gemm, gemv, gemv_fast
from loadmaster_plugins.awq.claim import claim_matrix
from loadmaster_plugins.awq.settings import BITS, AwqSettings, read_settings

if TYPE_CHECKING:
    import torch

LAYOUTS: Final[dict[str, Callable[[Claim], tuple[TensorLayout, ...]]]] = {
    "gemm": gemm.layouts,
    "gemv": gemv.layouts,
    "gemv_fast": gemv_fast.layouts,
}
DECODERS: Final[dict[str, Callable[[PackedMatrix, Mapping[str, torch.Tensor]], Matrix]]] = {
    "gemm": gemm.decoded,
    "gemv": gemv.decoded,
    "gemv_fast": gemv_fast.decoded,
}


class Awq:
    """Understands AWQ checkpoints: `qweight`, `scales` and `qzeros` per matrix."""

    name = "awq"

    def settings(self, config: Mapping[str, Any], read: FileReader) -> Mapping[str, Any] | None:
        """Return what configuration or a settings file beside it say, as the fields of `AwqSettings`, or None.

        Raises PlanError LM-AWQ-FORMAT for variants that are packed for one kernel, LM-AWQ-SETTINGS for values without sense.
        """
        found = read_settings(config, read)
        return None if found is None else found.as_mapping()

    def outline(self, settings: Mapping[str, Any]) -> QuantOutline | None:
        """Return bits and group size, or None when the settings do not say the latter."""
        said = AwqSettings.of(settings)
        if said.group_size is None:
            return None
        return QuantOutline(quantizer=self.name, bits=BITS, group_size=max(said.group_size, 0))

    def claim(self, stored: StoredMatrix, settings: Mapping[str, Any] | None) -> Claim | None:
        """Claim `qweight` with its `scales` and `qzeros`. Errors are listed in `awq.claim`."""
        return claim_matrix(stored, None if settings is None else AwqSettings.of(settings))

    def layout(self, claim: Claim) -> tuple[TensorLayout, ...]:
        """Return the layouts of the tensors that a rank keeps."""
        return LAYOUTS[str(claim.params["layout"])](claim)

    def matrix(self, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
        """Return a rank's part of a matrix."""
        return DECODERS[str(part.params["layout"])](part, tensors)
