"""Writes a GGUF file of random Q4_0 blocks in the shape of Mistral 7B, with the tokenizer of another GGUF file.

python scripts/random_gguf.py SMOLLM2.gguf OUTPUT.gguf    # 4.2 GB
"""

import sys

import gguf
import numpy as np

_LAYERS, _HIDDEN, _INTERMEDIATE, _HEADS, _KV_HEADS, _HEAD_DIM = 32, 4096, 14336, 32, 8, 128
_BLOCK, _BLOCK_BYTES = 32, 18  # elements; a float16 scale and nibbles
_SCALE = 0.004


def _blocks(rows: int, columns: int, nibbles: np.ndarray) -> np.ndarray:
    blocks = np.empty((rows * columns // _BLOCK, _BLOCK_BYTES), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(_SCALE).tobytes(), np.uint8)
    blocks[:, 2:] = np.resize(nibbles, (len(blocks), _BLOCK_BYTES - 2))
    return blocks.reshape(rows, -1)


def _copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Copy the tokenizer, and return the number of its tokens."""
    fields = source.fields

    def values(name: str) -> list[np.ndarray]:
        field = fields[f"tokenizer.ggml.{name}"]
        return [field.parts[place] for place in field.data]

    tokens = [bytes(token) for token in values("tokens")]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind[0]) for kind in values("token_type")])
    writer.add_token_merges([bytes(merge).decode() for merge in values("merges")])
    for name in ("bos_token_id", "eos_token_id"):
        writer.add_uint32(f"tokenizer.ggml.{name}", int(values(name)[0][0]))
    return len(tokens)


def main(tokenizer: str, output: str) -> None:
    writer = gguf.GGUFWriter(output, "llama", use_temp_file=True)
    writer.add_block_count(_LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_INTERMEDIATE)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    vocab_size = _copy_tokenizer(gguf.GGUFReader(tokenizer), writer)
    writer.add_vocab_size(vocab_size)
    nibbles = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8)
    rows_of_kv = _KV_HEADS * _HEAD_DIM
    of_layer = {
        **{"attn_q": (_HIDDEN, _HIDDEN), "attn_k": (rows_of_kv, _HIDDEN), "attn_v": (rows_of_kv, _HIDDEN)},
        **{"attn_output": (_HIDDEN, _HIDDEN), "ffn_gate": (_INTERMEDIATE, _HIDDEN)},
        **{"ffn_up": (_INTERMEDIATE, _HIDDEN), "ffn_down": (_HIDDEN, _INTERMEDIATE)},
    }
    matrices = {f"blk.{layer}.{name}": shape for layer in range(_LAYERS) for name, shape in of_layer.items()}
    matrices |= {"token_embd": (vocab_size, _HIDDEN), "output": (vocab_size, _HIDDEN)}
    for name, shape in matrices.items():
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(f"{name}.weight", _blocks(*shape, nibbles), raw_dtype=kind)
    norms = [f"blk.{layer}.{name}_norm" for layer in range(_LAYERS) for name in ("attn", "ffn")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
