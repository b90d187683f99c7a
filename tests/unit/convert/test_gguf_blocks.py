"""Blocks of GGUF files: their parts mean what the gguf package reads from the same bytes, bit for bit."""

import io
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from tests.gguf_writer import dequantized, write_gguf
from tests.models import tiny_model
from tests.onnx_runner import OnnxRunner
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf.blocks import kind_of
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.engine.inspect_text import print_inspection
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.scaled_weight import scaled
from trtllm_lite.quantize.network import quantized_as
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.workflows.inspect import inspect_path

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
MIXED = {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q8_0", "ffn_gate": "Q4_1"}
FILES = {
    "Q4_0": dict.fromkeys(("token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"), "Q4_0"),
    "Q4_1": dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), "Q4_1"),
    "mixed": {**MIXED, "attn_output": "Q5_0", "ffn_down": "Q5_1"},
}


@pytest.mark.parametrize("name", KINDS)
def test_parts_are_exact(name: str) -> None:
    """Blocks are random bytes with finite scales."""
    kind_id = gguf.GGMLQuantizationType[name]
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind_id]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (5, 3 * num_bytes), np.uint8)
    blocks = data.reshape(5, 3, num_bytes)
    halves = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(name, (0,))
    for start in halves:
        blocks[..., start : start + 2] = rng.standard_normal((5, 3, 1)).astype(np.float16).view(np.uint8)
    tensor = SimpleNamespace(tensor_type=kind_id, shape=(3 * size, 5))
    kind = kind_of(tensor)
    assert kind is not None
    parts = kind.parts(data)
    assert {part: array.dtype.name for part, array in parts.items()} == {
        part: kind.blocks.dtype_of(part) for part in kind.blocks.names
    }
    assert parts["weight_scale"].shape == (5, 3 * size // kind.blocks.block_size)
    actual = scaled(parts["weight"], parts["weight_scale"], parts.get("weight_offset")).astype(np.float32)
    np.testing.assert_array_equal(actual, gguf.quants.dequantize(data, kind_id))


@pytest.mark.parametrize("file", FILES)
def test_the_network_is_standard_onnx(file: str, tmp_path: Path) -> None:
    """onnxruntime gives what transformers computes with the file's numbers, after rows of q and k are reordered."""
    model = tiny_model("llama", **WIDE)
    write_gguf(model, tmp_path / "m.gguf", kinds=FILES[file])
    config = convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "float32").config
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 25)
    with torch.no_grad():
        expected = dequantized(model, FILES[file])(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 32).step([ids])[0], expected)


@pytest.mark.parametrize("file", FILES)
def test_engines_compute_with_the_blocks(file: str, tmp_path: Path) -> None:
    """A prompt of many rows, then steps of one row; the engine's weights are those of the file, and no others."""
    model = tiny_model("llama", **WIDE)
    write_gguf(model, tmp_path / "m.gguf", kinds=FILES[file])
    convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_batch_size=2, max_input_len=64, max_seq_len=96)
    reference = dequantized(model, FILES[file])
    prompt = np.random.default_rng(1).integers(3, model.config.vocab_size, 50).tolist()
    options = {"end_id": -1, "temperature": 0, "return_dict": True, "output_generation_logits": True}
    result = ModelRunner.from_dir(tmp_path / "engine").generate([prompt], max_new_tokens=8, **options)
    tokens = result["output_ids"][0, 0, len(prompt) : len(prompt) + 8].tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :].numpy()
    assert_close(result["generation_logits"][0][0], expected)
    assert tokens == expected.argmax(axis=1).tolist()
    stored = {tensor.dtype for tensor in read_engine(tmp_path / "engine").plan.tensors if tensor.kind == "weight"}
    blocks = "int4" if file == "Q4_0" else "uint4" if file == "Q4_1" else "int8"
    assert blocks in stored
    console = Console(file=io.StringIO())
    print_inspection(inspect_path(tmp_path / "engine"), console, kernels=False)
    assert blocks in console.file.getvalue().partition("weights by type")[2].partition("files")[0].split()


def test_parts_follow_a_fused_matrix(tmp_path: Path) -> None:
    """Phi-3's query, key and value are rows of one matrix; GPT-2's matrices are stored transposed, and are expanded."""
    kinds = {"attn_qkv": "Q4_1", "ffn_up": "Q8_0"}
    model = tiny_model("phi3", **{**WIDE, "num_key_value_heads": 4})
    write_gguf(model, tmp_path / "m.gguf", kinds=kinds)
    config = convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "float32").config
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 25)
    with torch.no_grad():
        expected = dequantized(model, kinds)(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 32).step([ids])[0], expected)
    weights = load_network(tmp_path / "checkpoint").graph.initializers
    assert {value.dtype.name for value in weights.values()} >= {"UINT4", "INT8"}
    source = open_gguf(write_gguf(tiny_model("gpt2"), tmp_path / "g.gguf", kinds={}))
    assert not source.blocks


