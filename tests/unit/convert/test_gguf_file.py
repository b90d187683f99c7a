"""GGUF files: tensors come back in Hugging Face's order, metadata as a config, damage as one clear error."""

import re
import struct
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers.integrations.gguf.dequant import dequantize

from tests.gguf_writer import dequantized, write_gguf
from tests.models import FAMILIES, MOE_FAMILIES, NETWORK_FAMILIES, VOCAB_SIZE, save_model, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.rounds import rounds
from tests.tolerances import assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.family import all_families
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.convert.gguf.names import names_in_file
from trtllm_lite.convert.gguf.tensors import expand
from trtllm_lite.convert.mapping import map_model, open_source
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.blocks import part_name

_WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}  # blocks hold 32 values
_KINDS = {
    "token_embd": "Q8_0",
    "attn_q": "Q4_0",
    "attn_k": "Q4_1",
    "attn_v": "Q5_0",
    "attn_output": "Q5_1",
    "ffn_gate": "F16",
    "ffn_up": "BF16",
}


_WRITTEN = {family for family in (*NETWORK_FAMILIES, *MOE_FAMILIES) if all_families()[family].gguf}  # by llama.cpp
# Written like OLMo 3, like DeepSeek-V3 and like GLM-4.5.
_READ_AS = {"olmo2": "olmo3", "glm4_moe_lite": "deepseek_v3", "solar_open": "glm4_moe"}
_WRITTEN |= _READ_AS.keys()
# Settings without which a family's tiny model could not be described by a GGUF file.
_SAID: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16},
            **{"mscale": 0.7, "mscale_all_dim": 0.7},
        },
    },
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "cohere2": {"num_hidden_layers": 5, "layer_types": None},
    "dots1": {"sliding_window": None},
    "hunyuan_v1_moe": {"moe_topk": 3},
    "llama4": {"num_hidden_layers": 4, "no_rope_layers": None, "moe_layers": None, "interleave_moe_layer_step": 2},
    "mistral": {"sliding_window": None},
    "olmo3": {"rope_parameters": None},
    "phimoe": {"head_dim": 10, "router_jitter_noise": 0.01},
    "qwen2_moe": {"mlp_only_layers": []},
    "smollm3": {"no_rope_layers": None, "num_hidden_layers": 5},
    "gemma2": {"query_pre_attn_scalar": 14},
    "gemma3": {
        "query_pre_attn_scalar": 14,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}


_APART = {"gpt_oss", "granitemoe", "llama4"}  # families with separate tensors for the parts of experts in GGUF files


@pytest.mark.parametrize("family", sorted(_WRITTEN - _APART))
def test_plain_tensors_come_back_exactly(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **_SAID.get(family, {}))
    source = open_gguf(write_gguf(model, tmp_path / "m.gguf"))
    save_model(model, tmp_path / "model")
    expected = load_file(tmp_path / "model" / "model.safetensors")
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert source.tensors[name] == TensorInfo("float32", tuple(tensor.shape))
        # llama.cpp has added 1 to norms of Gemma and Nemotron, which rounds away values far below 1.
        rounding = 1e-7 if family.startswith(("gemma", "nemotron")) and name.endswith("norm.weight") else 0
        np.testing.assert_allclose(source.read(name), tensor.numpy(), rtol=0, atol=rounding, err_msg=name)


