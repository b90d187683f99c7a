"""Writes a GGUF file with random weights in the shape of Granite 3.0 1B-A400M, as llama.cpp's converter writes them.

python scripts/made_up_granite.py TYPE FILE, where TYPE is Q4_0 or Q8_0. The weights are for measurements of speed, and
small enough that nothing overflows. The tokenizer has only single bytes.
"""

import argparse
import json
from math import prod
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

SHAPE = Path(__file__).resolve().parents[1] / "configs" / "models" / "granite-3.0-1b-a400m.json"
BLOCK, BYTES = 32, {"Q4_0": 18, "Q8_0": 34}  # elements of a block; bytes of a block: a float16 scale, then the elements
SCALES = {"Q4_0": 5e-3, "Q8_0": 3e-4}  # scales that make elements about 0.02


def blocks(kind: str, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random elements of one or several matrices, as the bytes of their rows."""
    data = rng.integers(0, 256, (prod(shape) // BLOCK, BYTES[kind]), dtype=np.uint8)
    data[:, :2] = np.array([SCALES[kind]], np.float16).view(np.uint8)
    return data.reshape(*shape[:-1], shape[-1] // BLOCK * BYTES[kind])


def write_fields(writer: gguf.GGUFWriter, config: dict[str, int | float]) -> None:
    """Write all fields except tensors."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    alphabet = sorted(ByteLevel.alphabet())
    first, second = alphabet[70], alphabet[71]
    tokens = ["<|begin|>", "<|end|>", *alphabet, first + second]
    unused = config["vocab_size"] - len(tokens)
    kinds = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("refact")
    writer.add_token_list([*tokens, *(f"[unused{i}]" for i in range(unused))])
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * unused])
    writer.add_token_merges([f"{first} {second}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def write_tensors(writer: gguf.GGUFWriter, config: dict[str, int], kind: str) -> None:
    """Write the embedding and the layers."""
    rng = np.random.default_rng(0)
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    shared = config["num_key_value_heads"] * hidden // config["num_attention_heads"]

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", blocks(kind, rng, *shape), raw_dtype=gguf.GGMLQuantizationType[kind])

    add("token_embd", config["vocab_size"], hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(config["num_hidden_layers"]):
        at = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}.{norm}.weight", np.ones(hidden, np.float32))
        for name, rows in {"attn_q": hidden, "attn_k": shared, "attn_v": shared, "attn_output": hidden}.items():
            add(f"{at}.{name}", rows, hidden)
        router = 0.1 * rng.standard_normal((experts, hidden), np.float32)
        writer.add_tensor(f"{at}.ffn_gate_inp.weight", router)
        add(f"{at}.ffn_gate_exps", experts, inner, hidden)
        add(f"{at}.ffn_up_exps", experts, inner, hidden)
        add(f"{at}.ffn_down_exps", experts, hidden, inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("type", choices=BYTES)
    parser.add_argument("file")
    options = parser.parse_args()
    config = json.loads(SHAPE.read_text())
    writer = gguf.GGUFWriter(options.file, "granitemoe")
    write_fields(writer, config)
    write_tensors(writer, config, options.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
