"""The models that producers quantise: random weights with outliers, and sizes that no split divides evenly.

Hidden size 384 is three groups of 128, the inner size of the feed-forward part 640 is five, and six query heads share three
key-value heads: at two ranks borders fall into groups, at three everything is even. Weights follow a normal distribution, and a
few input channels are ten times larger, as in real models: without them every order of columns would be as good as any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from bench.checkpoint import Proportions, model_config, tensors, write_tokenizer
from bench.tensor_files import write_json

Family = Literal["llama", "qwen2", "ragged"]
"""llama; qwen2, whose query, key and value have a bias; llama with an inner size of five groups of 128 and a quarter."""

BYTE_TOKENS: Final = (3, 259)
"""The token ids that stand for bytes: the first, and the one after the last."""

_OUTLIERS: Final = 24
_LARGER: Final = 10.0


def proportions_of(family: Family) -> Proportions:
    """Return a model's sizes."""
    intermediate = 672 if family == "ragged" else 640
    return Proportions(hidden=384, layers=2, intermediate=intermediate, heads=6, kv_heads=3, vocab=384, files=1)


def write_base_model(folder: Path, family: Family) -> None:
    """Write configuration, tokenizer and float16 weights into an existing folder; the same bytes every time."""
    proportions = proportions_of(family)
    config = model_config(proportions) | {"dtype": "float16", "torch_dtype": "float16", "rope_theta": 10000.0}
    if family == "qwen2":
        config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_tokenizer(folder)
    numbers = np.random.default_rng(0)
    weights = {name: _values(shape, numbers) for name, shape in _shapes(proportions, family)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def random_tokens(count: int, length: int, seed: int) -> list[list[int]]:
    """Return sequences of random byte tokens."""
    numbers = np.random.default_rng(seed)
    drawn: list[list[int]] = numbers.integers(*BYTE_TOKENS, (count, length)).tolist()
    return drawn


def _shapes(proportions: Proportions, family: Family) -> list[tuple[str, tuple[int, ...]]]:
    everything = list(tensors(proportions))
    if family != "qwen2":
        return everything
    biased = [(name, shape) for name, shape in everything if name.rpartition("_proj")[0][-1:] in ("q", "k", "v")]
    biases = [(name.removesuffix("weight") + "bias", shape[:1]) for name, shape in biased if "self_attn" in name]
    return [*everything, *biases]


def _values(shape: tuple[int, ...], numbers: np.random.Generator) -> npt.NDArray[np.float16]:
    """Return normal numbers whose products keep their size, some input channels larger; near one for a norm or a bias."""
    if len(shape) == 1:
        return (1 + 0.1 * numbers.standard_normal(shape)).astype(np.float16)
    values = numbers.standard_normal(shape) / np.sqrt(shape[1])
    values[:, numbers.choice(shape[1], _OUTLIERS, replace=False)] *= _LARGER
    halved: npt.NDArray[np.float16] = values.astype(np.float16)
    return halved
