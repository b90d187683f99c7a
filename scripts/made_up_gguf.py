"""Writes a GGUF file with random weights in the shape of a model, as llama.cpp's converter writes them.

python scripts/made_up_gguf.py SHAPE TYPE FILE, where SHAPE is granite-3.0-1b-a400m or qwen3.5-0.8b, of configs/models,
and TYPE is Q4_0 or Q8_0. The weights are for measurements of speed, and small enough that nothing overflows. The
tokenizer has only single bytes.
"""

import argparse
import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

SHAPES = Path(__file__).resolve().parents[1] / "configs" / "models"
BLOCK, BYTES = 32, {"Q4_0": 18, "Q8_0": 34}  # elements of a block; bytes of a block: a float16 scale, then the elements
SCALES = {"Q4_0": 5e-3, "Q8_0": 3e-4}  # scales that make elements about 0.02


class MadeUpFile:
    """A GGUF file of an architecture, whose matrices are random blocks of the type ``kind``."""

    def __init__(self, path: str, architecture: str, kind: str) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self._kind = kind
        self._random = np.random.default_rng(0)

    def add_blocks(self, name: str, *shape: int) -> None:
        """Add one or several matrices of blocks."""
        data = self._random.integers(0, 256, (prod(shape) // BLOCK, BYTES[self._kind]), dtype=np.uint8)
        data[:, :2] = np.array([SCALES[self._kind]], np.float16).view(np.uint8)
        rows = data.reshape(*shape[:-1], shape[-1] // BLOCK * BYTES[self._kind])
        self.writer.add_tensor(f"{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[self._kind])

    def add_random(self, name: str, *shape: int, scale: float = 0.1) -> None:
        """Add float32 elements of the standard deviation ``scale``."""
        self.writer.add_tensor(name, scale * self._random.standard_normal(shape, np.float32))

    def add_ones(self, name: str, size: int) -> None:
        """Add the weight of a norm."""
        self.writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    def add_sizes(self, config: dict[str, Any]) -> None:
        """Add the fields that all decoders have."""
        self.writer.add_block_count(config["num_hidden_layers"])
        self.writer.add_context_length(config["max_position_embeddings"])
        self.writer.add_embedding_length(config["hidden_size"])
        self.writer.add_feed_forward_length(config["intermediate_size"])
        self.writer.add_head_count(config["num_attention_heads"])
        self.writer.add_head_count_kv(config["num_key_value_heads"])
        self.writer.add_layer_norm_rms_eps(config["rms_norm_eps"])

    def add_tokenizer(self, pre: str, vocab_size: int) -> None:
        """Add a byte-level vocabulary with two control tokens in front and unused tokens at its end."""
        alphabet = sorted(ByteLevel.alphabet())
        first, second = alphabet[70], alphabet[71]
        tokens = ["<|begin|>", "<|end|>", *alphabet, first + second]
        unused = vocab_size - len(tokens)
        kinds = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2)
        self.writer.add_vocab_size(vocab_size)
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre(pre)
        self.writer.add_token_list([*tokens, *(f"[unused{i}]" for i in range(unused))])
        self.writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * unused])
        self.writer.add_token_merges([f"{first} {second}"])
        self.writer.add_bos_token_id(0)
        self.writer.add_eos_token_id(1)
        self.writer.add_add_bos_token(False)

    def write(self) -> None:
        """Write the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def fill_granite(file: MadeUpFile, config: dict[str, Any]) -> None:
    """Add fields and tensors of Granite 3.0 with experts."""
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    head_dim = hidden // config["num_attention_heads"]
    shared = config["num_key_value_heads"] * head_dim
    writer = file.writer
    file.add_sizes(config)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    file.add_tokenizer("refact", config["vocab_size"])
    file.add_blocks("token_embd", config["vocab_size"], hidden)
    file.add_ones("output_norm", hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            file.add_ones(f"{at}.{norm}", hidden)
        for name, rows in {"attn_q": hidden, "attn_k": shared, "attn_v": shared, "attn_output": hidden}.items():
            file.add_blocks(f"{at}.{name}", rows, hidden)
        file.add_random(f"{at}.ffn_gate_inp.weight", experts, hidden)
        file.add_blocks(f"{at}.ffn_gate_exps", experts, inner, hidden)
        file.add_blocks(f"{at}.ffn_up_exps", experts, inner, hidden)
        file.add_blocks(f"{at}.ffn_down_exps", experts, hidden, inner)


def fill_qwen(file: MadeUpFile, config: dict[str, Any]) -> None:
    """Add fields and tensors of Qwen3.5's text, without the layer that drafts."""
    config = config["text_config"]
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    kernel, state = config["linear_conv_kernel_dim"], config["linear_key_head_dim"]
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    values, rope = heads * config["linear_value_head_dim"], config["rope_parameters"]
    of_attention = {
        "attn_q": (2 * config["num_attention_heads"] * head_dim, hidden),  # queries and their gates
        "attn_k": (config["num_key_value_heads"] * head_dim, hidden),
        "attn_v": (config["num_key_value_heads"] * head_dim, hidden),
        "attn_output": (hidden, config["num_attention_heads"] * head_dim),
    }
    channels = 2 * groups * state + values
    of_rule = {"attn_qkv": (channels, hidden), "attn_gate": (values, hidden), "ssm_out": (hidden, values)}
    writer = file.writer
    file.add_sizes(config)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(values)
    writer.add_full_attention_interval(config["full_attention_interval"])
    file.add_tokenizer("qwen35", config["vocab_size"])
    file.add_blocks("token_embd", config["vocab_size"], hidden)
    file.add_ones("output_norm", hidden)
    for layer, kind in enumerate(config["layer_types"]):
        at = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm"):
            file.add_ones(f"{at}.{norm}", hidden)
        if kind == "full_attention":
            matrices = of_attention
            for norm in ("attn_q_norm", "attn_k_norm"):
                file.add_ones(f"{at}.{norm}", head_dim)
        else:
            matrices = of_rule
            for name in ("ssm_alpha", "ssm_beta"):
                file.add_blocks(f"{at}.{name}", heads, hidden)
            file.add_random(f"{at}.ssm_conv1d.weight", channels, kernel)
            file.add_random(f"{at}.ssm_dt.bias", heads)
            writer.add_tensor(f"{at}.ssm_a", np.linspace(-8, -0.01, heads, dtype=np.float32))
            file.add_ones(f"{at}.ssm_norm", config["linear_value_head_dim"])
        for name, shape in {
            **matrices,
            **{"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)},
        }.items():
            file.add_blocks(f"{at}.{name}", *shape)


FILLED: dict[str, tuple[str, Callable[[MadeUpFile, dict[str, Any]], None]]] = {
    "granite-3.0-1b-a400m": ("granitemoe", fill_granite),
    "qwen3.5-0.8b": ("qwen35", fill_qwen),
}


def main() -> None:
    """Write the file that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=FILLED)
    parser.add_argument("type", choices=BYTES)
    parser.add_argument("file")
    options = parser.parse_args()
    architecture, fill = FILLED[options.shape]
    file = MadeUpFile(options.file, architecture, options.type)
    fill(file, json.loads((SHAPES / f"{options.shape}.json").read_text()))
    file.write()


if __name__ == "__main__":
    main()