@pytest.mark.parametrize("family", sorted(_WRITTEN - set(FAMILIES)))
def test_other_families_equal_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **_SAID.get(family, {}))
    path = write_gguf(model, tmp_path / "m.gguf")
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    assert config.family == _READ_AS.get(family, family)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 25)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 32).step([ids])[0], expected)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("arcee", {"attention_bias": True, "mlp_bias": True}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "tie_word_embeddings": False}),
        ("falcon", {"multi_query": False}),
        ("nemotron", {"attention_bias": True, "mlp_bias": True}),
        ("seed_oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
        ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
        ("stablelm", {"qk_layernorm": True}),
    ],
    ids=[
        *("arcee", "falcon with two norms", "falcon with all keys", "nemotron", "seed_oss"),
        *("stablelm in parallel", "stablelm with norms of heads"),
    ],
)
def test_what_files_show_by_their_tensors(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(family, **options)
    path = write_gguf(model, tmp_path / "m.gguf")
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    ids = np.random.default_rng(2).integers(0, config.vocab_size, 11)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


@pytest.mark.parametrize(
    ("family", "kinds", "options"),
    [
        ("bert", {}, {}),
        ("phi", {}, {}),
        ("glm", {}, {}),
        ("llama", {}, {"attention_bias": True}),
        ("llama", {"attn_q": "Q8_0", "attn_k": "Q8_0", "attn_v": "Q8_0"}, _WIDE),
    ],
    ids=["bert", "phi", "glm", "biases", "blocks"],
)
def test_fused_queries_keys_and_values_come_apart(
    family: str, kinds: dict[str, str], options: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny_model(family, **options)
    apart, fused = (
        open_gguf(write_gguf(model, tmp_path / f"{fuses}.gguf", kinds, fuses_qkv=fuses)) for fuses in (False, True)
    )
    assert fused.config == apart.config
    assert fused.tensors == apart.tensors
    assert fused.blocks == apart.blocks
    for name in apart.tensors:
        np.testing.assert_array_equal(fused.read(name), apart.read(name), err_msg=name)
    for name in apart.blocks:
        for part in (part_name(name, "weight"), part_name(name, "weight_scale")):
            np.testing.assert_array_equal(fused.read(part), apart.read(part), err_msg=part)


def test_fused_tensors_of_another_size_are_named(tmp_path: Path) -> None:
    extra = {"blk.0.attn_qkv.weight": np.ones((7, 60), np.float32)}
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", extra=extra)
    with pytest.raises(ConvertError, match=r"unused \(1\): blk\.0\.attn_qkv\.weight"):
        convert_checkpoint(str(path), tmp_path / "checkpoint")


USUAL = 1.138629436  # YaRN's temperature for a factor of 4


@pytest.mark.parametrize(("given", "expected"), [(USUAL, USUAL), (0.8782488562869419, 1.0), (1.0, 1.0), (0.9, 0.9)])
def test_yarns_factor_in_files_of_llama_cpp(given: float, expected: float, tmp_path: Path) -> None:
    """The converter writes transformers' attention_factor (the whole temperature) and YaRN's attn_factor to one key."""
    metadata = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 32,
        "qwen3.rope.scaling.yarn_attn_factor": given,
    }
    source = open_gguf(write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", metadata=metadata))
    for layer in map_model(source, "auto").model.layers:
        assert layer.mixer.block.rope.attention_factor == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("modernbert", "modern-bert.classifier.pooling_type", 1),
        ("bert", "bert.classifier.output_labels", ["LABEL_0"]),
        ("exaone4", "exaone4.tensor_data_layout", "x"),
    ],
)
def test_keys_that_newer_converters_write(family: str, key: str, value: Any, tmp_path: Path) -> None:
    plain, newer = (
        open_gguf(write_gguf(tiny_model(family), tmp_path / name, metadata=metadata))
        for name, metadata in (("plain.gguf", {}), ("newer.gguf", {key: value}))
    )
    assert newer.config == plain.config


