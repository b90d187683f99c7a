"""Tiny models whose heads and features TensorRT has kernels for (multiples of 16), and their rewritten networks."""

from pathlib import Path
from typing import Any

import onnx_ir as ir

from tests.models import save_tiny_model
from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.builder.tensorrt.passes import pipeline
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Fusion

ARCHS = ("sm_89", "sm_120")
LIMITS = BuildLimits(max_batch_size=3, max_input_len=32, max_seq_len=64)
_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
_HEADS = {**_SIZES, "head_dim": 32}
_OVERRIDES: dict[str, dict[str, Any]] = {
    "mistral": _HEADS,
    "qwen3": _HEADS,
    "gemma2": _HEADS,
    "gemma3": {**_HEADS, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3n": {
        **{**_HEADS, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "laurel_rank": 16},
        **{"activation_sparsity_pattern": [0.75, 0.0], "layer_types": ["sliding_attention", "full_attention"]},
    },
    "gemma4": {
        **{**_HEADS, "global_head_dim": 32, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0},
        **{"attention_k_eq_v": False, "layer_types": ["sliding_attention", "full_attention"]},
    },
    "gemma4_unified": {
        **{**_HEADS, "global_head_dim": 32, "attention_k_eq_v": False},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "vaultgemma": {**_HEADS, "layer_types": ["sliding_attention", "full_attention"]},
    "cwm": {**_HEADS, "layer_types": ["full_attention", "sliding_attention"]},
    "smollm3": {**_SIZES, "no_rope_layers": [1, 0]},
    "ministral": {**_HEADS, "layer_types": ["full_attention", "sliding_attention"]},
    "ministral3": _HEADS,
    "exaone": _HEADS,
    "exaone4": {**_SIZES, "layer_types": ["sliding_attention", "full_attention"]},
    "glm": _HEADS,
    "glm4": _HEADS,
    "gpt_neox": {name: size for name, size in _SIZES.items() if name != "num_key_value_heads"},
    **dict.fromkeys(("gemma", "seed_oss", "helium", "ernie4_5", "hunyuan_v1_dense"), _HEADS),
    "cohere2": {**_SIZES, "layer_types": ["sliding_attention", "full_attention"]},
    "falcon": {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "multi_query": False},
    "olmo3": {**_SIZES, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 128, "n_inner": 160, "n_layer": 2, "n_head": 4},
}


def overrides(family: str) -> dict[str, Any]:
    """The fields of a tiny model's config that give it sizes for TensorRT's kernels."""
    return _OVERRIDES.get(family, _SIZES)


def save_checkpoint(directory: Path, family: str, dtype: str) -> Checkpoint:
    """The checkpoint of a random model of ``family``, converted into ``directory``."""
    save_tiny_model(family, directory / "model", **overrides(family))
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return open_checkpoint(directory / "checkpoint")


def rewritten(model: ir.Model, dtype: str, limits: BuildLimits = LIMITS) -> tuple[ir.Model, list[Fusion]]:
    """``model`` as TensorRT gets it, and what the passes decided."""
    return run_passes(model, pipeline(dtype, limits))
