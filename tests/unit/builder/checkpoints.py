"""Checkpoint directories made of the networks of this folder."""

import json
from pathlib import Path

import onnx_ir as ir

from tests.unit.builder.networks import FLOAT, VARIANTS, Shape, network
from trtllm_lite.network.config import ModelConfig

LIMITS = {"max_batch_size": 3, "max_input_len": 16, "max_seq_len": 48, "tokens_per_block": 16}


def config_of(shape: Shape) -> ModelConfig:
    """The configuration that belongs to a network."""
    return ModelConfig(
        producer="trtllm_lite test",
        architecture="TestForCausalLM",
        family="test",
        dtype={FLOAT: "float32", ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}[shape.dtype],
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inter,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=max(64, shape.max_seq),
        eos_token_ids=[1, 2],
        bos_token_id=None,
        pad_token_id=0,
        generation={"temperature": 0.5},
        tokenizer=True,
    )


def save_checkpoint(path: Path, variant: str | Shape = "llama") -> Path:
    """Write a complete checkpoint; returns its directory."""
    shape = variant if isinstance(variant, Shape) else VARIANTS[variant]
    path.mkdir(parents=True)
    ir.save(network(shape), path / "network.onnx", external_data="weights.safetensors", size_threshold_bytes=100)
    (path / "config.json").write_text(config_of(shape).to_json())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text(json.dumps({"name": name}))
    return path
