"""network.onnx on onnxruntime against transformers in float32: every family and variation, prefill and decode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.models import (
    ENCODER_FAMILIES,
    HYBRID_FAMILIES,
    LATENT_FAMILIES,
    MOE_FAMILIES,
    NETWORK_FAMILIES,
    VOCAB_SIZE,
    round_matrices,
    save_model,
    save_tiny_model,
    tiny_model,
)
from tests.onnx_runner import OnnxRunner
from tests.tolerances import assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.families import qwen3_moe
from trtllm_lite.convert.family import all_families

PROMPT_LENGTHS = (13, 1, 6)
DECODE_STEPS = 4


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    """RoPE settings that matter within a few tokens: short wavelengths, a short original context."""
    return {"head_dim": 16, "rope_parameters": {"rope_type": kind, "rope_theta": 50.0, **parameters}}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied-biased": (
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "head_dim": 18},
    ),
    "llama-mha": ("llama", {"num_key_value_heads": 6}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "llama-linear": ("llama", _rope("linear", factor=3.0)),
    "llama-llama3": ("llama", _rope("llama3", factor=8.0, **_LLAMA3)),
    "llama-yarn": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": ("mistral", {}),
    "mistral-full": ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-biased-untied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "qwen3-layer-types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


_FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0], "long_factor": [1.2, 2.0, 3.0, 4.0, 9.0, 20.0]}
CASES |= {
    "llama4": ("llama4", {}),
    "llama4-of-chunks": ("llama4", {"attention_chunk_size": 8, "floor_scale": 5, "attn_scale": 0.7}),
    "llama4-of-two-unnormed-biased": (
        "llama4",
        {
            **{"num_experts_per_tok": 2, "use_qk_norm": False, "attention_bias": True, "tie_word_embeddings": True},
            **{"moe_layers": None, "interleave_moe_layer_step": 2, "attn_temperature_tuning": False},
        },
    ),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2-groups": (
        "deepseek_v2",
        {
            **{"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "n_routed_experts": 9},
            **{"q_lora_rank": 26, "tie_word_embeddings": True},
        },
    ),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3-one-group": (
        "deepseek_v3",
        {
            **{"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "rope_interleave": False},
            **{"q_lora_rank": None, "rope_parameters": None},
        },
    ),
    "dots1": ("dots1", {}),
    "dots1-biased-unnormalized": (
        "dots1",
        {"attention_bias": True, "norm_topk_prob": False, "sliding_window": None, "n_group": 2, "topk_group": 1},
    ),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "ernie4_5_moe-every-second-unshared-untied": (
        "ernie4_5_moe",
        {
            **{"moe_layer_start_index": 0, "moe_layer_end_index": 2, "moe_layer_interval": 2, "num_hidden_layers": 5},
            **{"moe_num_shared_experts": 0, "tie_word_embeddings": False},
        },
    ),
    "exaone_moe": ("exaone_moe", {}),
    "exaone_moe-groups-tied": (
        "exaone_moe",
        {
            **{"num_experts": 8, "n_group": 4, "topk_group": 2, "num_shared_experts": 2, "tie_word_embeddings": True},
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "mimo_v2_flash": ("mimo_v2_flash", {}),
    "mimo_v2_flash-biased-unscaled-groups": (
        "mimo_v2_flash",
        {
            **{"attention_bias": True, "attention_value_scale": None, "n_routed_experts": 8, "n_group": 4},
            **{"topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.5, "tie_word_embeddings": True},
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        },
    ),
    "phimoe": ("phimoe", {}),
    "phimoe-longrope-unbiased": (
        "phimoe",
        {
            **{"attention_bias": False, "lm_head_bias": False, "sliding_window": None, "head_dim": 12},
            "rope_parameters": {
                **{"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 32},
                **{"short_mscale": 1.3, "long_mscale": 1.3, **_FACTORS},
            },
        },
    ),
    "phimoe-tied-without-jitter": ("phimoe", {"tie_word_embeddings": True, "router_jitter_noise": 0.0}),
    "flex_olmo": ("flex_olmo", {}),
    "flex_olmo-biased-normalized-tied": (
        "flex_olmo",
        {"attention_bias": True, "norm_topk_prob": True, "tie_word_embeddings": True},
    ),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {}),
    "hunyuan_v1_moe-plain-biased-tied": (
        "hunyuan_v1_moe",
        {
            **{"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "moe_topk": 2},
            **{"attention_bias": True, "tie_word_embeddings": True},
        },
    ),
    "glm4_moe": ("glm4_moe", {}),
    "glm4_moe-unnormed-unbiased": (
        "glm4_moe",
        {"use_qk_norm": False, "attention_bias": False, "n_group": 1, "topk_group": 1},
    ),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "glm4_moe_lite-layer-types": (
        "glm4_moe_lite",
        {"mlp_layer_types": ["sparse", "dense", "sparse"], "q_lora_rank": None, "rope_interleave": False},
    ),
    "solar_open": ("solar_open", {}),
    "solar_open-biased-tied": ("solar_open", {"attention_bias": True, "tie_word_embeddings": True}),
    "minimax_m2": ("minimax_m2", {}),
    "minimax_m2-whole-heads-tied": ("minimax_m2", {"rotary_dim": 20, "tie_word_embeddings": True}),
    "llama-dynamic": ("llama", _rope("dynamic", factor=4.0)),
    "gpt2": ("gpt2", {}),
    "gpt2-scaled-by-layer": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "activation_function": "gelu"},
    ),
    "gpt2-untied-default-width": ("gpt2", {"n_inner": None, "tie_word_embeddings": False}),
    "cohere": ("cohere", {}),
    "cohere-untied-biased": ("cohere", {"tie_word_embeddings": False, "attention_bias": True, "head_dim": 14}),
    "gemma2": ("gemma2", {}),
    "gemma2-uncapped-untied-biased": (
        "gemma2",
        {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3": ("gemma3", {}),
    "gemma3-capped": ("gemma3", {"final_logit_softcapping": 4.0, "sliding_window": 3}),
    "olmo2": ("olmo2", {}),
    "olmo2-tied-biased-mha": (
        "olmo2",
        {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 6},
    ),
    "olmo3": ("olmo3", {}),
    "olmo3-usual-layers": (
        "olmo3",
        {"layer_types": None, "rope_parameters": None, "num_hidden_layers": 4, "sliding_window": 5},
    ),
    "smollm3": ("smollm3", {}),
    "smollm3-untied-windows": (
        "smollm3",
        {
            **{"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
            **{"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": None, "no_rope_layer_interval": 3},
        },
    ),
    "ministral": ("ministral", {}),
    "ministral-all-windows": ("ministral", {"layer_types": None, "tie_word_embeddings": True}),
    "ministral3": ("ministral3", {}),
    "ministral3-windows-tied": ("ministral3", {"sliding_window": 7, "tie_word_embeddings": True}),
    "granite": ("granite", {}),
    "granite-untied-biased": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2-unbiased-untied": (
        "starcoder2",
        {"use_bias": False, "tie_word_embeddings": False, "sliding_window": None},
    ),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox-sequential-unbiased-tied": (
        "gpt_neox",
        {
            **{"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True},
            **{"hidden_act": "gelu_fast", "rotary_pct": 1.0},
        },
    ),
    "glm": ("glm", {}),
    "glm-unbiased-tied": ("glm", {"attention_bias": False, "tie_word_embeddings": True, "num_key_value_heads": 6}),
    "glm-whole-heads": ("glm", {"partial_rotary_factor": 1.0}),
    "glm4": ("glm4", {}),
    "glm4-unbiased": ("glm4", {"attention_bias": False}),
    "exaone": ("exaone", {}),
    "exaone-biased-tied": ("exaone", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "exaone-llama3": ("exaone", _rope("llama3", factor=8.0, **_LLAMA3)),
    "exaone4": ("exaone4", {}),
    "exaone4-full-tied": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True, "head_dim": 14},
    ),
    "phi3": ("phi3", {}),
    "phi3-longrope-short": (
        "phi3",
        {
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 1.0,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, **_FACTORS},
        },
    ),
    "phi3-longrope-within": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 1.0,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, **_FACTORS},
        },
    ),
    "phi3-longrope-long": (
        "phi3",
        {
            "original_max_position_embeddings": 4,
            "partial_rotary_factor": 1.0,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, **_FACTORS},
        },
    ),
}
CASES |= {
    "gemma": ("gemma", {}),
    "gemma-untied-biased": ("gemma", {"tie_word_embeddings": False, "attention_bias": True, "hidden_act": "gelu"}),
    "gemma3n": ("gemma3n", {}),
    "gemma3n-unshared-biased-untied": (
        "gemma3n",
        {
            **{"num_kv_shared_layers": 0, "attention_bias": True, "tie_word_embeddings": False, "layer_types": None},
            **{"altup_correct_scale": False, "activation_sparsity_pattern": None, "intermediate_size": 91},
            **{"rope_parameters": None, "vocab_size_per_layer_input": 397, "laurel_rank": 8},
        },
    ),
    "gemma4": ("gemma4", {}),
    "gemma4-of-experts": (
        "gemma4",
        {
            **{"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 37},
            **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        },
    ),
    "gemma4-unshared-biased-untied": (
        "gemma4",
        {
            **{"num_kv_shared_layers": 0, "attention_k_eq_v": False, "hidden_size_per_layer_input": 0},
            **{"attention_bias": True, "tie_word_embeddings": False, "rope_parameters": None, "layer_types": None},
        },
    ),
    "cohere2": ("cohere2", {}),
    "cohere2-usual-layers": (
        "cohere2",
        {"layer_types": None, "num_hidden_layers": 5, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "seed_oss": ("seed_oss", {}),
    "seed_oss-all-biased-tied": (
        "seed_oss",
        {"attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "gemma4_unified": ("gemma4_unified", {}),
    "gemma4_unified-sharing-biased-untied": (
        "gemma4_unified",
        {
            **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "num_hidden_layers": 6, "layer_types": None},
            **{"attention_bias": True, "tie_word_embeddings": False, "attention_k_eq_v": False},
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        },
    ),
    "vaultgemma": ("vaultgemma", {}),
    "vaultgemma-uncapped-untied-biased": (
        "vaultgemma",
        {
            **{"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
            **{"tie_word_embeddings": False, "layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        },
    ),
    "jais2": ("jais2", {}),
    "jais2-unbiased-tied": ("jais2", {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}),
    "cwm": ("cwm", {}),
    "cwm-usual-layers-biased-tied": (
        "cwm",
        {
            **{"layer_types": None, "num_hidden_layers": 5, "mlp_bias": True, "tie_word_embeddings": True},
            **_rope("default"),
        },
    ),
    "youtu": ("youtu", {}),
    "youtu-untied-halves": (
        "youtu",
        {"tie_word_embeddings": False, "q_lora_rank": None, "rope_interleave": False},
    ),
    "afmoe": ("afmoe", {}),
    "afmoe-usual-layers-biased-tied": (
        "afmoe",
        {
            **{"layer_types": None, "global_attn_every_n_layers": 2, "mup_enabled": False, "num_dense_layers": 0},
            **{"attention_bias": True, "tie_word_embeddings": True, "num_shared_experts": 1},
        },
    ),
    "cohere2_moe": ("cohere2_moe", {}),
    "cohere2_moe-softmax-shared-layer-norm": (
        "cohere2_moe",
        {
            **{"rms_norm_eps": None, "layer_norm_eps": 1e-4, "expert_selection_fn": "softmax", "num_shared_experts": 2},
            **{"attention_bias": True, "tie_word_embeddings": False, "prefix_dense_sliding_window_pattern": 2},
        },
    ),
    "cohere2_moe-normalized-summed-usual-layers": (
        "cohere2_moe",
        {
            **{"norm_topk_prob": True, "num_shared_experts": 1, "shared_expert_combination_strategy": "sum"},
            **{"layer_types": None, "mlp_layer_types": None, "num_hidden_layers": 5, "sliding_window_pattern": 2},
        },
    ),
    "hy_v3": ("hy_v3", {}),
    "hy_v3-biased-tied": (
        "hy_v3",
        {
            **{"attention_bias": True, "tie_word_embeddings": True, "num_shared_experts": 2},
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "mellum": ("mellum", {}),
    "mellum-unnormalized-biased-tied": (
        "mellum",
        {
            **{"norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": None},
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "arcee": ("arcee", {}),
    "arcee-yarn-biased": (
        "arcee",
        {
            **{"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            **_rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0),
        },
    ),
    "nemotron": ("nemotron", {}),
    "nemotron-biased-tied": (
        "nemotron",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 20},
    ),
    "stablelm": ("stablelm", {}),
    "stablelm-normed-heads": ("stablelm", {"qk_layernorm": True}),
    "stablelm-normed-heads-parallel": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "stablelm-parallel-unbiased-tied": (
        "stablelm",
        {"use_parallel_residual": True, "use_qkv_bias": False, "tie_word_embeddings": True},
    ),
    "helium": ("helium", {}),
    "helium-biased-tied": ("helium", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "phi": ("phi", {}),
    "phi-tied-grouped": ("phi", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "falcon": ("falcon", {}),
    "falcon-two-norms": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-one-norm-untied": (
        "falcon",
        {
            **{"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
            **{"tie_word_embeddings": False, "ffn_hidden_size": 91, "activation": "gelu_pytorch_tanh"},
        },
    ),
    "falcon-mha": ("falcon", {"multi_query": False}),
    "apertus": ("apertus", {}),
    "apertus-biased-tied": ("apertus", {"attention_bias": True, "tie_word_embeddings": True, **_rope("default")}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "hunyuan_v1_dense-biased-tied": (
        "hunyuan_v1_dense",
        {"attention_bias": True, "tie_word_embeddings": True, **_rope("default")},
    ),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5-biased-untied": ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False}),
}
CASES |= {
    "gpt_oss": ("gpt_oss", {}),
    "gpt_oss-all-tokens-unbiased": ("gpt_oss", {"layer_types": ["full_attention"] * 3, "attention_bias": False}),
    "granitemoe": ("granitemoe", {}),
    "granitemoe-unshared-untied-biased": (
        "granitemoe",
        {"shared_intermediate_size": 0, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral-windows": ("mixtral", {"sliding_window": 5, "num_experts_per_tok": 5, "tie_word_embeddings": True}),
    "olmoe": ("olmoe", {}),
    "olmoe-biased-normalized": ("olmoe", {"attention_bias": True, "norm_topk_prob": True, "num_experts_per_tok": 1}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe-unbiased-normalized": (
        "qwen2_moe",
        {"qkv_bias": False, "norm_topk_prob": True, "mlp_only_layers": None, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe-biased": ("qwen3_moe", {"attention_bias": True, "norm_topk_prob": False, "mlp_only_layers": [2]}),
}


def test_every_family_has_cases() -> None:
    # Families that transformers lacks are in test_mtp.py and test_internlm.py, draft heads in test_eagle3.py, encoders
    # in test_encoder.py, decoders with recurrent layers in test_recurrent_network.py.
    others = {"mimo", "internlm2", "internlm3", *ENCODER_FAMILIES, *HYBRID_FAMILIES}
    models = {name for name, family in all_families().items() if not family.drafts} - others
    assert {family for family, _ in CASES.values()} == {*NETWORK_FAMILIES, *LATENT_FAMILIES, *MOE_FAMILIES} == models


def _check_against(model: PreTrainedModel, checkpoint: Path, dtype: str = "float32") -> None:
    """A right-padded prefill, then single-token steps, must give the logits of one full pass per sequence."""
    random = np.random.default_rng(1)
    sequences = [random.integers(0, VOCAB_SIZE, length + DECODE_STEPS) for length in PROMPT_LENGTHS]
    with torch.no_grad():
        expected = [model(torch.tensor(sequence[None])).logits[0].float().numpy() for sequence in sequences]
    runner = OnnxRunner(checkpoint, len(sequences), max_seq=max(PROMPT_LENGTHS) + DECODE_STEPS + 3)
    actual = [[rows] for rows in runner.step([s[:-DECODE_STEPS] for s in sequences])]
    for step in range(-DECODE_STEPS, 0):
        for collected, rows in zip(actual, runner.step([s[step:][:1] for s in sequences]), strict=True):
            collected.append(rows)
    for number, (rows, reference) in enumerate(zip(actual, expected, strict=True)):
        assert_close(np.concatenate(rows), reference, dtype, f"logits of sequence {number}")


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, overrides = CASES[case]
    model = save_tiny_model(family, tmp_path / "model", **overrides)
    config = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint").config
    assert (config.family, config.dtype) == (family, "float32")
    _check_against(model, tmp_path / "checkpoint")


def test_softmax_of_the_chosen_scores_is_what_is_divided_by_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "softmax_of_chosen"
    monkeypatch.setattr(qwen3_moe, "qwen_scoring", lambda config: config.flag("norm_topk_prob") and chosen)
    model = save_tiny_model("qwen3_moe", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    _check_against(model, tmp_path / "checkpoint")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "gemma2", "gemma3", "granite", "granitemoe", "qwen2_moe"])
def test_narrow_storage_is_the_float32_model_of_the_rounded_weights(family: str, dtype: str, tmp_path: Path) -> None:
    model = save_tiny_model(family, tmp_path / "model")
    assert convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype).config.dtype == dtype
    _check_against(round_matrices(model, dtype), tmp_path / "checkpoint", dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_auto_keeps_the_type_of_the_source(dtype: str, tmp_path: Path) -> None:
    model = tiny_model("qwen3", dtype=getattr(torch, dtype))
    save_model(model, tmp_path / "model")
    assert convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint").config.dtype == dtype
    _check_against(model.float(), tmp_path / "checkpoint", dtype)


def test_sharded_checkpoints_are_one_model(tmp_path: Path) -> None:
    model = tiny_model("mistral")
    save_model(model, tmp_path / "model", max_shard_size="60KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    _check_against(model, tmp_path / "checkpoint")