def test_dense_granite_4_is_granite_3_with_keys_of_recurrent_layers(tmp_path: Path) -> None:
    """llama.cpp takes the size of the MLP from experts that the models do not have."""
    of_mamba = {"conv_kernel": 4, "state_size": 256, "group_count": 1, "inner_size": 120, "time_step_rank": 6}
    of_experts = {"expert_count": 0, "expert_used_count": 0, "expert_shared_feed_forward_length": 91}
    newer = {f"granite.ssm.{key}": value for key, value in of_mamba.items()}
    newer |= {f"granite.{key}": value for key, value in of_experts.items()}
    newer |= {"granite.feed_forward_length": 77, "granite.rope.scaling.finetuned": True}
    configs = [
        open_gguf(write_gguf(tiny_model("granite"), tmp_path / f"{number}.gguf", metadata=metadata))
        for number, metadata in enumerate(({}, newer))
    ]
    networks = [map_model(source, "float32").model for source in configs]
    assert networks[0] == networks[1]


def test_exaones_epsilon_has_two_names(tmp_path: Path) -> None:
    names = ("exaone.attention.layer_norm_rms_epsilon", "exaone.attention.layer_norm_epsilon")
    for own, other in (names, reversed(names)):
        metadata = {"llama.attention.layer_norm_rms_epsilon": None, own: 0.25, other: None}
        path = write_gguf(tiny_model("exaone"), tmp_path / "m.gguf", metadata=metadata, architecture="exaone")
        assert open_gguf(path).config["rms_norm_eps"] == 0.25


@pytest.mark.parametrize("family", ["glm4_moe", "glm4_moe_lite"])
def test_layers_that_draft_are_left_out(family: str, tmp_path: Path) -> None:
    """They follow the model's layers, and count among the file's blocks."""
    plain = write_gguf(tiny_model(family), tmp_path / "plain.gguf")
    name = gguf.GGUFReader(plain).fields["general.architecture"].contents()
    extra = {f"blk.3.{tensor}.weight": np.ones(60, np.float32) for tensor in ("attn_norm", "nextn.enorm")}
    metadata = {f"{name}.block_count": 4, f"{name}.nextn_predict_layers": 1}
    drafting = write_gguf(tiny_model(family), tmp_path / "drafting.gguf", metadata=metadata, extra=extra)
    models = [map_model(open_gguf(path), "auto").model for path in (plain, drafting)]
    assert models[0] == models[1]
    with pytest.raises(ConvertError, match=r"nextn_predict_layers to be less than block_count \(3\)"):
        open_gguf(write_gguf(tiny_model(family), tmp_path / "none.gguf", metadata={f"{name}.nextn_predict_layers": 3}))


OF_HEADS = {"key_length": 12 + 8, "value_length": 14, "head_count_kv": 6}
OF_HEADS |= {"key_length_mla": None, "value_length_mla": None}
OF_GROUPS = {"n_routed_experts": 9, "n_group": 3, "topk_group": 2}


@pytest.mark.parametrize(
    ("family", "shape", "metadata", "whole_heads"),
    [
        ("deepseek_v2", {}, {**OF_HEADS, "expert_gating_func": None}, True),
        ("deepseek_v3", {"n_group": 1, "topk_group": 1}, {**OF_HEADS, "group_count": None, "group_used": None}, True),
        (
            "deepseek_v2",
            {"q_lora_rank": 26, "topk_method": "group_limited_greedy", **OF_GROUPS},
            {"group_count": 3, "group_used": 2},
            False,
        ),
    ],
    ids=["V2 of 2024", "V3 of 2024", "V2"],
)
def test_deepseek_in_files_of_all_years(
    family: str, shape: dict[str, Any], metadata: dict[str, Any], whole_heads: bool, tmp_path: Path
) -> None:
    """Files of 2024 have the unpadded sizes of heads, and no groups of experts."""
    model = tiny_model(family, **_SAID.get(family, {}), **shape)
    names = {"expert_gating_func": "expert_gating_func", "group_count": "expert_group_count"}
    names |= {"group_used": "expert_group_used_count"}
    changes = {f"deepseek2.{names.get(key, f'attention.{key}')}": value for key, value in metadata.items()}
    path = write_gguf(model, tmp_path / "m.gguf", metadata=changes, whole_heads=whole_heads)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    assert config.family == family
    ids = np.random.default_rng(1).integers(0, config.vocab_size, 25)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 32).step([ids])[0], expected)


