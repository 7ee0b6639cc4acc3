"""Synthetic llama checkpoints: random bfloat16 weights, several files with an index, and a tokenizer of bytes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BLOCK_BYTES: Final = 16 << 20
"""Weights are made and written in blocks of this size: memory stays small whatever the model's size."""

DISK_RESERVE: Final = 2 << 30
"""Bytes of disk that stay free after a checkpoint is written."""

ONE: Final = np.uint16(0x3F80)
SMALL: Final = np.uint16(0x3C80)
SIGN_AND_FRACTION: Final = np.uint16(0x807F)
"""Bits of bfloat16: those of 1.0, those of 1/64, and the ones that leave a number's size alone."""


class Proportions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a llama model, and over how many files it is stored. Embedding and output are not tied."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    files: int

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        return self.hidden // self.heads


SIZES: Final = {
    "tiny": Proportions(hidden=512, layers=4, intermediate=1024, heads=8, kv_heads=4, vocab=1024, files=2),
    "3g": Proportions(hidden=2048, layers=24, intermediate=8192, heads=32, kv_heads=8, vocab=32000, files=4),
    "7b": Proportions(hidden=4096, layers=32, intermediate=11008, heads=32, kv_heads=32, vocab=32000, files=14),
}
"""The checkpoints by name: 21 MB, 3.2 GB, and 13.5 GB with the proportions of a 7B model."""


def checkpoint(cache: Path, size: str) -> Path:
    """Return the folder of a checkpoint below `cache`, made on first use. It is complete or absent.

    Raises OSError when writing it would leave less than `DISK_RESERVE` bytes free.
    """
    folder = cache / f"llama-{size}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    proportions = SIZES[size]
    needed = sum(_nbytes(shape) for _, shape in tensors(proportions))
    free = shutil.disk_usage(cache).free
    if free - needed < DISK_RESERVE:
        raise OSError(f"{cache} has {free / 1e9:.1f} GB free; the checkpoint needs {needed / 1e9:.1f} GB and 2 GB to spare")
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        write_checkpoint(made, proportions)
        made.rename(folder)
    return folder


def tensors(proportions: Proportions) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes in the order in which they are stored."""
    p = proportions
    yield "model.embed_tokens.weight", (p.vocab, p.hidden)
    for layer in range(p.layers):
        block = f"model.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (p.hidden,)
        yield f"{block}.self_attn.q_proj.weight", (p.hidden, p.hidden)
        yield f"{block}.self_attn.k_proj.weight", (p.kv_heads * p.head_dim, p.hidden)
        yield f"{block}.self_attn.v_proj.weight", (p.kv_heads * p.head_dim, p.hidden)
        yield f"{block}.self_attn.o_proj.weight", (p.hidden, p.hidden)
        yield f"{block}.post_attention_layernorm.weight", (p.hidden,)
        yield f"{block}.mlp.gate_proj.weight", (p.intermediate, p.hidden)
        yield f"{block}.mlp.up_proj.weight", (p.intermediate, p.hidden)
        yield f"{block}.mlp.down_proj.weight", (p.hidden, p.intermediate)
    yield "model.norm.weight", (p.hidden,)
    yield "lm_head.weight", (p.vocab, p.hidden)


def write_checkpoint(folder: Path, proportions: Proportions) -> None:
    """Write configuration, tokenizer and weights into an existing folder; the same bytes every time."""
    write_json(folder / "config.json", configuration(proportions))
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_tokenizer(folder)
    everything = list(tensors(proportions))
    total = sum(_nbytes(shape) for _, shape in everything)
    parts = _split(everything, total / proportions.files)
    numbers = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write_file(folder / name, part, numbers)
        weight_map |= dict.fromkeys((tensor for tensor, _ in part), name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def _split(everything: Sequence[tuple[str, tuple[int, ...]]], target: float) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Return the tensors in files of about `target` bytes."""
    parts: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    written = 0
    for name, shape in everything:
        if written >= target * len(parts) - 1:
            parts.append([])
        parts[-1].append((name, shape))
        written += _nbytes(shape)
    return parts


def _write_file(path: Path, part: Sequence[tuple[str, tuple[int, ...]]], numbers: np.random.Generator) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in part:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + _nbytes(shape)]}
        at += _nbytes(shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, shape in part:
            for values in _values(shape, numbers):
                stream.write(values.data)
        # Pages that are not on the disk yet cannot be dropped from the page cache later.
        stream.flush()
        os.fsync(stream.fileno())


def _values(shape: tuple[int, ...], numbers: np.random.Generator) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield the bits of a tensor in blocks: ones for a norm, else numbers of both signs between 1/64 and 1/32 in size."""
    count = _nbytes(shape) // 2
    if len(shape) == 1:
        yield np.full(count, ONE, np.uint16)
        return
    for start in range(0, count, BLOCK_BYTES // 2):
        bits = np.frombuffer(numbers.bytes(2 * min(BLOCK_BYTES // 2, count - start)), np.uint16)
        yield (bits & SIGN_AND_FRACTION) | SMALL


def configuration(proportions: Proportions) -> dict[str, object]:
    """Return the model's `config.json`."""
    p = proportions
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": p.hidden,
        "intermediate_size": p.intermediate,
        "num_hidden_layers": p.layers,
        "num_attention_heads": p.heads,
        "num_key_value_heads": p.kv_heads,
        "head_dim": p.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "vocab_size": p.vocab,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    }


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes; the model's further token ids have no text."""
    special = ["<unk>", "<s>", "</s>"]
    alphabet = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(folder / "tokenizer_config.json", settings)


def _nbytes(shape: tuple[int, ...]) -> int:
    total = 2
    for size in shape:
        total *= size
    return total


def write_json(path: Path, document: object) -> None:
    """Write a document as JSON."""
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
