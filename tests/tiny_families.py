"""Tiny configurations of every family of causal language models that ships a tensor-parallel plan, made without knowing any.

A configuration is the family's default with every size that has a well-known name replaced by a small one.
"""

from __future__ import annotations

from typing import Any, Final

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS: Final = 2

SMALL: Final[dict[str, int]] = {
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "num_hidden_layers": LAYERS,
    "n_layer": LAYERS,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 44,
    "n_inner": 44,
    "ffn_dim": 44,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "n_positions": 64,
    # attention through a latent
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "rotary_dim": 4,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "num_expert_group": 1,
    "num_experts_per_token": 2,
    "topk_group": 1,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "shared_intermediate_size": 28,
    "expert_ffn_hidden_size": 20,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    # tokens
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 8,
    # layers of other kinds
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "layer_group_size": 2,
    "full_attention_interval": 2,
    "num_kv_shared_layers": 0,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 64,
    "ssm_state_size": 8,
    "n_groups": 1,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 4,
    "index_block_size": 4,
    "index_topk_blocks": 1,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "unpadded_vocab_size": 92,
    "d_rel": 8,
    "image_size": 32,
    "patch_size": 16,
}

LATENT: Final = {"num_key_value_heads": 4, "head_dim": 4}
"""Sizes of attention through a latent: every head has keys of its own, and `head_dim` is the part with positions."""

SPECIAL: Final[dict[str, dict[str, Any]]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 12},
    "dots3_note_vision_encoder": {"mlp_layer_types": ["dense", "dense"], "adapter_in_dim": 32, "adapter_out_dim": 32},
    "dory": {"layer_types": None, "num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1, "n_recurrent_loops": 1},
    "gemma4_unified_text": {"per_layer_config": {1: {"head_dim": 16}}},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"num_hidden_layers": 2, "num_layers": 1, "ffn_hidden_size": 44, "zero_expert_num": 2, "moe_topk": 3},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 50,
        "hc_lowrank": 8,
    },
}
"""What a family needs beyond small sizes."""


def families() -> dict[str, type[PreTrainedConfig]]:
    """Return the configuration class of every family whose own or text part has a tensor-parallel plan."""
    found = {}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = CONFIG_MAPPING[model_type]
        text = getattr(kind, "sub_configs", {}).get("text_config")
        if kind.base_model_tp_plan or getattr(text, "base_model_tp_plan", None):
            found[model_type] = kind
    return found


def tiny_config(model_type: str, **sizes: Any) -> PreTrainedConfig:
    """Return the family's default configuration with small sizes, or those given."""
    return _tiny(families()[model_type], **sizes)


def _tiny(kind: type[PreTrainedConfig], **sizes: Any) -> PreTrainedConfig:
    default = kind()
    parts = {name: _tiny(type(part)) for name in kind.sub_configs if (part := getattr(default, name, None)) is not None}
    nested = {name: part.to_dict() for name, part in parts.items()}
    settings: dict[str, Any] = {**_sizes(kind), **sizes, **nested}
    return kind(**settings)


def _sizes(kind: type[PreTrainedConfig]) -> dict[str, Any]:
    """Return what differs from the family's defaults: every known size, and as many layers as there are kinds of them."""
    defaults = kind().to_dict()
    sizes: dict[str, Any] = {
        name: size for name, size in SMALL.items() if name in defaults and not isinstance(defaults[name], (dict, list, bool))
    }
    if "kv_lora_rank" in defaults:
        sizes |= {name: LATENT[name] for name in LATENT if name in sizes}
    kinds = list(dict.fromkeys(defaults.get("layer_types") or ()))
    if kinds:
        kinds += kinds[-1:] * (LAYERS - len(kinds))
        sizes |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    return sizes | SPECIAL.get(kind.model_type, {})
