"""The hook specifications. A plugin implements any of them as module-level functions marked with `@hookimpl`.

Registration hooks are called once per host, in the host process and again in every worker, and return objects; the kernel
then works with those objects and never calls a hook on a hot path. Returned objects need a unique `name` in their family: two
providers of one name are an error that names both. Implementations must not import torch at module level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import ExecutorFactory
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_hookspecs.markers import hookspec
from loadmaster_hookspecs.models import ModelFamily
from loadmaster_hookspecs.quantization import MatrixKernel, Quantizer
from loadmaster_hookspecs.sharding import ShardStrategy
from loadmaster_hookspecs.sources import SourceProvider
from loadmaster_hookspecs.transforms import Transform

if TYPE_CHECKING:
    import click


class RegistrationSpecs:
    """Hooks that return what a plugin provides."""

    @hookspec
    def loadmaster_sources(self) -> Sequence[SourceProvider]:
        """Return the kinds of places this plugin can open.

        Called in the host to open the address a user gave, and in every worker to open it again. The provider with the best
        `claim` is used; a tie is an error.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_formats(self) -> Sequence[FormatLoader]:
        """Return the checkpoint formats this plugin can read.

        Called in the host, where `detect` and `open` run, and in every worker, where `reader` runs. The loader with the best
        match is used; a tie is an error.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_models(self) -> Sequence[ModelFamily]:
        """Return the model families this plugin can describe and build.

        `match`, `outline` and `tokenizer` run in the host without torch; `describe` in the planner; `build` in every worker.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_quantizers(self) -> Sequence[Quantizer]:
        """Return the ways of storing matrices with few bits that this plugin can decode.

        `settings`, `outline`, `claim` and `layout` run in the planner, `matrix` in every worker. Of several that claim the same
        tensors the one with the highest score is used; a tie is an error.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_kernels(self) -> Sequence[MatrixKernel]:
        """Return kernels that multiply with quantised matrices.

        `judge` and `layouts` run in the planner, `prepare` in every worker. The kernel that suits a matrix best is used.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_adapters(self) -> Sequence[AdapterKind]:
        """Return the kinds of adapters that this plugin understands.

        `detect` runs in the host without torch, `claim` in the planner, `live` and `merge` in every worker. The kind that
        recognises an adapter best is used; a tie is an error.
        """
        raise NotImplementedError

    @hookspec
    def loadmaster_shard_strategies(self) -> Sequence[ShardStrategy]:
        """Return strategies that split a model over ranks. All their methods are pure; they run in host and planner."""
        raise NotImplementedError

    @hookspec
    def loadmaster_transforms(self) -> Sequence[Transform]:
        """Return transforms that a plan's operations may name. They run in every worker, on bounded chunks."""
        raise NotImplementedError

    @hookspec
    def loadmaster_executors(self) -> Sequence[ExecutorFactory]:
        """Return ways to run ranks. Used in the host only."""
        raise NotImplementedError

    @hookspec
    def loadmaster_commands(self) -> Sequence[click.Command]:
        """Return commands to add below `loadmaster`. Called by the command line only, when a command is looked up."""
        raise NotImplementedError


class ObserverSpecs:
    """Hooks that are told what happens and return nothing."""

    @hookspec
    def loadmaster_event(self, event: Event) -> None:
        """Observe an event of the load. Called in the host, on the thread that drives the engine, a few times a second.

        An exception from an observer is reported once, with the plugin's name, and does not stop the load.
        """
