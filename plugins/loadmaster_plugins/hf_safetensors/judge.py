"""Judges files by their headers, and reports the faults of many files as one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError
from loadmaster_hookspecs.sources import Source
from loadmaster_plugins.hf_safetensors.header import PREFIX, Header, header_length, parse_header
from loadmaster_plugins.hf_safetensors.lfs import LONGEST_POINTER, may_be_pointer, pointer_error
from loadmaster_plugins.hf_safetensors.wording import SHOWN, count, fold


class JudgedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A sound tensor file: its name, its size in bytes, and its header."""

    name: str
    size: int
    header: Header


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for several files: the sound ones, and for every other one its error."""

    sound: tuple[JudgedFile, ...]
    faults: dict[str, LoadmasterError]


def judge(source: Source, name: str) -> JudgedFile:
    """Read one header and judge it against the file's size. Raises IntegrityError that names the file."""
    try:
        size = source.size(name)
        prefix = source.read(name, 0, PREFIX)
        if may_be_pointer(prefix) and (error := pointer_error(source.read(name, 0, LONGEST_POINTER), size)):
            raise error
        length = header_length(prefix, size)
        return JudgedFile(name=name, size=size, header=parse_header(prefix + source.read(name, PREFIX, length), size))
    except IntegrityError as error:
        raise error.located(file=name) from None


def judge_all(source: Source, names: Iterable[str]) -> Verdicts:
    """Judge every file, also after one was found faulty."""
    sound: list[JudgedFile] = []
    faults: dict[str, LoadmasterError] = {}
    for name in names:
        try:
            sound.append(judge(source, name))
        except IntegrityError as error:
            faults[name] = error
    return Verdicts(sound=tuple(sound), faults=faults)


def demand_sound(source: Source, names: Sequence[str]) -> tuple[JudgedFile, ...]:
    """Judge every file and return them all, or raise one IntegrityError for all that are faulty."""
    verdicts = judge_all(source, names)
    if verdicts.faults:
        _raise(verdicts.faults, len(names))
    return verdicts.sound


def _raise(faults: dict[str, LoadmasterError], total: int) -> NoReturn:
    """Raise the fault that the first faulty file has, for all files that share it; other kinds are mentioned."""
    first = next(iter(faults.values()))
    if len(faults) == 1:
        raise first
    same = {name: error for name, error in faults.items() if error.code == first.code}
    others = [f"{name} ({error.code})" for name, error in faults.items() if error.code != first.code]
    why = "; ".join(f"{name}: {_details(error)}" for name, error in list(same.items())[:SHOWN])
    if others:
        why += f"; other faults: {fold(others)}"
    raise IntegrityError(
        first.code,
        f"{count(len(same), 'file')} of {total}: {first.report.summary}",
        where={"files": fold(list(same))},
        why=why,
        hints=first.hints,
    )


def _details(error: LoadmasterError) -> str:
    """Return why a file is faulty, with the places the error names besides the file."""
    places = [f"{key} {value}" for key, value in error.report.where.items() if key != "file"]
    return ", ".join([*places, error.report.why or error.report.summary])
