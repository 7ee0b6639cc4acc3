"""The family object: light in the host process, heavy imports only where a model is described or built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import CausalModel, FileReader, ModelOutline, ModelSpec, Tokenizer
from loadmaster_hookspecs.sharding import ModulePlacement
from loadmaster_plugins.transformers_models.outline import outline_of, text_config

COMMON: Final = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.conversion_mapping",
    "transformers.core_model_loading",
    "loadmaster_plugins.transformers_models.build",
    "loadmaster_plugins.transformers_models.describe",
)


def modelling_code(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the module with a model type's modelling code, found by its file and not by importing anything."""
    name = str(config.get("model_type", "")).replace("-", "_")
    package = find_spec("transformers")
    if not name.isidentifier() or package is None or package.origin is None:
        return ()
    file = Path(package.origin).parent / "models" / name / f"modeling_{name}.py"
    return (f"transformers.models.{name}.modeling_{name}",) if file.is_file() else ()


class TransformersFamily:
    """Every causal language model that the installed transformers can build and that ships a tensor-parallel plan."""

    name = "transformers"

    def preload(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return torch, what every model needs of transformers, and the modelling code of this one."""
        return (*COMMON, *modelling_code(config))

    def match(self, config: Mapping[str, Any]) -> Match | None:
        """Claim configurations that name a model type; whether it is known shows when the model is described."""
        model_type = config.get("model_type") or text_config(config).get("model_type")
        if not isinstance(model_type, str):
            return None
        return Match(score=0.5, evidence=f"config.json says model_type {model_type!r}")

    def outline(self, config: Mapping[str, Any]) -> ModelOutline:
        """Return the sizes that decide a split."""
        return outline_of(config)

    def describe(self, index: CheckpointIndex) -> ModelSpec:
        """Describe the model from its modelling code on the meta device and the names in the index."""
        from loadmaster_plugins.transformers_models.describe import describe_model

        return describe_model(index, self.name)

    def build(self, config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> CausalModel:
        """Build one rank's model with its parameters on the meta device."""
        from loadmaster_plugins.transformers_models.build import build_model

        return build_model(config, dtype, placements)

    def tokenizer(self, index: CheckpointIndex, read: FileReader) -> Tokenizer:
        """Return the tokenizer from `tokenizer.json`."""
        from loadmaster_plugins.transformers_models.tokenizer import load_tokenizer

        return load_tokenizer(index, read)
