"""Tiny random transformers models of every family, and a small tokenizer, shared by all tests.

Sizes are odd on purpose (no multiples of 16 or 64 but where a format needs them), every parameter is random (norm
weights and biases too), and the scale is such that attention and logits are far from uniform.
"""

import json
import re
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # available from every source, and on GPUs
NETWORK_FAMILIES = (  # decoders read from Hugging Face checkpoints
    *FAMILIES,
    *("gpt2", "phi3", "gemma2", "gemma3", "gemma4", "cohere", "starcoder2"),
    *("gpt_neox", "glm", "glm4", "exaone", "exaone4"),
    *("smollm3", "ministral", "ministral3", "granite", "olmo2", "olmo3"),
    *("gemma", "cohere2", "seed_oss", "arcee", "nemotron", "stablelm", "helium", "phi", "falcon", "ernie4_5"),
    *("apertus", "hunyuan_v1_dense", "jais2", "cwm", "vaultgemma", "gemma4_unified", "gemma3n"),
)
LATENT_FAMILIES = ("youtu",)  # decoders without experts, whose attention is over latents
MOE_FAMILIES = (  # mixtures of experts read from Hugging Face checkpoints
    *("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "minimax_m2", "solar_open"),
    *("exaone_moe", "flex_olmo", "hunyuan_v1_moe", "mimo_v2_flash", "phimoe"),
    *("afmoe", "cohere2_moe", "hy_v3", "mellum"),
    *("gpt_oss", "granitemoe", "llama4", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
)
# Decoders with recurrent layers, read from Hugging Face checkpoints.
HYBRID_FAMILIES = (
    *("bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe"),
)
# Sizes with which 2 or 6 ranks can share out layers, whose heads and groups of features stay whole.
FOR_RANKS: dict[str, dict[str, Any]] = {
    **{family: {"mamba_n_groups": 6} for family in ("bamba", "granitemoehybrid")},
    **{"kimi_linear": {"linear_num_heads": 6}, "nemotron_h": {"n_groups": 6}},
    "mimo_v2_flash": {"num_attention_heads": 12, "num_key_value_heads": 6},
    "gemma3n": {"intermediate_size": [96, 91, 96, 91, 96, 91]},  # of the first, ranks have parts although it is cut
}
ENCODER_FAMILIES = ("bert", "roberta", "mpnet", "modernbert")  # which embed texts
GROUP_SIZE = 16  # group size of 4-bit weights in engines of tiny models
VOCAB_SIZE = 397
BOS, EOS, PAD, USER = "<|begin|>", "<|end|>", "<|pad|>", "<|user|>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|user|>' if message['role'] == 'user' else '' }}{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
)

_VOCABULARY = {"vocab_size": VOCAB_SIZE, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
_SHAPE: dict[str, Any] = {
    **_VOCABULARY,
    "hidden_size": 60,
    "intermediate_size": 91,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
# The config keys of models with Gated DeltaNet, and of experts beside a shared one.
_DELTA: dict[str, Any] = {
    **{"head_dim": 20, "partial_rotary_factor": 0.4, "layer_types": ["linear_attention"] * 2 + ["full_attention"]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 10, "linear_value_head_dim": 14},
    "max_position_embeddings": 512,
}
_SHARED_EXPERT: dict[str, Any] = {
    **{"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 37},
    "shared_expert_intermediate_size": 53,
}
# The config keys of each family besides _SHAPE, or in place of its keys if the family has other names.
_FAMILY: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 7, "head_dim": 14},
    "qwen2": {},
    "qwen3": {"head_dim": 22, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 60, "n_inner": 91, "n_layer": 3, "n_head": 6, "n_positions": 128},
    "gemma2": {
        **{"head_dim": 14, "query_pre_attn_scalar": 11, "sliding_window": 7, "tie_word_embeddings": True},
        **{"attn_logit_softcapping": 2.5, "final_logit_softcapping": 4.0},
    },
    "gemma3": {
        **{"head_dim": 14, "query_pre_attn_scalar": 11, "sliding_window": 7, "tie_word_embeddings": True},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gemma4": {
        **{"head_dim": 14, "global_head_dim": 28, "sliding_window": 7, "tie_word_embeddings": True},
        **{"num_hidden_layers": 6, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        **{"hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": VOCAB_SIZE, "final_logit_softcapping": 4.0},
        **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gemma3n": {
        **{"head_dim": 14, "sliding_window": 7, "tie_word_embeddings": True, "final_logit_softcapping": 4.0},
        **{"num_hidden_layers": 6, "num_kv_shared_layers": 2, "intermediate_size": [91, 91, 67, 91, 91, 91]},
        **{"hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": VOCAB_SIZE - 5, "laurel_rank": 6},
        "activation_sparsity_pattern": [0.75, 0.75, 0.5, 0.0, 0.0, 0.0],
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gemma": {"head_dim": 14, "tie_word_embeddings": True},
    "cohere2": {
        **{"layer_norm_eps": 1e-5, "logit_scale": 0.25, "tie_word_embeddings": True, "sliding_window": 7},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "seed_oss": {"head_dim": 14},
    "hunyuan_v1_dense": {
        "head_dim": 14,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "alpha": 8.0, "factor": 1.0},
    },
    "apertus": {
        "rope_parameters": {
            **{"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "original_max_position_embeddings": 32},
            **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
    },
    "jais2": {"hidden_size": 72, "layer_norm_eps": 1e-4},
    "cwm": {
        **{"sliding_window": 7, "head_dim": 14},
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "youtu": {
        **{"num_key_value_heads": 6, "q_lora_rank": 26, "kv_lora_rank": 20, "v_head_dim": 14},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "tie_word_embeddings": True, "pad_token_id": None},
    },
    "vaultgemma": {
        **{"head_dim": 14, "query_pre_attn_scalar": 11, "sliding_window": 7, "tie_word_embeddings": True},
        **{"attn_logit_softcapping": 2.5, "final_logit_softcapping": 4.0},
    },
    "gemma4_unified": {
        **{"head_dim": 14, "global_head_dim": 28, "sliding_window": 7, "tie_word_embeddings": True},
        **{"attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 4.0},
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "afmoe": {
        **{"head_dim": 14, "sliding_window": 7, "num_experts": 7, "num_experts_per_tok": 3, "num_shared_experts": 2},
        **{"moe_intermediate_size": 37, "num_dense_layers": 1, "route_scale": 1.5, "mup_enabled": True},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "cohere2_moe": {
        **{"head_dim": 14, "rms_norm_eps": 1e-4, "logit_scale": 0.25, "sliding_window": 7, "num_experts": 7},
        **{"num_experts_per_tok": 3, "intermediate_size": 37, "prefix_dense_intermediate_size": 53},
        **{"expert_selection_fn": "sigmoid", "norm_topk_prob": False, "tie_word_embeddings": True},
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "hy_v3": {
        **{"head_dim": 14, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 37},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "mellum": {
        **{"head_dim": 14, "sliding_window": 7, "num_experts": 7, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 37, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "rope_parameters": {
            "full_attention": {
                **{"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 32},
                **{"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2},
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "arcee": {},
    "nemotron": {"hidden_size": 72, "norm_eps": 1e-4},
    "stablelm": {"hidden_size": 72, "layer_norm_eps": 1e-4, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "helium": {"head_dim": 10, "rms_norm_eps": 1e-4},
    "phi": {"hidden_size": 72, "layer_norm_eps": 1e-4, "intermediate_size": 288, "num_key_value_heads": 6},
    "falcon": {"layer_norm_epsilon": 1e-4, "max_position_embeddings": 2048},
    "ernie4_5": {"head_dim": 14, "tie_word_embeddings": True},
    "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.25, "tie_word_embeddings": True},
    "starcoder2": {"norm_epsilon": 1e-5, "sliding_window": 7, "tie_word_embeddings": True},
    "gpt_neox": {"layer_norm_eps": 1e-4, "hidden_size": 72, "rotary_pct": 0.5, "rotary_emb_base": 100},
    "glm": {"hidden_size": 72, "head_dim": 12},
    "glm4": {"head_dim": 20},
    "exaone": {"head_dim": 14},
    "exaone4": {
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "mixtral": {"head_dim": 14, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 37},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 37},
    "qwen2_moe": {
        **{"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 37},
        **{"shared_expert_intermediate_size": 53, "mlp_only_layers": [1]},
    },
    "qwen3_moe": {
        **{"num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 37, "head_dim": 22},
        "norm_topk_prob": True,
    },
    "bert": {"layer_norm_eps": 1e-5},
    "roberta": {"layer_norm_eps": 1e-5, "max_position_embeddings": 131, "pad_token_id": 2},
    "mpnet": {"layer_norm_eps": 1e-5, "max_position_embeddings": 130},
    "modernbert": {
        **{"local_attention": 14, "norm_bias": True, "pad_token_id": 0},
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 160.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "phi3": {"sliding_window": 9, "hidden_size": 72, "partial_rotary_factor": 0.5},
    "olmo2": {},
    "olmo3": {
        **{"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "smollm3": {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True},
    "ministral": {
        **{"sliding_window": 7, "head_dim": 14},
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "ministral3": {
        "head_dim": 14,
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 50.0, "factor": 16.0, "original_max_position_embeddings": 8},
            **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
        },
    },
    "granite": {
        **{"embedding_multiplier": 1.7, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 1.5},
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        **{"head_dim": 14, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 37},
        **{"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 150.0, "factor": 4.0, "truncate": False},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 32},
        },
    },
    "deepseek_v2": {
        **{"num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 20, "v_head_dim": 14},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "n_routed_experts": 7, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 37, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
    },
    "deepseek_v3": {
        **{"num_key_value_heads": 6, "q_lora_rank": 26, "kv_lora_rank": 20, "v_head_dim": 14},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "n_routed_experts": 12, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 37, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16},
            **{"mscale": 0.7, "mscale_all_dim": 0.9},
        },
    },
    "dots1": {
        **{"head_dim": 14, "sliding_window": 7, "max_window_layers": 2, "norm_topk_prob": True},
        **{"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 37},
        **{"first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
    },
    "glm4_moe": {
        **{"head_dim": 20, "attention_bias": True, "use_qk_norm": True},
        **{"n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2},
        **{"moe_intermediate_size": 37, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
    },
    "glm4_moe_lite": {
        **{"num_key_value_heads": 6, "q_lora_rank": 26, "kv_lora_rank": 20, "v_head_dim": 14},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "n_routed_experts": 7, "num_experts_per_tok": 3},
        "moe_intermediate_size": 37,
    },
    "solar_open": {"head_dim": 14, "n_routed_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 37},
    "minimax_m2": {
        **{"head_dim": 20, "rotary_dim": 8, "num_local_experts": 9, "num_experts_per_tok": 4, "intermediate_size": 37},
    },
    "ernie4_5_moe": {
        **{"moe_num_experts": 7, "moe_k": 3, "moe_intermediate_size": 37, "moe_num_shared_experts": 2},
        "tie_word_embeddings": True,
    },
    "exaone_moe": {
        **{"head_dim": 14, "sliding_window": 7, "num_experts": 7, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 37, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "hunyuan_v1_moe": {
        **{"head_dim": 14, "num_experts": 7, "moe_topk": [3] * 3, "intermediate_size": 37},
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "alpha": 20.0, "factor": 1.0},
    },
    "mimo_v2_flash": {
        **{"num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 12, "v_head_dim": 10, "sliding_window": 7},
        **{"n_routed_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 37},
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.334},
        },
    },
    "phimoe": {
        **{"head_dim": 14, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 37},
        **{"sliding_window": 7, "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.25},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "flex_olmo": {"num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 37},
    "llama4": {
        **{"head_dim": 14, "num_local_experts": 5, "intermediate_size": 37, "intermediate_size_mlp": 53},
        **{"moe_layers": [0, 2], "no_rope_layers": [1, 1, 0], "floor_scale": 8192},
    },
    "granitemoe": {
        **{"embedding_multiplier": 1.7, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 1.5},
        **{"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 37, "shared_intermediate_size": 53},
        "tie_word_embeddings": True,
    },
    "kimi_linear": {
        **{"layer_types": ["linear_attention"] * 2 + ["full_attention"], "linear_num_heads": 3, "linear_head_dim": 10},
        **{"num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 20, "v_head_dim": 14},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "num_local_experts": 12, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 37, "n_group": 4, "topk_group": 2, "max_position_embeddings": 512},
    },
    "bamba": {
        **{"mamba_n_heads": 6, "mamba_d_head": 24, "mamba_n_groups": 2, "mamba_d_state": 14, "mamba_chunk_size": 64},
        **{"hidden_size": 72, "attn_layer_indices": [2], "max_position_embeddings": 512},
    },
    "falcon_h1": {
        **{"mamba_d_ssm": 84, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 14, "mamba_chunk_size": 64},
        **{"embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.7, "ssm_in_multiplier": 1.2},
        **{"attention_in_multiplier": 0.8, "attention_out_multiplier": 0.9, "ssm_out_multiplier": 0.4},
        **{"ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.6], "mlp_multipliers": [0.8, 1.4], "max_position_embeddings": 512},
    },
    "granitemoehybrid": {
        **{"embedding_multiplier": 1.7, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 1.5},
        **{"mamba_n_heads": 6, "mamba_d_head": 20, "mamba_n_groups": 2, "mamba_d_state": 14, "mamba_chunk_size": 64},
        **{"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 37, "shared_intermediate_size": 53},
        **{"layer_types": ["mamba", "mamba", "attention"], "max_position_embeddings": 512},
    },
    "nemotron_h": {
        **{"mamba_num_heads": 6, "mamba_head_dim": 18, "n_groups": 2, "ssm_state_size": 14, "chunk_size": 64},
        **{"layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"]},
        **{"head_dim": 14, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2},
        **{"moe_intermediate_size": 37, "moe_shared_expert_intermediate_size": 53, "moe_latent_size": 26},
        **{"layer_norm_epsilon": 1e-5, "max_position_embeddings": 512},
    },
    "lfm2": {
        **{"layer_types": ["conv", "conv", "full_attention"], "block_multiple_of": 7, "norm_eps": 1e-4},
        **{"tie_word_embeddings": True, "max_position_embeddings": 512},
    },
    "lfm2_moe": {
        **{"layer_types": ["conv", "conv", "full_attention"], "num_dense_layers": 1, "num_experts": 7},
        **{"num_experts_per_tok": 3, "moe_intermediate_size": 37, "norm_eps": 1e-4, "tie_word_embeddings": True},
        **{"routed_scaling_factor": 1.5, "max_position_embeddings": 512},
    },
    "qwen3_next": {**_DELTA, **_SHARED_EXPERT},
    "qwen3_5": _DELTA,
    "qwen3_5_moe": {**_DELTA, **_SHARED_EXPERT},
}
_MODEL_TYPES = {
    "granitemoe": "granitemoeshared",
    **{family: f"{family}_text" for family in ("gemma3", "gemma3n", "gemma4", "gemma4_unified", "llama4")},
    **{family: f"{family}_text" for family in ("qwen3_5", "qwen3_5_moe")},
}
_UNSCALED = ("gemma3n", "gemma4", "gemma4_unified")  # families whose scores are not scaled
_OF_DECODERS = ("rms_norm_eps", "num_key_value_heads", "tie_word_embeddings")
_LAYER_NORM_SHAPE = {key: value for key, value in _SHAPE.items() if key != "rms_norm_eps"}
_ENCODER_SHAPE = {key: value for key, value in _SHAPE.items() if key not in _OF_DECODERS}
_SHAPES = {
    **dict.fromkeys(_FAMILY, _SHAPE),
    "gpt2": _VOCABULARY,
    "starcoder2": _LAYER_NORM_SHAPE,
    **dict.fromkeys(("cohere", "cohere2", "jais2", "nemotron", "stablelm", "phi"), _LAYER_NORM_SHAPE),
    "falcon": {
        key: value
        for key, value in _LAYER_NORM_SHAPE.items()
        if key not in ("num_key_value_heads", "intermediate_size", "tie_word_embeddings")
    },
    "gpt_neox": {key: value for key, value in _LAYER_NORM_SHAPE.items() if key != "num_key_value_heads"},
    "qwen3_5_moe": {key: value for key, value in _SHAPE.items() if key != "intermediate_size"},
    "nemotron_h": {key: value for key, value in _SHAPE.items() if key not in ("rms_norm_eps", "num_hidden_layers")},
    "bert": _ENCODER_SHAPE,
    "roberta": _ENCODER_SHAPE,
    "mpnet": _ENCODER_SHAPE,
    "modernbert": _ENCODER_SHAPE,
    "lfm2": _LAYER_NORM_SHAPE,
    "lfm2_moe": _LAYER_NORM_SHAPE,
}


def tiny_config(family: str, **overrides: Any) -> PreTrainedConfig:
    """The Hugging Face config of a tiny model of ``family``; ``overrides`` are fields of it."""
    fields = {**_SHAPES[family], **_FAMILY[family], **overrides}
    return AutoConfig.for_model(_MODEL_TYPES.get(family, family), **fields)


def tiny_model(
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    classifies: bool = False,
    **overrides: Any,
) -> PreTrainedModel:
    """A random language model, or encoder, of ``family``, in eval mode; ``overrides`` are fields of its HF config.

    An encoder that ``classifies`` texts has a head.
    """
    config = tiny_config(family, **overrides)
    auto_class = AutoModel if family in ENCODER_FAMILIES else AutoModelForCausalLM
    auto_class = AutoModelForSequenceClassification if classifies else auto_class
    with torch.device(device):
        model = auto_class.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.config._experts_implementation = "eager"  # other implementations want multiples of four features
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, device=device)
            if name.endswith("A_log"):  # heads that forget at once, and heads that remember hundreds of tokens
                parameter.copy_(noise * 2 - 3)
            elif parameter.ndim >= 2:  # also the experts of a layer, [experts, out, in]
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.5)
            elif name.endswith("sinks"):
                parameter.copy_(noise * 2)
            elif family in _UNSCALED and name.endswith("q_norm.weight"):  # which scales scores, as nothing else
                parameter.copy_((1 + noise * 0.2) * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_((0 if _adds_one(family, name) else 1) + noise * 0.2)
            parameter.data = parameter.data.to(dtype)  # parameters only: .to() would round RoPE's frequencies as well
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(torch.randn(buffer.shape, generator=generator, device=device) * 0.1)
            elif name.endswith("layer_scalar"):
                buffer.copy_(1 + torch.randn(buffer.shape, generator=generator, device=device) * 0.2)
    return model.eval()


def _adds_one(family: str, norm: str) -> bool:
    """Whether the model adds 1 to the weight of the norm."""
    of_delta = family == "qwen3_next" and not norm.endswith("linear_attn.norm.weight")
    return family in ("gemma", "gemma2", "gemma3", "vaultgemma") or family == "nemotron" or of_delta


def is_router(parameter: str) -> bool:
    """Whether the matrix is a router's or a gate's, or of factors of streams, which checkpoints store in float32."""
    return parameter.endswith(
        (
            *("mlp.gate.wg.weight", "mlp.gate.weight", "mixer.gate.weight", "feed_forward.gate.weight"),
            *("shared_expert_gate.weight", "router.weight", "router.proj.weight", "router.gate.weight"),
            *("altup.modality_router.weight", "altup.prediction_coefs.weight", "altup.correction_coefs.weight"),
        )
    )


def round_matrices(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """``model`` in float32, with every tensor rounded that a checkpoint stores in ``dtype``."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and not is_router(name) and not name.endswith(("bias", "A_log")):
                parameter.copy_(parameter.to(getattr(torch, dtype)).float())
        for module in model.modules():
            if isinstance(scale := getattr(module, "embed_scale", None), torch.Tensor):  # Gemma has one
                scale.copy_(scale.to(getattr(torch, dtype)).float())
            if sparsity := getattr(module, "activation_sparsity", 0):  # Gemma 3n's, which gives a factor of deviations
                factor = torch.tensor(NormalDist().inv_cdf(sparsity)).to(getattr(torch, dtype))
                module.activation_sparsity = NormalDist().cdf(factor.item())
    return model


def quantize_experts(model: PreTrainedModel, qformat: str) -> PreTrainedModel:
    """``model`` with only the matrices of experts rounded, like in engines of that qformat."""
    inputs = 0 if model.config.model_type in ("gpt_oss", "llama4_text") else 1  # axis of "in": [in, out] or [out, in]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
                for matrix in parameter:
                    matrix.copy_(_ROUNDED[qformat](matrix, inputs))
    return model


def quantize_linear_layers(model: PreTrainedModel, qformat: str) -> PreTrainedModel:
    """``model`` with linear layers, except the LM head and routers, rounded like in engines of that qformat."""
    rounded = _ROUNDED[qformat]
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear | Conv1D)}
    with torch.no_grad():
        for name, layer in layers.items():
            if name.endswith("lm_head") or is_router(f"{name}.weight"):
                continue
            inputs = 0 if isinstance(layer, Conv1D) else 1  # axis of "in": [in, out] in GPT-2
            layer.weight.copy_(rounded(layer.weight.float(), inputs))
    return model


def _as_int8(weight: torch.Tensor, inputs: int) -> torch.Tensor:
    scale = weight.abs().amax(inputs) / 127
    zeros = torch.zeros(scale.numel(), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scale, zeros, 1 - inputs, -127, 127)


def _as_int4(weight: torch.Tensor, inputs: int) -> torch.Tensor:
    groups = weight.movedim(inputs, -1).reshape(-1, GROUP_SIZE)
    scale = (groups.abs().amax(-1) / 7).half().float()  # rounded to the stored type
    zeros = torch.zeros(scale.numel(), dtype=torch.int32)
    rounded = torch.fake_quantize_per_channel_affine(groups, scale, zeros, 0, -7, 7)
    return rounded.reshape(weight.movedim(inputs, -1).shape).movedim(-1, inputs)


def _as_fp8(weight: torch.Tensor, inputs: int) -> torch.Tensor:
    scale = weight.abs().amax(inputs, keepdim=True) / 448
    return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


_ROUNDED = {"int8_wo": _as_int8, "fp8_wo": _as_fp8, "int4_wo": _as_int4}


def save_model(model: PreTrainedModel, directory: Path, max_shard_size: str = "1GB") -> Path:
    """Write ``model`` (safetensors, config.json, generation_config.json) and the tiny tokenizer; returns the folder."""
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    if model.config.model_type == "exaone":  # transformers saves the name of its own class, Llama's
        config = json.loads((Path(directory) / "config.json").read_text())
        config["architectures"] = ["ExaoneForCausalLM"]
        (Path(directory) / "config.json").write_text(json.dumps(config))
    if model.config.model_type == "kimi_linear":  # transformers names dense layers as if they had experts
        for shard in Path(directory).glob("*.safetensors"):
            tensors = {re.sub(r"block_sparse_moe\.(\w+_proj)", r"mlp.\1", n): t for n, t in load_file(shard).items()}
            save_file(tensors, shard, metadata={"format": "pt"})
    save_tokenizer(directory)
    return Path(directory)


def save_tiny_model(family: str, directory: Path, **arguments: Any) -> PreTrainedModel:
    """:func:`tiny_model` followed by :func:`save_model`; returns the model."""
    model = tiny_model(family, **arguments)
    save_model(model, directory)
    return model


@cache
def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of fewer than VOCAB_SIZE tokens; any text survives encode and decode."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 5,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, PAD, USER)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["the quick brown fox jumps over the lazy dog and the other dogs", "1 + 1 = 2, naïve café, 你好"] * 8
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def save_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json (with a chat template) of the tiny tokenizer."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