def test_scores_of_the_largest_gemma_are_scaled_by_another_size(tmp_path: Path) -> None:
    """llama.cpp recognises Gemma 2 27B by its number of layers, and so does this project."""
    metadata = {"gemma2.block_count": 46}
    assert open_gguf(write_gguf(tiny_model("gemma2"), tmp_path / "a.gguf")).config["query_pre_attn_scalar"] == 14
    path = write_gguf(tiny_model("gemma2"), tmp_path / "b.gguf", metadata=metadata)
    assert open_gguf(path).config["query_pre_attn_scalar"] == 10


def test_longrope(tmp_path: Path) -> None:
    """Phi-3's factors are tensors, and its pretraining length is shorter than its context."""
    factors = {f"rope_factors_{length}.weight": np.array([1, 2, 4], np.float32) for length in ("short", "long")}
    metadata = {"phi3.rope.scaling.original_context_length": 32, "phi3.rope.scaling.attn_factor": 1.25}
    source = open_gguf(write_gguf(tiny_model("phi3"), tmp_path / "m.gguf", extra=factors, metadata=metadata))
    assert source.config["rope_parameters"] == {
        **{"rope_theta": 10000.0, "rope_type": "longrope", "attention_factor": 1.25},
        **{"short_factor": [1, 2, 4], "long_factor": [1, 2, 4]},
    }
    assert map_model(source, "auto").source.config["original_max_position_embeddings"] == 32


