"""The format loader: an adapter's one file in torch's zip format becomes an index like that of any checkpoint."""

from __future__ import annotations

from typing import Final

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, TensorMeta
from loadmaster_hookspecs.sources import RangeReader, Source
from loadmaster_plugins.hf_safetensors.catalog import catalog
from loadmaster_plugins.hf_safetensors.documents import read_config
from loadmaster_plugins.hf_safetensors.loader import fingerprint
from loadmaster_plugins.torch_zip.tensors import Contents, examine

FILE: Final = "adapter_model.bin"


class TorchZip:
    """Reads `adapter_model.bin`, where it is all that there is. Whole models in pickles stay refused."""

    @property
    def name(self) -> str:
        """The format's name, as plans record it."""
        return "torch-zip"

    def detect(self, source: Source) -> Match | None:
        """Match a source whose only tensor file is an adapter's."""
        files = catalog(source.files())
        alone = files.pickles == (FILE,) and not files.tensor_files and not files.indexes
        return Match(score=0.8, evidence=FILE) if alone else None

    def open(self, source: Source) -> CheckpointIndex:
        """Return the index from the archive's directory and its pickle, which is read and never run.

        Raises IntegrityError LM-ARCHIVE-... for whatever is more, or less, than a table of tensors.
        """
        files = catalog(source.files())
        config = read_config(source, files)
        size = source.size(FILE)
        contents = _examine(source, size)
        ref = FileRef(id=0, name=FILE, size=size, header_bytes=contents.nbytes, header_sha256=contents.sha256)
        return CheckpointIndex(
            source=source.uri,
            format=self.name,
            files=(ref,),
            tensors={
                each.name: TensorMeta(
                    name=each.name, dtype=each.dtype, shape=each.shape, file=0, start=each.start, stop=each.stop
                )
                for each in contents.tensors
            },
            config=config,
            fingerprint=fingerprint((ref,), config),
        )

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        """Open the file after reading its directory and pickle again. Raises IntegrityError where they changed."""
        size = source.size(file.name)
        if size != file.size or _examine(source, size).sha256 != file.header_sha256:
            raise IntegrityError(
                "LM-FILE-CHANGED",
                "a file is not the one that the plan was made from",
                where={"file": file.name},
                hints=("make the plan again",),
            )
        return source.open(file.name)


def _examine(source: Source, size: int) -> Contents:
    try:
        return examine(lambda offset, count: source.read(FILE, offset, count), size)
    except IntegrityError as error:
        raise error.located(file=FILE) from error
