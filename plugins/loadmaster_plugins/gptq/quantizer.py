"""The quantizer's methods, each put together from the module that has its idea."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import FileReader
from loadmaster_hookspecs.quantization import Claim, Matrix, PackedMatrix, QuantOutline, StoredMatrix
from loadmaster_plugins.gptq.claim import claim_matrix
from loadmaster_plugins.gptq.decode import decoded
from loadmaster_plugins.gptq.layout import layouts
from loadmaster_plugins.gptq.settings import GptqSettings, read_settings

if TYPE_CHECKING:
    import torch


class Gptq:
    """Understands GPTQ checkpoints: `qweight`, `scales`, `qzeros` and `g_idx` per matrix."""

    name = "gptq"

    def settings(self, config: Mapping[str, Any], read: FileReader) -> Mapping[str, Any] | None:
        """Return what configuration or `quantize_config.json` say, as the fields of `GptqSettings`, or None.

        Raises PlanError LM-GPTQ-FORMAT for variants that are packed for one kernel, LM-GPTQ-SETTINGS for values without sense.
        """
        found = read_settings(config, read)
        return None if found is None else found.as_mapping()

    def outline(self, settings: Mapping[str, Any]) -> QuantOutline | None:
        """Return bits and group size, or None when the settings lack one of them."""
        said = GptqSettings.of(settings)
        if said.bits is None or said.group_size is None:
            return None
        return QuantOutline(quantizer=self.name, bits=said.bits, group_size=max(said.group_size, 0))

    def claim(self, stored: StoredMatrix, settings: Mapping[str, Any] | None) -> Claim | None:
        """Claim `qweight` with its `scales`, zero points and `g_idx`. Errors are listed in `gptq.claim`."""
        return claim_matrix(stored, None if settings is None else GptqSettings.of(settings))

    def layout(self, claim: Claim) -> tuple[TensorLayout, ...]:
        """Return the layouts of the tensors that a rank keeps."""
        return layouts(claim)

    def matrix(self, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
        """Return a rank's part of a matrix."""
        return decoded(part, tensors)
