"""`loadmaster npy-export`: writes the folder of `.npy` files from a checkpoint of any format that loadmaster reads."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

import click
from loadmaster.plugin import Checkpoint, CheckpointIndex, Session, TensorMeta, UsageError, open_checkpoint

from loadmaster_npy.format import STAND_INS
from loadmaster_npy.header import ELEMENTS

DESCRIPTIONS: Final = {element: descr for descr, element in ELEMENTS.items()} | STAND_INS
"""numpy's description of the stored bits, for every element type."""

COMPANIONS: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files that are copied as they are."""


@click.command("npy-export")
@click.argument("source")
@click.argument("destination", type=click.Path(path_type=Path))
@click.pass_context
def npy_export(context: click.Context, source: str, destination: Path) -> None:
    """Write the checkpoint SOURCE as a folder of .npy files, one per tensor. DESTINATION must not exist."""
    selection = context.ensure_object(Session).selection
    with open_checkpoint(source, selection=selection) as checkpoint:
        export(checkpoint, destination)
        nbytes = sum(tensor.nbytes for tensor in checkpoint.index.tensors.values())
        click.echo(f"{len(checkpoint.index.tensors)} tensors, {nbytes} bytes in {destination}")


def export(checkpoint: Checkpoint, destination: Path) -> None:
    """Write `checkpoint` to `destination`, which appears when it is complete and not before.

    Bytes are copied as they are, a bounded piece at a time. Raises UsageError, before anything is written, when the destination
    exists or the checkpoint has a tensor that cannot be a `.npy` file.
    """
    if destination.exists():
        raise UsageError("LM-NPY-EXISTS", "the destination exists", where={"path": str(destination)})
    _check(checkpoint.index)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=destination.parent, prefix=f".{destination.name}-") as scratch:
        folder = Path(scratch) / "checkpoint"
        folder.mkdir()
        for tensor in checkpoint.index.tensors.values():
            with (folder / f"{tensor.name}.npy").open("xb") as stream:
                _write(stream, tensor, checkpoint)
        _write_documents(folder, checkpoint)
        folder.rename(destination)


def _check(index: CheckpointIndex) -> None:
    for tensor in index.tensors.values():
        if "/" in tensor.name or tensor.dtype not in DESCRIPTIONS:
            raise UsageError(
                "LM-NPY-TENSOR", "a tensor cannot be a .npy file", where={"tensor": tensor.name, "dtype": tensor.dtype}
            )


def _write(stream: BinaryIO, tensor: TensorMeta, checkpoint: Checkpoint) -> None:
    from numpy.lib import format as npy  # the process that only lists commands needs no numpy

    description = {"descr": DESCRIPTIONS[tensor.dtype], "fortran_order": False, "shape": tensor.shape}
    npy.write_array_header_1_0(stream, description)
    for piece in checkpoint.pieces(tensor.name):
        stream.write(piece)


def _write_documents(folder: Path, checkpoint: Checkpoint) -> None:
    index = checkpoint.index
    dtypes = {tensor.name: tensor.dtype for tensor in index.tensors.values() if tensor.dtype in STAND_INS}
    documents = {"config.json": index.config, "generation_config.json": index.generation, "dtypes.json": dtypes}
    for name, document in documents.items():
        if document:
            (folder / name).write_text(json.dumps(document, indent=2), encoding="utf-8")
    for name in COMPANIONS:
        if (content := checkpoint.file(name)) is not None:
            (folder / name).write_bytes(content)