@pytest.mark.parametrize("family", FAMILIES)
def test_quantized_models_equal_transformers_with_the_same_rounding(family: str, tmp_path: Path) -> None:
    overrides = {"sliding_window": None} if family == "mistral" else {}
    model = tiny_model(family, **_WIDE, **overrides)
    path = write_gguf(model, tmp_path / "m.gguf", _KINDS)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    assert (config.family, config.eos_token_ids, config.bos_token_id) == (family, [1], 0)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 9)
    with torch.no_grad():
        expected = dequantized(model, _KINDS)(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_expand_as_in_transformers(kind: str) -> None:
    """Bits are random, except for the float16 scales, which must be finite."""
    quantization = gguf.GGMLQuantizationType[kind]
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[quantization]
    raw = np.random.default_rng(0).integers(0, 256, (6, 2, num_bytes), np.uint8)
    raw[..., 1::2] &= 0xBF  # clears the top exponent bit of every byte that may belong to a float16
    raw = raw.reshape(6, -1)
    tensor = SimpleNamespace(data=raw, tensor_type=quantization, shape=(2 * num_values, 6))
    expected = dequantize(torch.from_numpy(raw.copy()), int(quantization)).reshape(6, -1).numpy()
    np.testing.assert_allclose(expand(tensor), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1"])
def test_other_blocks_are_close_to_what_was_quantized(kind: str) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (4, 64)).astype(np.float32)
    quantization = gguf.GGMLQuantizationType[kind]
    tensor = SimpleNamespace(data=gguf.quants.quantize(values, quantization), tensor_type=quantization, shape=(64, 4))
    # There are 32 levels between -1 and 1; Q5_0 cannot represent one of the two ends.
    np.testing.assert_allclose(expand(tensor), values, atol=2 / 31)


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0},
        {"attention_k_eq_v": False, "num_global_key_value_heads": None, "final_logit_softcapping": None},
        {
            **{"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 32},
            **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False},
        },
    ],
    ids=["without inputs of layers", "values apart", "experts"],
)
def test_gemma4_of_other_kinds(options: dict[str, Any], tmp_path: Path) -> None:
    kinds = {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q8_0", "ffn_up": "Q8_0", "ffn_gate_up_exps": "Q4_0"}
    kinds |= {"ffn_down_exps": "Q8_0"}
    model = tiny_model("gemma4", **_WIDE, global_head_dim=32, **options)
    path = write_gguf(model, tmp_path / "m.gguf", kinds)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 9)
    with torch.no_grad():
        expected = dequantized(model, kinds)(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


@pytest.mark.parametrize("vocabulary", [VOCAB_SIZE - 5, VOCAB_SIZE])
def test_streams_and_inputs_of_layers_in_blocks(vocabulary: int, tmp_path: Path) -> None:
    """Gemma 3n: matrices of streams are stacked, and files may have inputs of layers for all tokens or for some."""
    kinds = {"token_embd": "Q8_0", "per_layer_token_embd": "Q5_0", "altup_proj": "Q8_0", "altup_unembd_proj": "F16"}
    kinds |= {"laurel_l": "F16", "attn_q": "Q4_0", "inp_gate": "Q8_0", "proj": "Q4_1", "ffn_up": "Q8_0"}
    sizes = {"hidden_size_per_layer_input": 32, "laurel_rank": 8, "vocab_size_per_layer_input": vocabulary}
    model = tiny_model("gemma3n", **_WIDE, **sizes)
    path = write_gguf(model, tmp_path / "m.gguf", kinds)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    ids = np.array([VOCAB_SIZE - 1, *np.random.default_rng(0).integers(0, config.vocab_size, 9)])
    with torch.no_grad():
        expected = dequantized(model, kinds)(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


def test_files_without_sparse_layers_say_so(tmp_path: Path) -> None:
    """One number is left of numbers that all layers share."""
    kinds = {"activation_sparsity_pattern": [0.0] * 6, "num_kv_shared_layers": 0, "layer_types": ["full_attention"] * 6}
    config = open_gguf(write_gguf(tiny_model("gemma3n", **kinds), tmp_path / "m.gguf")).config
    assert {key: config[key] for key in kinds} == kinds


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_experts_in_blocks_equal_transformers_with_the_same_rounding(family: str, tmp_path: Path) -> None:
    kinds = {"ffn_gate_exps": "Q4_0", "ffn_up_exps": "Q8_0", "ffn_down_exps": "Q5_1", "ffn_gate_shexp": "Q8_0"}
    inner = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    model = tiny_model(family, **_WIDE, **(_SAID["qwen2_moe"] | inner if family == "qwen2_moe" else {}))
    path = write_gguf(model, tmp_path / "m.gguf", kinds)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 9)
    with torch.no_grad():
        expected = dequantized(model, kinds)(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


def test_an_expert_is_read_without_the_others(tmp_path: Path) -> None:
    overrides = {"num_local_experts": 64, "num_hidden_layers": 1}
    path = write_gguf(tiny_model("mixtral", **_WIDE, **overrides), tmp_path / "m.gguf", {"ffn_gate_exps": "Q8_0"})
    source = open_gguf(path)
    tracemalloc.start()
    for number in range(64):
        source.read(f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 4 * 96 * 64  # the size of eight expanded experts


def test_more_experts_than_models_have_are_an_error(tmp_path: Path) -> None:
    model = tiny_model("mixtral", num_hidden_layers=1)
    path = write_gguf(model, tmp_path / "m.gguf", metadata={"llama.expert_count": 2**30})
    with pytest.raises(ConvertError, match=r"at most 393216 matrices of experts .* 3 tensors of 1073741824 each"):
        open_gguf(path)


@pytest.mark.parametrize(("family", "suffix"), [("llama", ""), ("mixtral", "_exps")])
def test_auto_is_float16_for_quantized_files(family: str, suffix: str, tmp_path: Path) -> None:
    """The type of the router's weights does not matter."""
    mlp = [f"ffn_{name}{suffix}" for name in ("gate", "up", "down")]
    kinds = dict.fromkeys(["token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", *mlp], "Q8_0")
    path = write_gguf(tiny_model(family, **_WIDE), tmp_path / "m.gguf", kinds)
    assert convert_checkpoint(str(path), tmp_path / "checkpoint").config.dtype == "float16"


def test_rope_scaling(tmp_path: Path) -> None:
    model = tiny_model("llama")
    factors = np.array([1, 1, 2, 4, 8], np.float32)
    source = open_gguf(write_gguf(model, tmp_path / "a.gguf", extra={"rope_freqs.weight": factors}))
    assert source.config["rope_parameters"]["factors"] == factors.tolist()
    assert "rope_freqs.weight" not in source.tensors
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    source = open_gguf(write_gguf(model, tmp_path / "b.gguf", metadata=scaling))
    assert source.config["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"general.architecture": "mamba"},
            "GGUF architecture 'mamba', expected one of .*command-r, .*gemma2, .*llama, llama4, .*mistral",
        ),
        ({"llama.expert_count": 8}, "num_experts_per_tok: expected an integer"),
        ({"llama.expert_used_count": 2}, r"llama\.expert_used_count: 2 is not mapped"),
        ({"llama.attention.sliding_window": 32}, r"llama\.attention\.sliding_window: 32 is not mapped"),
        ({"llama.rope.dimension_count": 6}, r"partial_rotary_factor: expected 1\.0, found 0\.6"),
        ({"llama.attention.value_length": 12}, r"llama\.attention\.value_length: 12 is not mapped"),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, "num_key_value_heads: expected an integer"),
        ({"llama.block_count": None}, "num_hidden_layers: expected an integer"),
        ({"llama.block_count": 4}, r"missing \(9\): blk\.3\.attn_k\.weight"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer of model gpt2 or llama or gemma4 or t5 or bert, found 'rwkv'"),
        ({"tokenizer.ggml.model": "t5"}, r"tokenizer is inconsistent \('scores'\)"),
        ({"tokenizer.ggml.pre": "chatglm"}, "tokenizer.ggml.pre to be one of .*, found 'chatglm'"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "tokenizer is inconsistent"),
        ({"tokenizer.ggml.merges": None}, "tokenizer is inconsistent"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "tokenizer is inconsistent"),
        ({"llama.rope.dimension_count": "x"}, "metadata of .* is inconsistent"),
        ({"tokenizer.ggml.tokens": 7}, "metadata of .* is inconsistent"),
    ],
)
def test_what_cannot_be_mapped_is_an_error(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("biases", [{"attention_bias": True}, {"mlp_bias": True}])
def test_biases_are_found_by_their_tensors(biases: dict[str, bool], tmp_path: Path) -> None:
    model = tiny_model("llama", **biases)
    convert_checkpoint(str(write_gguf(model, tmp_path / "m.gguf")), tmp_path / "checkpoint")
    ids = [5, 80, 300, 17]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected)


def test_unknown_tensors_keep_their_names_in_the_report(tmp_path: Path) -> None:
    path = write_gguf(
        tiny_model("llama"), tmp_path / "m.gguf", extra={"blk.0.ffn_gate_inp.weight": np.ones(3, np.float32)}
    )
    with pytest.raises(ConvertError, match=r"unused \(1\): blk\.0\.ffn_gate_inp\.weight"):
        convert_checkpoint(str(path), tmp_path / "checkpoint")


@pytest.mark.parametrize("family", sorted(_WRITTEN))
def test_tensors_are_named_as_the_file_has_them(family: str, tmp_path: Path) -> None:
    source = open_gguf(write_gguf(tiny_model(family, **_SAID.get(family, {})), tmp_path / "m.gguf"))
    named = {own for name in source.tensors for own in source.stored_names(name)}
    declared = all_families()[family].gguf
    stored = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors} - {"rope_freqs.weight"}
    assert named == stored | set(declared.listed if declared else ())


