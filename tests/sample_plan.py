"""A small hand-written plan: nine query heads and three key-value heads over two ranks, one tie, one ignored tensor."""

from __future__ import annotations

from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.formats import FileRef
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.plan import FillOp, Ledger, LoadPlan, PlanSettings, RankPlan, ReadOp, ReadVia, Region, TransformRef
from loadmaster_hookspecs.sharding import Interval, ModulePlacement, Placement

OUTLINE = ModelOutline(
    architecture="LlamaForCausalLM",
    hidden_size=576,
    num_layers=30,
    vocab_size=49152,
    query_heads=9,
    kv_heads=3,
    head_dim=64,
    widths={"intermediate_size": 1536},
    max_positions=8192,
)


def sample_plan(findings: tuple[Finding, ...] = ()) -> LoadPlan:
    """Return a plan of 300 MB unique bytes of which rank 1 reads 10 MB a second time."""
    return LoadPlan(
        source="/models/small",
        format="hf-safetensors",
        family="transformers",
        strategy="tensor-parallel",
        settings=PlanSettings(tensor_parallel=2),
        dtype="BF16",
        fingerprint="f" * 64,
        outline=OUTLINE,
        config={"model_type": "llama"},
        files=(FileRef(id=0, name="model.safetensors", size=300_100_000, header_bytes=100_000, header_sha256="0" * 64),),
        ranks=(_rank(0, 200_000_000, 0), _rank(1, 100_000_000, 10_000_000)),
        ledger=Ledger(
            parameters=273,
            tensors=273,
            bytes_unique=300_000_000,
            bytes_total=300_000_064,
            used={f"tensor.{index}": 1 for index in range(272)},
            aliased={"lm_head.weight": "model.embed_tokens.weight"},
            ignored=(Ignored(name="model.layers.0.inv_freq", reason="computed"),),
            roles=({"linear": 150_000_000, "embedding": 50_000_000}, {"linear": 80_000_000, "embedding": 30_000_000}),
        ),
        findings=findings,
        bytes_read_to_plan=101_234,
        digest="d" * 64,
    )


def _rank(rank: int, num_bytes: int, repeated: int) -> RankPlan:
    reads = [_read(num_bytes, repeated=False)]
    if repeated:
        reads.append(_read(repeated, repeated=True))
    total = num_bytes + repeated
    return RankPlan(
        rank=rank,
        bytes=total,
        reads=tuple(reads),
        fills=(FillOp(parameter="lm_head.weight", dest=Region(total, 640)),) if rank == 1 else (),
        bindings=(),
        modules=_modules(rank),
        scratch=4_000_000,
    )


def _read(num_bytes: int, *, repeated: bool) -> ReadOp:
    region = Region(0, num_bytes)
    cast = TransformRef(name="cast", version=1) if repeated else None
    via: ReadVia = "gathered" if repeated else "direct"
    return ReadOp(tensor="t", parameter="p", file=0, source=region, dest=region, via=via, transform=cast, repeated=repeated)


def _modules(rank: int) -> tuple[ModulePlacement, ...]:
    query, key, vocab = [(0, 384), (384, 576)], [(0, 128), (128, 192)], [(0, 24576), (24576, 49152)]
    cuts = {
        "model.embed_tokens": ("vocab", vocab),
        "model.layers.0.self_attn.q_proj": ("out", query),
        "model.layers.0.self_attn.k_proj": ("out", key),
    }
    return tuple(
        ModulePlacement(path=path, placement=Placement(owns={axis: (Interval(*intervals[rank]),)}))
        for path, (axis, intervals) in cuts.items()
    )
