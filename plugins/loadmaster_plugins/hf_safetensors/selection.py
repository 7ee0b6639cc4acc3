"""Decides which file every tensor is taken from, and what is left out.

With an index, the index is a list of what may be loaded, tensor by tensor. A file that it does not name is not opened, unless
tensors that it lists are not where it says: then the headers of all files present must hold each of them exactly once.
Without an index the model's files together must hold every tensor once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.sources import Source
from loadmaster_plugins.hf_safetensors.catalog import Catalog, absent_numbers, left_out
from loadmaster_plugins.hf_safetensors.judge import JudgedFile, demand_sound, judge_all
from loadmaster_plugins.hf_safetensors.shard_index import ShardIndex
from loadmaster_plugins.hf_safetensors.wording import count, fold, quoted

FETCH_HINTS = ("download the missing files again, for example with: hf download NAME",)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The judged files, the name of the file that each tensor is taken from, and what was noticed on the way."""

    files: tuple[JudgedFile, ...]
    homes: dict[str, str]
    ignored: tuple[Ignored, ...] = ()
    findings: tuple[Finding, ...] = ()


def select_without_index(source: Source, files: Catalog) -> Selection:
    """Take every tensor of the model's own files. Raises IntegrityError for missing shards and for tensors held twice."""
    if absent := absent_numbers(files.own_files):
        raise IntegrityError(
            "LM-SHARD-MISSING",
            f"{count(len(absent), 'shard')} missing: {fold(absent)}",
            where={"source": source.uri},
            why="the names of the files that are present say that these belong to the set",
            hints=(*FETCH_HINTS, "or give the folder, if the path is one shard of several"),
        )
    judged = demand_sound(source, files.own_files)
    holders = _holders(judged)
    _refuse_copies({name: homes for name, homes in holders.items() if len(homes) > 1})
    others = sorted(set(files.tensor_files) - set(files.own_files))
    return Selection(
        files=judged,
        homes={name: homes[0] for name, homes in holders.items()},
        ignored=tuple(left_out(name, "not opened") for name in others),
    )


def select_with_index(source: Source, files: Catalog, index: ShardIndex) -> Selection:
    """Take the tensors that the index lists. Raises IntegrityError when one of them is in no file, or in an unclear one."""
    indexed = index.files
    absent = {name for name in indexed if not _exists(source, files, name)}
    judged = demand_sound(source, [name for name in indexed if name not in absent])
    holders = _holders(judged)
    homes = {name: file for name, file in index.weight_map.items() if file in holders.get(name, ())}
    unindexed = sorted(set(files.tensor_files).difference(indexed))
    if len(homes) == len(index.weight_map):
        ignored = [left_out(name, f"{index.name} does not name it; not opened") for name in unindexed]
        return Selection(files=judged, homes=homes, ignored=(*ignored, *_unlisted(judged, homes, index)))
    return _select_stale(source, index, sorted(absent), judged, homes, unindexed)


def _select_stale(
    source: Source,
    index: ShardIndex,
    absent: Sequence[str],
    judged: Sequence[JudgedFile],
    homes: dict[str, str],
    unindexed: Sequence[str],
) -> Selection:
    """Find the tensors that are not where the index says in any file that is present; each must be in exactly one."""
    extra = judge_all(source, unindexed)
    holders = _holders([*judged, *extra.sound])
    lost = {name: holders.get(name, []) for name in index.weight_map if name not in homes}
    _refuse_lost(index, absent, [name for name, found in lost.items() if not found])
    _refuse_copies({name: found for name, found in lost.items() if len(found) > 1})
    homes = homes | {name: found[0] for name, found in lost.items()}
    used = set(homes.values())
    opened = sorted((*judged, *extra.sound), key=lambda file: file.name)
    kept = [file for file in opened if file.name in used]
    ignored = [left_out(file.name, "none of its tensors is needed") for file in opened if file.name not in used]
    ignored += [left_out(name, f"cannot be used: {error.report.summary}") for name, error in extra.faults.items()]
    return Selection(
        files=tuple(kept),
        homes=homes,
        ignored=(*ignored, *_unlisted(kept, homes, index)),
        findings=(_stale(index, absent, list(lost), homes),),
    )


def _exists(source: Source, files: Catalog, name: str) -> bool:
    """Whether a file that the index names is there. Links that lead nowhere count as present: judging them says more."""
    if name in files.names:
        return True
    try:
        source.size(name)
    except IntegrityError as error:
        return error.code != "LM-FILE-MISSING"
    return True


def _holders(judged: Iterable[JudgedFile]) -> dict[str, list[str]]:
    """Return, for every tensor name, the files that hold a tensor of that name."""
    holders: dict[str, list[str]] = {}
    for file in judged:
        for tensor in file.header.tensors:
            holders.setdefault(tensor.name, []).append(file.name)
    return holders


def _unlisted(judged: Iterable[JudgedFile], homes: dict[str, str], index: ShardIndex) -> list[Ignored]:
    """Return the tensors of opened files that are not taken from there."""
    ignored: list[Ignored] = []
    for file in judged:
        for tensor in file.header.tensors:
            home = homes.get(tensor.name)
            if home is None:
                reason = f"{file.name} holds it but {index.name} does not list it"
                ignored.append(Ignored(name=tensor.name, reason=reason, notable=True))
            elif home != file.name:
                reason = f"a copy; {tensor.name} is taken from {home}"
                ignored.append(Ignored(name=f"{file.name}:{tensor.name}", reason=reason, notable=True))
    return ignored


def _stale(index: ShardIndex, absent: Sequence[str], lost: Sequence[str], homes: dict[str, str]) -> Finding:
    where = fold(sorted({homes[name] for name in lost}))
    message = f"index stale: {count(len(lost), 'tensor')} found in {where} instead of where the index says"
    if absent:
        message += f"; {count(len(absent), 'file')} that it names absent: {fold(absent)}"
    return Finding(
        level="warning",
        code="LM-INDEX-STALE",
        where=index.name,
        message=message,
        fix="save the checkpoint again to renew its index",
    )


def _refuse_lost(index: ShardIndex, absent: Sequence[str], lost: Sequence[str]) -> None:
    """Raise IntegrityError when tensors that the index lists are in no file that is present."""
    if not lost:
        return
    tensors = (
        f"{count(len(lost), 'tensor')} of {len(index.weight_map)} not found in any file: {fold([quoted(n) for n in lost])}"
    )
    if missing := sorted({index.weight_map[tensor] for tensor in lost}.intersection(absent)):
        raise IntegrityError(
            "LM-SHARD-MISSING",
            f"{count(len(missing), 'shard')} missing: {fold(missing)}",
            where={"index": index.name},
            why=tensors,
            hints=FETCH_HINTS,
        )
    raise IntegrityError(
        "LM-TENSOR-MISSING",
        "the index lists tensors that its files do not hold",
        where={"index": index.name, "file": index.weight_map[lost[0]]},
        why=tensors,
        hints=("the checkpoint is incomplete or its index belongs to another one: download both again",),
    )


def _refuse_copies(copies: dict[str, list[str]]) -> None:
    """Raise IntegrityError when tensors lie in several files and nothing says which one counts."""
    if not copies:
        return
    files = sorted({file for found in copies.values() for file in found})
    raise IntegrityError(
        "LM-TENSOR-DUPLICATE",
        f"{count(len(copies), 'tensor')} in more than one file and nothing says which counts",
        where={"files": fold(files)},
        why=fold([quoted(name) for name in sorted(copies)]),
        hints=("remove the files of the copy that is not wanted", "or give the path of the one .safetensors file to load"),
    )
