"""What plugin authors import: the hook marker, the protocols to implement, the records to return, the errors to raise.

    from loadmaster.plugin import CheckpointIndex, FormatLoader, Match, hookimpl

One module for the whole contract, so that a plugin depends on no inner module of loadmaster. Importing it is cheap, which
matters because every process imports every plugin: it brings in neither torch nor numpy.
"""

from __future__ import annotations

from loadmaster.checkpoints import Checkpoint, open_checkpoint
from loadmaster.cli.session import Session
from loadmaster_hookspecs import (
    API_VERSION,
    ErrorReport,
    ExitCode,
    IntegrityError,
    LoadmasterError,
    PlanError,
    PluginError,
    ResourceError,
    UsageError,
    WorkerError,
    hookimpl,
)
from loadmaster_hookspecs.dtypes import BITS, BY_TORCH_NAME, FLOATS, TORCH_NAMES, itemsize
from loadmaster_hookspecs.events import (
    HOST_RANK,
    Event,
    Failed,
    Notice,
    Progress,
    Stage,
    StageFinished,
    StageStarted,
)
from loadmaster_hookspecs.executors import (
    EventSink,
    Executor,
    ExecutorFactory,
    HostRecord,
    ManifestEntry,
    Result,
    Service,
    ServiceFactory,
    WorkerSpec,
)
from loadmaster_hookspecs.findings import Finding, Ignored, Level, Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, FormatLoader, TensorMeta
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import (
    CausalModel,
    FileReader,
    ModelFamily,
    ModelOutline,
    ModelSpec,
    ModuleKind,
    ModuleSpec,
    Piece,
    Tokenizer,
)
from loadmaster_hookspecs.quantization import (
    Affine,
    Claim,
    Matrix,
    MatrixFacts,
    MatrixKernel,
    PackedMatrix,
    Quantizer,
    QuantOutline,
    StoredMatrix,
    Suitability,
)
from loadmaster_hookspecs.sharding import (
    CollectiveIn,
    CollectiveOut,
    Interval,
    ModulePlacement,
    Placement,
    ShardStrategy,
    Topology,
    Unit,
    UnitKind,
)
from loadmaster_hookspecs.sources import FileEntry, RangeReader, Source, SourceProvider
from loadmaster_hookspecs.transforms import Transform

__all__ = [
    "API_VERSION",
    "BITS",
    "BY_TORCH_NAME",
    "FLOATS",
    "HOST_RANK",
    "TORCH_NAMES",
    "Affine",
    "AxisMap",
    "CausalModel",
    "Checkpoint",
    "CheckpointIndex",
    "Claim",
    "CollectiveIn",
    "CollectiveOut",
    "ErrorReport",
    "Event",
    "EventSink",
    "Executor",
    "ExecutorFactory",
    "ExitCode",
    "Failed",
    "FileEntry",
    "FileReader",
    "FileRef",
    "Finding",
    "FormatLoader",
    "HostRecord",
    "Ignored",
    "IntegrityError",
    "Interval",
    "Level",
    "LoadmasterError",
    "ManifestEntry",
    "Match",
    "Matrix",
    "MatrixFacts",
    "MatrixKernel",
    "ModelFamily",
    "ModelOutline",
    "ModelSpec",
    "ModuleKind",
    "ModulePlacement",
    "ModuleSpec",
    "Notice",
    "PackedMatrix",
    "Piece",
    "Placement",
    "PlanError",
    "PluginError",
    "Progress",
    "QuantOutline",
    "Quantizer",
    "RangeReader",
    "ResourceError",
    "Result",
    "Service",
    "ServiceFactory",
    "Session",
    "ShardStrategy",
    "Source",
    "SourceProvider",
    "Stage",
    "StageFinished",
    "StageStarted",
    "StoredMatrix",
    "Suitability",
    "TensorLayout",
    "TensorMeta",
    "Tokenizer",
    "Topology",
    "Transform",
    "Unit",
    "UnitKind",
    "UsageError",
    "WorkerError",
    "WorkerSpec",
    "hookimpl",
    "itemsize",
    "open_checkpoint",
]
