"""The families of objects that plugins register: the hook that returns them and what each object must offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_hookspecs.executors import ExecutorFactory
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_hookspecs.models import ModelFamily
from loadmaster_hookspecs.quantization import MatrixKernel, Quantizer
from loadmaster_hookspecs.sharding import ShardStrategy
from loadmaster_hookspecs.sources import SourceProvider
from loadmaster_hookspecs.transforms import Transform

if TYPE_CHECKING:
    import click

T = TypeVar("T")


class Family(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One family: its `hook`, its `noun` in messages, the `members` of an object, and the `key` that must be unique.

    Without a `key` an object's name is its key.
    """

    hook: str
    noun: str
    members: tuple[str, ...]
    key: Callable[[T], str] | None = None


def transform_key(name: str, version: int) -> str:
    """Return the key of a transform: several versions of one name may live side by side."""
    return f"{name} v{version}"


def _members(protocol: type) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


SOURCES: Final = Family[SourceProvider](hook="loadmaster_sources", noun="source", members=_members(SourceProvider))
FORMATS: Final = Family[FormatLoader](hook="loadmaster_formats", noun="format", members=_members(FormatLoader))
MODELS: Final = Family[ModelFamily](hook="loadmaster_models", noun="model family", members=_members(ModelFamily))
QUANTIZERS: Final = Family[Quantizer](hook="loadmaster_quantizers", noun="quantizer", members=_members(Quantizer))
KERNELS: Final = Family[MatrixKernel](hook="loadmaster_kernels", noun="kernel", members=_members(MatrixKernel))
ADAPTERS: Final = Family[AdapterKind](hook="loadmaster_adapters", noun="adapter kind", members=_members(AdapterKind))
STRATEGIES: Final = Family[ShardStrategy](
    hook="loadmaster_shard_strategies", noun="shard strategy", members=_members(ShardStrategy)
)
TRANSFORMS: Final = Family[Transform](
    hook="loadmaster_transforms",
    noun="transform",
    members=_members(Transform),
    key=lambda transform: transform_key(transform.name, transform.version),
)
EXECUTORS: Final = Family[ExecutorFactory](hook="loadmaster_executors", noun="executor", members=_members(ExecutorFactory))
COMMANDS: Final[Family[click.Command]] = Family(hook="loadmaster_commands", noun="command", members=("name",))
