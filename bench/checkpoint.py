"""Synthetic llama checkpoints: random bfloat16 weights, several files with an index, and a tokenizer of bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.tensor_files import BLOCK_BYTES, Stored, write_files, write_json

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
    "serve": Proportions(hidden=1024, layers=16, intermediate=2816, heads=16, kv_heads=8, vocab=32000, files=1),
    "3g": Proportions(hidden=2048, layers=24, intermediate=8192, heads=32, kv_heads=8, vocab=32000, files=4),
    "7b": Proportions(hidden=4096, layers=32, intermediate=11008, heads=32, kv_heads=32, vocab=32000, files=14),
}
"""The checkpoints by name: 21 MB, 0.5 GB for serving over two ranks, 3.2 GB, and 13.5 GB with the proportions of a 7B model."""


def checkpoint(cache: Path, size: str) -> Path:
    """Return the folder of a checkpoint below `cache`, made on first use. It is complete or absent.

    Raises OSError when writing it would leave less than `DISK_RESERVE` bytes free.
    """
    proportions = SIZES[size]
    needed = sum(Stored(name, "BF16", shape).nbytes for name, shape in tensors(proportions))
    return make_once(cache / f"llama-{size}", needed, lambda folder: write_checkpoint(folder, proportions))


def make_once(folder: Path, needed: int, write: Callable[[Path], None]) -> Path:
    """Return a folder that `write` fills with `needed` bytes on first use. It is complete or absent.

    Raises OSError when writing it would leave less than `DISK_RESERVE` bytes free.
    """
    if folder.is_dir():
        return folder
    cache = folder.parent
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free - needed < DISK_RESERVE:
        raise OSError(f"{cache} has {free / 1e9:.1f} GB free; the checkpoint needs {needed / 1e9:.1f} GB and 2 GB to spare")
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        write(made)
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
    write_small_files(folder, model_config(proportions))
    write_files(folder, [Stored(name, "BF16", shape) for name, shape in tensors(proportions)], proportions.files, weights)


def write_small_files(folder: Path, config: Mapping[str, object]) -> None:
    """Write what a checkpoint has beside its weights."""
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_tokenizer(folder)


def weights(stored: Stored, numbers: np.random.Generator) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield the bits of a bfloat16 tensor in blocks: ones for a norm, else numbers of both signs from 1/64 to 1/32 in size."""
    count = stored.nbytes // 2
    if len(stored.shape) == 1:
        yield np.full(count, ONE, np.uint16)
        return
    for start in range(0, count, BLOCK_BYTES // 2):
        bits = np.frombuffer(numbers.bytes(2 * min(BLOCK_BYTES // 2, count - start)), np.uint16)
        yield (bits & SIGN_AND_FRACTION) | SMALL


def model_config(proportions: Proportions) -> dict[str, object]:
    """Return the configuration of a plain checkpoint."""
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