@pytest.mark.parametrize(
    ("options", "matrices"),
    [((), "quantized as gguf Q4_1, other matrices in bfloat16"), (("--dequantize",), "matrices in bfloat16")],
)
def test_convert_says_how_matrices_are_stored(options: tuple[str, ...], matrices: str, tmp_path: Path) -> None:
    write_gguf(tiny_model("llama", **WIDE), tmp_path / "m.gguf", kinds=FILES["Q4_1"])
    command = ["convert", "--model_dir", str(tmp_path / "m.gguf"), "--output_dir", str(tmp_path / "checkpoint")]
    result = CliRunner().invoke(cli, [*command, "--dtype", "bfloat16", *options])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith(f" s: 3 layers, {matrices}")


def test_a_file_that_is_quantized_in_part_is_not_quantized_further(tmp_path: Path) -> None:
    """The file's float tensors are not quantized either: the error names the file's types and the remedy."""
    write_gguf(tiny_model("llama", **WIDE), tmp_path / "m.gguf", kinds={"ffn_up": "Q4_0", "token_embd": "Q8_0"})
    convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "float32")
    assert quantized_as(load_network(tmp_path / "checkpoint")) == "gguf Q4_0, Q8_0"
    limits = {"max_batch_size": 2, "max_input_len": 64, "max_seq_len": 96}
    message = r"is quantized as gguf Q4_0, Q8_0 already, and int8_wo is asked for: .*`trtllm-lite convert --dequantize`"
    with pytest.raises(BuildError, match=message):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", qformat="int8_wo", **limits)
    assert not (tmp_path / "engine").exists()
    convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "float32", dequantize=True)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", qformat="int8_wo", **limits)


def _described(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_inspection(inspect_path(folder), console, kernels=False)
    [line] = [line for line in console.file.getvalue().splitlines() if line.startswith("weights of linear layers: ")]
    return line.partition(": ")[2]


@pytest.mark.parametrize(
    ("kinds", "stored"),
    [
        ("Q4_0 Q4_0 Q4_1", "float32, int4, uint4"),
        ("Q4_0 Q4_1 Q4_1", "float32, int8, uint4"),  # gate and up are one matrix
        ("Q4_0 F32 Q4_1", "float32, uint4"),
    ],
)
def test_inspect_says_as_what_experts_of_several_types_are_stored(kinds: str, stored: str, tmp_path: Path) -> None:
    model = tiny_model("mixtral", num_hidden_layers=1, **WIDE)
    names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    path = write_gguf(model, tmp_path / "m.gguf", kinds=dict(zip(names, kinds.split(), strict=True)))
    convert_checkpoint(str(path), tmp_path / "checkpoint", "float32")
    assert _described(tmp_path / "checkpoint") == "gguf Q4_0, Q4_1"
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_batch_size=2, max_input_len=64, max_seq_len=96)
    assert _described(tmp_path / "engine") == f"gguf Q4_0, Q4_1, here as {stored}"


def test_types_of_tensors_that_are_expanded_are_not_named(tmp_path: Path) -> None:
    """DeepSeek's matrix that expands latents to keys and values is one tensor in the network and two in files."""
    kinds = {"attn_k_b": "Q4_0", "attn_v_b": "Q5_0", "token_embd": "Q8_0"}
    sizes = {"hidden_size": 96, "qk_nope_head_dim": 32, "kv_lora_rank": 32}
    write_gguf(tiny_model("deepseek_v2", **sizes), tmp_path / "m.gguf", kinds=kinds)
    assert convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint").quantization == "gguf Q8_0"
    assert quantized_as(load_network(tmp_path / "checkpoint")) == "gguf Q8_0"


def test_blocks_are_expanded_where_that_is_asked_for(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama", **WIDE), tmp_path / "m.gguf", kinds=FILES["mixed"])
    convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "bfloat16", dequantize=True)
    network = load_network(tmp_path / "checkpoint")
    assert {value.dtype.name for value in network.graph.initializers.values()} == {"FLOAT", "BFLOAT16", "INT64"}
    assert quantized_as(network) == "full_prec"
