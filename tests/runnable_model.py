"""A complete tiny model: llama with nine query and three key-value heads, a byte tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 9, 3, 8, 96, 2
HIDDEN = HEADS * HEAD_DIM

_NORMS = ("input", "post_attention")

CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def write_runnable_model(folder: Path) -> Path:
    """Write the model with random float32 weights (the same every time) into `folder` and return it."""
    folder.mkdir(parents=True)
    vocabulary = write_tokenizer(folder)
    save_file(_weights(vocabulary), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(vocabulary))
    _write_json(folder / "generation_config.json", {"eos_token_id": vocabulary - 1})
    return folder


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "eos_token_id": vocabulary - 1,
    }


def write_tokenizer(folder: Path) -> int:
    """Write a tokenizer whose tokens are bytes and return the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "chat_template": CHAT_TEMPLATE}
    _write_json(folder / "tokenizer_config.json", settings)
    return tokenizer.get_vocab_size()


def _weights(vocabulary: int) -> dict[str, npt.NDArray[np.float32]]:
    shapes = {"model.embed_tokens": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.self_attn.q_proj": (HIDDEN, HIDDEN),
            f"{block}.self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.self_attn.o_proj": (HIDDEN, HIDDEN),
            f"{block}.mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            f"{block}.mlp.up_proj": (INTERMEDIATE, HIDDEN),
            f"{block}.mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
    numbers = np.random.default_rng(0)
    weights = {f"{name}.weight": numbers.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ["model.norm", *(f"model.layers.{layer}.{name}_layernorm" for layer in range(LAYERS) for name in _NORMS)]
    return weights | {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in norms}


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