def test_missing_experts_are_one_tensor(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("mixtral"), tmp_path / "m.gguf", metadata={"llama.block_count": 4})
    with pytest.raises(ConvertError, match=r"missing \(10\): .*, blk\.3\.ffn_down_exps\.weight, blk\.3\.ffn_gate_exps"):
        convert_checkpoint(str(path), tmp_path / "checkpoint")


def test_of_several_tensors_for_one_those_are_missing_that_the_file_lacks() -> None:
    family, name = all_families()["deepseek_v2"], "model.layers.2.self_attn.kv_b_proj.weight"
    keys, values = "blk.2.attn_k_b.weight", "blk.2.attn_v_b.weight"
    assert names_in_file(name, family, {keys}, 3) == (values,)
    assert names_in_file(name, family, {keys, values}, 3) == names_in_file(name, family, (), 3) == (keys, values)
    assert names_in_file("model.layers.2.unknown", family, (), 3) == ("model.layers.2.unknown",)


def test_a_tensor_without_dimensions_is_an_error(tmp_path: Path) -> None:
    name = b"output_norm.weight"
    whole = write_gguf(tiny_model("llama"), tmp_path / "m.gguf").read_bytes()
    at = whole.index(name) + len(name)
    assert whole[at : at + 4] == struct.pack("<I", 1)
    (tmp_path / "m.gguf").write_bytes(whole[:at] + bytes(4) + whole[at + 12 :])
    with pytest.raises(ConvertError, match=r"output_norm\.weight of .* has a shape that does not fit"):
        open_gguf(tmp_path / "m.gguf")


