"""A tiny Llama in the Hugging Face layout, made with numpy alone, because fuzzing processes do not load torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trtllm_lite.convert.sources.safetensors_file import TensorInfo, plan_layout, write_safetensors

VOCAB, HIDDEN, HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 262, 16, 2, 8, 24, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": 256,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 64},
    "tie_word_embeddings": True,
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
GENERATION: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "eos_token_id": [2]}
SETTINGS: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "added_tokens_decoder": {"261": {"content": "<|user|>", "special": True, "normalized": False}},
    "chat_template": [
        {"name": "default", "template": "{% for m in messages %}{{ bos_token }}{{ m['content'] }}{% endfor %}"},
        {"name": "tool_use", "template": "{{ tools | tojson }}{{ messages[0]['content'] }}"},
    ],
}


def tensors() -> dict[str, np.ndarray]:
    """Random weights by Hugging Face name."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        sizes = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in sizes.items()}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>", "<pad>", *alphabet, "ab"]
    result = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [("a", "b")]))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(["<s>", "</s>", "<|user|>"])
    return result


def write_model(directory: Path, config: Any = CONFIG, generation: Any = GENERATION) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer."""
    values = tensors()
    layout = plan_layout({name: TensorInfo("float32", value.shape) for name, value in values.items()})
    write_safetensors(directory / "model.safetensors", layout, values.__getitem__)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(directory)


def write_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
