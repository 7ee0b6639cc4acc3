"""The `transformers` model family: modelling code, tensor-parallel plans and names from the transformers library."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.models import ModelFamily
from loadmaster_plugins.transformers_models.family import TransformersFamily


@hookimpl
def loadmaster_models() -> list[ModelFamily]:
    """Return the one family of this plugin."""
    return [TransformersFamily()]