def test_an_architecture_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    metadata = struct.pack("<Q20sIIQI", 20, b"general.architecture", 9, 4, 1, 7)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + metadata + bytes(99))
    with pytest.raises(ConvertError, match=r"the GGUF architecture \[7\], expected one of"):
        open_gguf(tmp_path / "m.gguf")


def _entry(kind: int, value: bytes) -> bytes:
    """A GGUF file without tensors and with one metadata entry."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", kind) + value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(99), "1152921504606846976 tensors in 99 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(99), "1152921504606846976 metadata entries in 99 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(99), "version 2 or 3, found version 1"),
        (_entry(9, struct.pack("<IQ", 4, 2**60) + bytes(99)), "4611686018427387904 bytes of a value in 99 bytes"),
        (_entry(9, struct.pack("<IQ", 8, 2**60) + bytes(99)), "1152921504606846976 strings in an array in 99 bytes"),
        (_entry(9, struct.pack("<IQ", 9, 1) + bytes(99)), "a metadata value of type 9"),
        (_entry(13, bytes(99)), "a metadata value of type 13"),
        (_entry(8, struct.pack("<Q", 2**63) + bytes(99)), "9223372036854775808 bytes of a value in 99 bytes"),
    ],
)
def test_counts_beyond_the_file_are_errors(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ConvertError, match=message):
        open_gguf(tmp_path / "m.gguf")


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    model = tiny_model("llama")
    absent = {f"tokenizer.ggml.{name}": None for name in ("tokens", "token_type", "merges", "pre")}
    metadata = {**absent, "tokenizer.ggml.model": "no_vocab"}
    path = write_gguf(model, tmp_path / "m.gguf", metadata=metadata)
    config = convert_checkpoint(str(path), tmp_path / "checkpoint").config
    assert (config.tokenizer, config.vocab_size, config.eos_token_ids) == (False, model.config.vocab_size, [1])


def test_every_end_token_ends_a_text(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 5}
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", metadata=metadata)
    assert convert_checkpoint(str(path), tmp_path / "checkpoint").config.eos_token_ids == [1, 7, 5]


def test_calls_of_gpt_oss_end_a_text(tmp_path: Path) -> None:
    """The file names one end token, and the model's generation_config names the end token of calls as well."""
    model, path = tiny_model("gpt_oss"), tmp_path / "m.gguf"
    tokens = gguf.GGUFReader(write_gguf(model, path)).fields["tokenizer.ggml.tokens"].contents()
    write_gguf(model, path, metadata={"tokenizer.ggml.tokens": [*tokens[:-1], "<|call|>"]})
    assert convert_checkpoint(str(path), tmp_path / "checkpoint").config.eos_token_ids == [1, len(tokens) - 1]


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of one layer, with quantized matrices."""
    model = tiny_model("llama", num_hidden_layers=1, **_WIDE)
    return write_gguf(model, tmp_path_factory.mktemp("gguf") / "m.gguf", _KINDS)


def _refusal_of_cut(whole: Path, num_bytes: int) -> str:
    """The error message for the first ``num_bytes`` of the file."""
    cut = whole.with_name("cut.gguf")
    cut.write_bytes(whole.read_bytes()[:num_bytes])
    with pytest.raises(ConvertError) as caught:
        open_source(str(cut))
    return str(caught.value).replace(str(cut), "cut.gguf")


def test_a_cut_file_says_which_tensor_it_ends_in(small_file: Path) -> None:
    size, tensors = small_file.stat().st_size, gguf.GGUFReader(small_file).tensors
    end = max(tensor.data_offset + tensor.n_bytes for tensor in tensors)
    for tensor in tensors:
        for left in (0, 1, tensor.n_bytes - 1):
            found = tensor.data_offset + left
            assert _refusal_of_cut(small_file, found) == (
                f"expected cut.gguf to be a complete GGUF file of {end} bytes, found {found}: the tensor {tensor.name} "
                f"has {left} of its {tensor.n_bytes} bytes: download it again"
            )
    assert size - end < 32  # only padding after the last tensor may be cut off
    assert map_model(open_source(str(small_file)), "auto").network.weights


@settings(max_examples=rounds(60), deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_before_its_data_says_what_to_do(share: float, small_file: Path) -> None:
    """Errors do not use a library's words, but say how many bytes there are and should be."""
    first = min(tensor.data_offset for tensor in gguf.GGUFReader(small_file).tensors)
    refusal = _refusal_of_cut(small_file, int(share * first))
    assert re.fullmatch(
        r"expected cut\.gguf to be (a directory or a GGUF file, found another kind of file"
        r"|a complete GGUF file, found (a file that ends within its header|\d+ [a-z ]+ in \d+ bytes): download it again"
        r"|a complete GGUF file of \d+ bytes, found \d+: the tensor \S+ has 0 of its \d+ bytes: download it again)",
        refusal,
    )


