"""InternLM 2 and 3 as published, which transformers lacks: Llama with other names and options."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.gguf_writer import write_gguf
from tests.models import VOCAB_SIZE, save_tiny_model, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.tolerances import assert_close
from trtllm_lite.convert import convert_checkpoint

_INTERNLM2_NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def _published(model: Path, architecture: str, config: dict[str, Any], *absent: str) -> None:
    """Edit the config of ``model``: set the class to ``architecture``, replace ``config``, remove ``absent`` keys."""
    path = model / "config.json"
    changed = {**json.loads(path.read_text()), "architectures": [architecture], **config}
    path.write_text(json.dumps({key: value for key, value in changed.items() if key not in absent}))


def _as_internlm2(tensors: dict[str, torch.Tensor], head_dim: int) -> dict[str, torch.Tensor]:
    """A Llama model's tensors in InternLM 2's layout: each group has its query heads, then its key and value heads."""
    found = {}
    for name, tensor in tensors.items():
        if any(part in name for part in ("q_proj", "k_proj", "v_proj")):
            continue
        for theirs, ours in _INTERNLM2_NAMES.items():
            name = name.replace(f"{theirs}.", f"{ours}.")
        found[name] = tensor
    for name in [name for name in tensors if "k_proj" in name]:
        keys = tensors[name].unflatten(0, (-1, 1, head_dim))
        queries = tensors[name.replace("k_proj", "q_proj")].unflatten(0, (len(keys), -1, head_dim))
        values = tensors[name.replace("k_proj", "v_proj")].unflatten(0, (-1, 1, head_dim))
        groups = torch.cat([queries, keys, values], 1).flatten(0, 2)
        found[name.replace("self_attn.k_proj", "attention.wqkv")] = groups.contiguous()
    return found


def _check(model: PreTrainedModel, directory: Path, family: str, source: str = "model") -> None:
    config = convert_checkpoint(str(directory / source), directory / "checkpoint").config
    assert config.family == family
    ids = np.random.default_rng(0).integers(0, VOCAB_SIZE, 23)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(directory / "checkpoint", 1, 32).step([ids])[0], expected)


@pytest.mark.parametrize("bias", [False, True])
def test_internlm2_equals_llama_with_its_rows_in_another_order(bias: bool, tmp_path: Path) -> None:
    model = save_tiny_model("llama", tmp_path / "model", attention_bias=bias, tie_word_embeddings=False)
    file = tmp_path / "model" / "model.safetensors"
    save_file(_as_internlm2(load_file(file), model.config.hidden_size // 6), file, metadata={"format": "pt"})
    theirs = {"bias": bias, "attn_implementation": "eager", "rope_parameters": None, "rope_theta": 10000}
    theirs["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    _published(tmp_path / "model", "InternLM2ForCausalLM", theirs, "attention_bias", "mlp_bias", "rope_parameters")
    _check(model, tmp_path, "internlm2")


@pytest.mark.parametrize("biases", [{}, {"qkv_bias": True, "bias": True}])
def test_internlm3_equals_llama(biases: dict[str, bool], tmp_path: Path) -> None:
    both = {"attention_bias": bool(biases), "mlp_bias": bool(biases)}
    model = save_tiny_model("llama", tmp_path / "model", head_dim=14, tie_word_embeddings=False, **both)
    theirs = {"qkv_bias": False, "bias": False, **biases, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}}
    theirs["rope_theta"] = 10000
    _published(tmp_path / "model", "InternLM3ForCausalLM", theirs, "attention_bias", "mlp_bias", "rope_parameters")
    _check(model, tmp_path, "internlm3")


def test_internlm3_as_transformers_writes_it(tmp_path: Path) -> None:
    """transformers writes the class of Llama, and so the family is Llama."""
    model = save_tiny_model("llama", tmp_path / "model", head_dim=14, attention_bias=True, mlp_bias=True)
    _published(tmp_path / "model", "LlamaForCausalLM", {"model_type": "internlm3"})
    _check(model, tmp_path, "llama")


def test_gguf_files_of_internlm2_are_those_of_llama(tmp_path: Path) -> None:
    """llama.cpp splits the groups, so that the file cannot be told from Llama's (conversion/internlm.py)."""
    model = tiny_model("llama", tie_word_embeddings=False)
    write_gguf(model, tmp_path / "model.gguf", architecture="internlm2")
    _check(model, tmp_path, "llama", "model.gguf")