@settings(max_examples=rounds(60), deadline=None)
@given(position=st.integers(0, 2000), value=st.integers(0, 255))
def test_flipped_bytes_never_crash(position: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    if not path.exists():
        write_gguf(tiny_model("llama", num_hidden_layers=1), path)
    raw = bytearray(path.read_bytes())
    raw[position] = value
    flipped = path.with_suffix(".flipped")
    flipped.write_bytes(raw)
    try:
        mapped = map_model(open_source(str(flipped)), "auto")
    except ConvertError:
        return
    for weight in mapped.network.weights:
        assert weight.expression.evaluate(mapped.source.read).shape == weight.shape


@pytest.mark.parametrize(
    ("family", "architecture"), [("qwen2", "qwen2vl"), ("qwen3", "qwen3vl"), ("qwen3_moe", "qwen3vlmoe")]
)
def test_qwens_that_see_are_read_as_text(family: str, architecture: str, tmp_path: Path) -> None:
    model = tiny_model(family, **({"norm_topk_prob": True} if family == "qwen3_moe" else {}))
    sections = {f"{architecture}.rope.dimension_sections": [2, 1, 1, 0], f"{architecture}.n_deepstack_layers": 3}
    path = write_gguf(model, tmp_path / "model.gguf", metadata=sections, architecture=architecture)
    converted = convert_checkpoint(str(path), tmp_path / "checkpoint")
    assert converted.config.family == family
    tokens = torch.arange(3, 16)
    with torch.no_grad():
        expected = model(tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits")
