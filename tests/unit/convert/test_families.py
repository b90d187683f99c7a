"""Single families: tensors that a family stores in its own way, and config keys that it refuses."""

import json
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.models import (
    ENCODER_FAMILIES,
    HYBRID_FAMILIES,
    LATENT_FAMILIES,
    MOE_FAMILIES,
    NETWORK_FAMILIES,
    save_tiny_model,
    tiny_config,
)
from tests.rounds import rounds
from trtllm_lite.convert import checkpoint, convert_checkpoint, families
from trtllm_lite.convert.family import all_families
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.mapping import open_source, read_model
from trtllm_lite.convert.parts.llama4 import read_temperature
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.attention import Temperature
from trtllm_lite.network.model import network_of


def _edit_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def test_gpt2_saved_without_its_head_has_names_without_a_prefix(tmp_path: Path) -> None:
    """GPT-2's published files have names without a prefix, and hold the causal mask as well."""
    save_tiny_model("gpt2", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "new")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 128, 128)
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "old")
    assert (tmp_path / "old/weights.safetensors").read_bytes() == (tmp_path / "new/weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("family", "buffers"),
    [
        (
            "gpt_neox",
            {
                "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
                "gpt_neox.layers.1.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
                "gpt_neox.layers.1.attention.masked_bias": torch.tensor(-1e9),
            },
        ),
        ("roberta", {"roberta.embeddings.position_ids": torch.arange(130)[None]}),
        ("mpnet", {"mpnet.embeddings.position_ids": torch.arange(130)[None]}),
        ("qwen3_next", {"mtp.fc.weight": torch.ones(60, 120), "mtp.layers.0.mlp.gate.weight": torch.ones(7, 60)}),
        ("qwen3_5", {"mtp.fc.weight": torch.ones(60, 120), "mtp.layers.0.self_attn.q_norm.weight": torch.ones(20)}),
        ("qwen3_5_moe", {"mtp.norm.weight": torch.ones(60)}),
        ("exaone_moe", {"mtp.norm.weight": torch.ones(60)}),
        ("mellum", {"mtp.norm.weight": torch.ones(60)}),
        ("mimo_v2_flash", {"model.mtp.layers.0.enorm.weight": torch.ones(60)}),
        ("ernie4_5_moe", {"model.mtp_emb_norm.0.weight": torch.ones(60)}),
    ],
)
def test_masks_positions_and_drafting_layers_that_files_hold_are_dropped(
    family: str, buffers: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Published Pythias hold masks of bytes, RoBERTas 64-bit positions, and Qwen3-Nexts a layer that drafts."""
    save_tiny_model(family, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = {name: tensor.half() for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    assert convert_checkpoint(str(tmp_path / "model"), tmp_path / "new").config.dtype == "float16"
    save_file(tensors | buffers, weights, metadata={"format": "pt"})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "old")
    assert (tmp_path / "old/weights.safetensors").read_bytes() == (tmp_path / "new/weights.safetensors").read_bytes()


_OTHER_TYPES = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_OTHER_INTERVAL = {"layer_types": None, "full_attention_interval": 2}
_OTHER_BLOCKS = {"layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "mlp"]}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        *((family, _OTHER_TYPES, r"layer_types: .* \{1-2\}") for family in ("qwen3_next", "qwen3_5", "qwen3_5_moe")),
        *(
            (family, _OTHER_INTERVAL, r"full_attention_interval: .* layers \{1-2\}")
            for family in ("qwen3_next", "qwen3_5", "qwen3_5_moe")
        ),
        *((family, _OTHER_TYPES, r"layer_types: .* \{1-2\}") for family in ("granitemoehybrid", "kimi_linear")),
        ("nemotron_h", _OTHER_BLOCKS, r"layers_block_type: .* layers \{2-3\}"),
        ("bamba", {"attn_layer_indices": [1]}, r"attn_layer_indices: .* layers \{1-2\}"),
        ("lfm2", {"layer_types": None, "full_attn_idxs": [0]}, r"full_attn_idxs: .* layers "),
    ],
)
def test_kinds_of_layers_that_the_tensors_contradict_are_named(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_tiny_model(family, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConvertError, match=f"{message}"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("family", "count"),
    [("deepseek_v3", 1), ("deepseek_v3", 2), ("glm4_moe", 2), ("glm4_moe_lite", 2), ("hy_v3", 2)],
)
def test_layers_that_draft_are_left_out_where_they_are_behind_the_others(
    family: str, count: int, tmp_path: Path
) -> None:
    save_tiny_model(family, tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "plain")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    last = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    tensors |= {f"model.layers.{last + number}.eh_proj.weight": torch.ones(8, 16) for number in range(2)}
    save_file(tensors, weights, metadata={"format": "pt"})
    _edit_config(tmp_path / "model", num_nextn_predict_layers=count)
    if count == 1:
        with pytest.raises(ConvertError, match=rf"unused \(1\): model\.layers\.{last + 1}\.eh_proj\.weight"):
            convert_checkpoint(str(tmp_path / "model"), tmp_path / "drafting")
        return
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "drafting")
    drafting, plain = (tmp_path / name / "weights.safetensors" for name in ("drafting", "plain"))
    assert drafting.read_bytes() == plain.read_bytes()


_CHINESE_BERT = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}


@pytest.mark.parametrize(
    ("family", "published", "other"),
    [
        ("bert", _CHINESE_BERT, {"directionality": "left"}),  # bge-large-zh-v1.5
        ("roberta", {"output_past": True}, {"position_embedding_type": "relative_key"}),  # multilingual-e5-base
        (
            "starcoder2",
            {"mlp_type": "default", "norm_type": "layer_norm", "residual_dropout": 0.1, "embedding_dropout": 0.1},
            {"mlp_type": "gated"},
        ),
        ("qwen3", {"use_qk_norm": True}, {"use_qk_norm": False}),
        ("qwen3_moe", {"use_qk_norm": True}, {"use_qk_norm": False}),  # Qwen3-Coder-30B-A3B
        ("gpt_neox", {"custom_pipelines": {"text-generation": {"impl": "x.y"}}}, {"rotary_pct": 0}),  # h2oGPT 6.9B
        ("gpt_neox", {"num_steps": "global_step320000"}, {"hidden_act": "x"}),  # Polyglot-Ko
    ],
)
def test_keys_of_published_configs(
    family: str, published: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    save_tiny_model(family, tmp_path / "model")
    _edit_config(tmp_path / "model", **published)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    _edit_config(tmp_path / "model", **other)
    with pytest.raises(ConvertError, match=f"{next(iter(other))}: "):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


def test_a_scale_of_zero_switches_off(tmp_path: Path) -> None:
    """Devstral 2 does not change the temperature of queries at late positions, and has YaRN's usual temperature."""
    save_tiny_model("ministral3", tmp_path / "model")
    rope = json.loads((tmp_path / "model" / "config.json").read_text())["rope_parameters"]
    _edit_config(tmp_path / "model", rope_parameters={**rope, "llama_4_scaling_beta": 0.0, "mscale_all_dim": 0.0})
    _, _, model = read_model(open_source(str(tmp_path / "model")))
    for layer in model.layers:
        attention = layer.mixer.block
        assert attention.temperature is None
        assert attention.rope.attention_factor == pytest.approx(0.1 * np.log(rope["factor"]) + 1)


@pytest.mark.parametrize(("given", "scales"), [(4, True), (True, True), (0, False), (False, False)])
def test_llama4_says_by_numbers_or_flags_whether_late_queries_are_scaled(given: object, scales: bool) -> None:
    fields = ConfigFields({"attn_temperature_tuning": given})
    assert (read_temperature(fields) is not None) == scales
    assert not fields.problems


def test_parts_of_fused_tensors_are_reported_by_the_tensor(tmp_path: Path) -> None:
    save_tiny_model("phi3", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["model.layers.1.self_attn.qkv_proj.weight"]
    tensors["model.layers.2.mlp.gate_up_proj.weight"] = torch.ones(180, 72)
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError) as caught:
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert "missing (1): model.layers.1.self_attn.qkv_proj.weight\n" in str(caught.value)
    assert "model.layers.2.mlp.gate_up_proj.weight (expected [182, 72], found [180, 72])" in str(caught.value)


def test_a_fused_tensor_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading may expand quantized blocks: splitting a tensor in three must not triple that work."""
    save_tiny_model("phi3", tmp_path / "model")
    reads: Counter[str] = Counter()

    def open_counting(*model: Any) -> Source:
        source = open_source(*model)

        def read(name: str) -> NDArray:
            reads[name] += 1
            return source.read(name)

        return replace(source, read=read)

    monkeypatch.setattr(checkpoint, "open_source", open_counting)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    assert set(reads.values()) == {1}
    stored = SafetensorsFile(tmp_path / "checkpoint" / "weights.safetensors")
    fused = load_file(tmp_path / "model" / "model.safetensors")["model.layers.0.self_attn.qkv_proj.weight"]
    parts = [stored.read(f"weights.layers.0.attention.{role}_proj.weight") for role in "qkv"]
    np.testing.assert_array_equal(np.concatenate(parts).astype(np.float32), fused.bfloat16().float().numpy())


def test_a_family_is_a_file_of_at_most_100_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in Path(families.__path__[0]).glob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 100} == {}


def test_memory_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    save_tiny_model("phi3", tmp_path / "model", hidden_size=264, intermediate_size=1000, num_hidden_layers=6)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "first", "bfloat16")  # warms up imports and caches
    tracemalloc.start()
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    largest = 2 * 1000 * 264 * 4
    assert peak < 1.5 * largest < (tmp_path / "model" / "model.safetensors").stat().st_size / 5


def test_phi4_mini_has_keys_without_an_effect(tmp_path: Path) -> None:
    save_tiny_model("phi3", tmp_path / "model", tie_word_embeddings=True)
    neutral = {"interpolate_factor": 1, "full_attn_mod": 1, "lm_head_bias": False, "mlp_bias": False}
    _edit_config(tmp_path / "model", **neutral)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


def test_exaone_has_keys_of_its_own_names(tmp_path: Path) -> None:
    save_tiny_model("exaone", tmp_path / "model", rms_norm_eps=1e-3)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "usual")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    own = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"}
    config |= {name: config.pop(usual) for name, usual in own.items()}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "own")
    networks = [(tmp_path / name / "network.onnx").read_bytes() for name in ("usual", "own")]
    assert networks[0] == networks[1]


def test_lfm2_has_keys_of_training_and_of_other_names(tmp_path: Path) -> None:
    """Published configs repeat sizes, and name layers with attention by numbers."""
    save_tiny_model("lfm2", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "usual")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config |= {"block_ff_dim": config.pop("intermediate_size"), "tie_embedding": config.pop("tie_word_embeddings")}
    config |= {"block_dim": 60, "conv_dim": 60, "conv_dim_out": 60, "num_heads": 6, "block_norm_eps": 1e-4}
    config |= {"block_use_swiglu": True, "use_pos_enc": True, "conv_use_xavier_init": True, "block_mlp_init_scale": 1.0}
    del config["layer_types"]
    config["full_attn_idxs"] = [2]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "own")
    networks = [(tmp_path / name / "network.onnx").read_bytes() for name in ("usual", "own")]
    assert networks[0] == networks[1]


def test_kimi_linear_lists_its_layers_from_1_on(tmp_path: Path) -> None:
    """Published configs have an object for recurrent layers, and a head_dim that no head has."""
    save_tiny_model("kimi_linear", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "usual")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    sizes = {
        key: config.pop(f"linear_{own}")
        for key, own in (
            *(("num_heads", "num_heads"), ("head_dim", "head_dim")),
            ("short_conv_kernel_size", "conv_kernel_dim"),
        )
    }
    config["linear_attn_config"] = {**sizes, "kda_layers": [1, 2], "full_attn_layers": [3]}
    config |= {"head_dim": 10, "mla_use_nope": True, "rope_theta": 10000.0, "rope_scaling": None}
    config |= {"first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid"}
    config |= {"use_grouped_topk": True, "num_nextn_predict_layers": 0}
    for key in ("layer_types", "mlp_layer_types", "qk_head_dim"):
        del config[key]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "own")
    networks = [(tmp_path / name / "network.onnx").read_bytes() for name in ("usual", "own")]
    assert networks[0] == networks[1]


def test_mimo_v2_says_what_layers_have_in_two_forms(tmp_path: Path) -> None:
    """Published configs have other keys, and a window without the query's own token."""
    save_tiny_model("mimo_v2_flash", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "usual")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types", "rope_parameters", "sliding_window"):
        del config[key]
    config |= {"layernorm_epsilon": config.pop("rms_norm_eps"), "partial_rotary_factor": 0.334, "sliding_window": 6}
    config |= {"hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 6}
    config |= {"rope_theta": 1000, "swa_rope_theta": 50, "swa_num_key_value_heads": 4, "attention_chunk_size": 6}
    config |= {"swa_head_dim": 12, "swa_v_head_dim": 10, "n_shared_experts": None, "routed_scaling_factor": None}
    config |= {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "own")
    networks = [(tmp_path / name / "network.onnx").read_bytes() for name in ("usual", "own")]
    assert networks[0] == networks[1]


_FAMILIES = (*NETWORK_FAMILIES, *LATENT_FAMILIES, *MOE_FAMILIES, *HYBRID_FAMILIES, *ENCODER_FAMILIES)
_CONFIGS = {family: tiny_config(family).to_dict() for family in _FAMILIES}
_KEYS = sorted(set().union(*_CONFIGS.values()))
_JUNK: list[Any] = [None, 0, 1, -1, 7, "x", [], {}, {"rope_type": "yarn"}, {"full_attention": 3}, [1], True]
_JUNK += [10**400, 1e300, 1e-300, 0.3, 2.5, ["sliding_attention"] * 3, [[]]]


@settings(max_examples=rounds(50), deadline=None)
@given(
    family=st.sampled_from(_FAMILIES),
    other=st.sampled_from(_FAMILIES),
    changes=st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(_JUNK), max_size=4),
)
def test_any_config_can_be_read_as_any_family(family: str, other: str, changes: dict[str, Any]) -> None:
    """A mismatch becomes a problem of the config, so that the family closest to an unknown model can be named."""
    model = all_families()[family].read_model(ConfigFields({**_CONFIGS[other], **changes}))
    assert network_of(model, ir.DataType.FLOAT).weights


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: expected False, found True"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation: expected one of silu, .*, found 'relu'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not mapped"),
        ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_type: 'default' is not mapped"),
        ("mixtral", {"num_local_experts": 1 << 20}, "num_local_experts: expected at most 131072 experts"),
        ("mixtral", {"num_local_experts": None}, "num_experts: expected the number of a layer's experts, .* neither$"),
        ("mixtral", {"num_experts": 4}, "num_local_experts: contradicts num_experts: 5 and 4"),
        ("mixtral", {"num_experts_per_tok": 6}, r"num_experts_per_tok: expected at most .* \(5\), found 6"),
        ("hunyuan_v1_moe", {"moe_topk": [3, 2, 3]}, r"num_experts_per_tok: expected 3 times the same value, found"),
        ("hunyuan_v1_moe", {"num_shared_expert": [2] * 3}, "num_shared_expert: expected 1, found 2, which is not supp"),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type: expected 'per_layer', found 'per_head'"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size: expected 0, found 64"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias: expected False, found True, which is not supported"),
        ("dots1", {"layer_types": ["sliding_attention"] * 3, "sliding_window": None}, "layer_types: names sliding"),
        ("exaone_moe", {"is_moe_layer": [True] * 3}, r"is_moe_layer: expected \[False, True, True\], found \[True, T"),
        ("glm4_moe_lite", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types: expected 3 times dense or sparse, found"),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace: expected 0, found 1, which is not supp"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: expected None, found 8.0, which is not supported"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window: expected False, found True"),
        ("qwen2_moe", {"layer_types": ["sliding_attention"] * 3}, "layer_types: expected .*, found .*sliding"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers: expected a list of numbers of layers, found"),
        (
            "qwen3_next",
            {"layer_types": ["sliding_attention"] * 3},
            "layer_types: expected 3 times full_attention or li",
        ),
        (
            "qwen3_next",
            {"linear_num_value_heads": 5},
            r"linear_num_value_heads: expected a multiple of .* \(2\), found 5",
        ),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: expected an integer in 2..64, found 1"),
        ("qwen3_next", {"hidden_act": "gelu"}, "hidden_act: expected 'silu', found 'gelu', which is not supported"),
        ("qwen3_next", {"use_sliding_window": True}, "use_sliding_window: expected False, found True"),
        (
            "qwen3_5",
            {"layer_types": ["full_attention"] * 4},
            r"layer_types: expected 3 times full_attention or linear_attention, found \['full",
        ),
        ("qwen3_5", {"layer_types": "linear_attention"}, "layer_types: expected 3 times .*, found 'linear_attention'"),
        (
            "qwen3_5",
            {"mamba_ssm_dtype": "int8"},
            "mamba_ssm_dtype: expected 'float32' or 'float16' or 'bfloat16', found 'int8'",
        ),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate: expected True, found False"),
        ("qwen3_5", {"output_gate_type": "sigmoid"}, "output_gate_type: expected 'swish' or 'silu', found 'sigmoid'"),
        ("qwen3_5", {"mtp_num_hidden_layers": "one"}, "mtp_num_hidden_layers: expected an integer in 0"),
        ("qwen3_5", {"linear_num_value_heads": 7}, r"linear_num_value_heads: expected a multiple of .* \(2\), found 7"),
        ("qwen3_5", {"hidden_act": "gelu"}, "hidden_act: expected 'silu', found 'gelu', which is not supported"),
        ("qwen3_5_moe", {"norm_topk_prob": False}, "norm_topk_prob: expected True, found False"),
        (
            "qwen3_5_moe",
            {"num_experts_per_tok": 8},
            r"num_experts_per_tok: expected at most num_experts \(7\), found 8",
        ),
        ("qwen3_5_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers: \[1\] is not mapped"),
        ("kimi_linear", {"layer_types": ["conv"] * 3}, "layer_types: expected 3 times full_attention or linear_atten"),
        ("kimi_linear", {"layer_types": None}, "layer_types: expected 3 times full_attention or linear_attention, f"),
        (
            "kimi_linear",
            {"linear_attn_config": {"kda_layers": [0, 1], "full_attn_layers": [2]}},
            r"linear_attn_config.kda_layers: expected numbers from 1 to 3, each once here or in full_attn_layers, f",
        ),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": [1, 2]}}, "linear_attn_config.kda_layers: expected numb"),
        (
            "kimi_linear",
            {"linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2]}},
            "layer_types: contradicts linear_attn_config: ",
        ),
        ("kimi_linear", {"linear_attn_config": {"gate_lower_bound": -5.0}}, "config.gate_lower_bound: -5.0 is not map"),
        ("kimi_linear", {"linear_attn_config": {"head_dim": 7}}, "linear_head_dim: contradicts linear_attn_config.he"),
        ("kimi_linear", {"linear_attn_config": 3}, "linear_attn_config: expected an object, found 3"),
        ("kimi_linear", {"linear_conv_kernel_dim": 1}, "short_conv_kernel_size: expected an integer in 2..64, found 1"),
        ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope: expected True, found False"),
        ("kimi_linear", {"hidden_act": "situ"}, "hidden_act: expected 'silu', found 'situ'"),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func: expected 'sigmoid', f"),
        ("kimi_linear", {"mlp_layer_types": ["dense"]}, "mlp_layer_types: expected 3 times dense or sparse, found"),
        ("lfm2", {"layer_types": ["conv"] * 2}, "layer_types: expected 3 times full_attention or conv, found"),
        ("lfm2", {"layer_types": None}, "layer_types: expected 3 times full_attention or conv, found None"),
        ("lfm2", {"layer_types": ["mamba"] * 3}, "layer_types: expected 3 times full_attention or conv, found"),
        ("lfm2", {"full_attn_idxs": [0]}, r"full_attn_idxs: contradicts layer_types: \[0\] and"),
        ("lfm2", {"full_attn_idxs": [3]}, r"full_attn_idxs: expected numbers of the 3 layers, found \[3\]"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache: expected an integer in 2..64, found 1"),
        ("lfm2", {"conv_dim": 64}, "conv_dim: expected 60, found 64, which is not supported"),
        ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu: expected True, found False"),
        ("lfm2", {"block_norm_eps": 1e-6}, "block_norm_eps: expected 0.0001, found 1e-06"),
        ("lfm2", {"block_ffn_dim_multiplier": 1e9}, "block_ffn_dim_multiplier: expected from 1 to 2.30 inner features"),
        ("lfm2_moe", {"layer_types": None}, "layer_types: expected 3 times full_attention or conv, found None"),
        ("lfm2_moe", {"num_experts_per_tok": 8}, r"num_experts_per_tok: expected at most .* \(7\), found 8"),
        (
            "bamba",
            {"attn_layer_indices": [3]},
            r"attn_layer_indices: expected numbers of layers in 0\.\.2, found \[3\]",
        ),
        ("bamba", {"mamba_n_groups": 4}, r"mamba_n_groups: expected a divisor of mamba_n_heads \(6\), found 4"),
        ("bamba", {"mamba_d_head": 20}, r"mamba_d_head: expected mamba_n_heads \(6\) \* .* to be the 144 features"),
        (
            "bamba",
            {"time_step_limit": [2.0, 1.0]},
            "time_step_limit: expected two numbers, at least 0 and in ascending",
        ),
        ("bamba", {"hidden_act": "gelu"}, "hidden_act: expected 'silu' or 'swish', found 'gelu'"),
        ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers: expected 5 factors from 1e-06 to 1000000.0"),
        (
            "falcon_h1",
            {"key_multiplier": 1e7},
            "key_multiplier: expected a factor from 1e-06 to 1000000.0, found 100000",
        ),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 2}, "layer_types: expected a list of 3 kinds of layers"),
        ("granitemoehybrid", {"layer_types": ["mamba", "conv", "mamba"]}, "layer_types: .*, found 'conv' for layer 1"),
        (
            "granitemoehybrid",
            {"position_embedding_type": "alibi"},
            "position_embedding_type: expected 'nope' or 'rope'",
        ),
        ("nemotron_h", {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern: expected one of M . - E for each"),
        ("nemotron_h", {"hybrid_override_pattern": "ME*M*"}, "hybrid_override_pattern: contradicts layers_block_type"),
        ("nemotron_h", {"num_hidden_layers": 7}, "num_hidden_layers: expected 5, as other keys say, found 7"),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype: expected 'float32' or 'float16'"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: expected 'relu2', found 'silu'"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob: expected False, found True"),
        ("deepseek_v2", {"num_key_value_heads": 2}, "num_key_value_heads: expected 6, found 2"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq: expected 1, found 2"),
        ("mimo_v2_flash", {"moe_layer_freq": [0, 1]}, r"moe_layer_freq: expected 4 times 0 or 1, found \[0, 1\]"),
        ("mimo_v2_flash", {"swa_head_dim": 14}, "swa_head_dim: expected 12, found 14, which is not supported"),
        ("mimo_v2_flash", {"swa_num_key_value_heads": 3}, "swa_num_key_value_heads: expected a divisor of 8, found 3"),
        ("mimo_v2_flash", {"v_head_dim": 14}, r"v_head_dim: expected an integer in 1\.\.12, found 14"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok: expected 2, found 3, which is not supported"),
        (
            "phimoe",
            {"rope_parameters": {"rope_type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3}},
            "long_mscale: 1.3 is not mapped",
        ),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method: expected 'noaux_tc', found 'greedy'"),
        ("deepseek_v3", {"n_group": 5}, "n_group: expected a number that divides 12 experts into groups of 2 or more"),
        ("deepseek_v3", {"topk_group": 5}, "topk_group: expected at most 4 groups that hold 3 experts"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias: expected False, found True"),
        ("llama4", {"moe_layers": ["x"]}, "moe_layers: expected a list of numbers of layers, found"),
        ("llama4", {"layer_types": ["sliding_attention"] * 3}, "layer_types: expected chunked_attention or full_att"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm: expected False, found True, which is not supported"),
        ("cohere", {"partial_rotary_factor": 0.6}, "partial_rotary_factor: expected 1.0, found 0.6"),
        ("gpt2", {"n_head": 7}, r"n_embd: expected a multiple of n_head \(7\), found 60"),
        ("gpt2", {"n_ctx": 64}, "n_ctx: expected 128, found 64"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: True is not mapped"),
        ("gpt2", {"activation_function": "mish"}, "activation_function: expected one of silu, .*, found 'mish'"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers: expected 3 times 0 or 1, found \[1, 0\]"),
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 8}},
            "rope_parameters.llama_4_scaling_beta: expected a positive number, found none",
        ),
        ("granite", {"residual_multiplier": 1e-9}, "residual_multiplier: expected a factor from 1e-6 to 1e6"),
        ("gpt_neox", {"num_key_value_heads": 2}, "num_key_value_heads: expected 6, found 2"),
        ("gpt_neox", {"hidden_act": "relu6"}, "hidden_act: expected one of silu, .*, found 'relu6'"),
        ("gpt_neox", {"sliding_window": 64}, "sliding_window: 64 is not mapped"),
        ("glm", {"rope_ratio": 500}, "rope_ratio: 500 is not mapped"),
        ("glm4", {"partial_rotary_factor": 1.5, "rope_parameters": None}, "factor: expected an even part"),
        ("gemma", {"hidden_act": "relu"}, "hidden_act: expected 'gelu_pytorch_tanh' or 'gelu', found 'relu'"),
        ("cohere2", {"sliding_window": None}, "sliding_window: expected a positive integer, found none"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention: expected 'vision', found"),
        ("gemma4", {"vocab_size_per_layer_input": 90}, r"vocab_size_per_layer_input: expected vocab_size \(397\)"),
        ("gemma4", {"num_kv_shared_layers": 4}, "num_kv_shared_layers: expected a layer of each kind before"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 6}}}, "per_layer_config: expected the same head_dim"),
        ("gemma3n", {"altup_num_inputs": 3}, "altup_num_inputs: expected 4, found 3, which is not supported"),
        ("gemma3n", {"altup_active_idx": 1}, "altup_active_idx: expected 0, found 1, which is not supported"),
        ("gemma3n", {"intermediate_size": [91] * 5}, "intermediate_size: expected 6 integers in 1..2147483647, found"),
        ("gemma3n", {"activation_sparsity_pattern": [1.0] * 6}, "pattern: expected 6 numbers from 0 to below 1, found"),
        ("gemma3n", {"activation_sparsity_pattern": 0.5}, "pattern: expected 6 numbers from 0 to below 1, found 0.5"),
        ("gemma3n", {"num_kv_shared_layers": 4}, "num_kv_shared_layers: expected a layer of each kind before"),
        ("cohere2", {"layer_switch": 3}, "layer_switch: expected 4, found 3, which is not supported"),
        ("apertus", {"hidden_act": "silu"}, "hidden_act: expected 'xielu', found 'silu'"),
        ("apertus", {"rope_parameters": None}, "rope_parameters: expected the parameters of RoPE, found none"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla: expected False, found True, which is not supported"),
        ("arcee", {"hidden_act": "silu"}, "hidden_act: expected 'relu2', found 'silu'"),
        ("jais2", {"hidden_act": "silu"}, "hidden_act: expected 'relu2', found 'silu'"),
        ("youtu", {"mlp_bias": True}, "mlp_bias: expected False, found True"),
        ("hy_v3", {"qk_norm": False}, "qk_norm: expected True, found False"),
        ("hy_v3", {"mlp_bias": True}, "mlp_bias: expected False, found True"),
        ("afmoe", {"num_expert_groups": 2}, "num_expert_groups: expected 1, found 2"),
        ("afmoe", {"score_func": "softmax"}, "scoring_func: expected 'sigmoid' or 'noaux_tc', found 'softmax'"),
        ("cohere2_moe", {"expert_selection_fn": "x"}, "expert_selection_fn: expected 'softmax' or 'sigmoid', found"),
        ("cohere2_moe", {"use_qk_norm": True}, "use_qk_norm: expected False, found True"),
        ("gemma4_unified", {"enable_moe_block": True}, "enable_moe_block: expected False, as other keys say, found Tr"),
        ("nemotron", {"hidden_act": "silu"}, "hidden_act: expected 'relu2', found 'silu'"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm: expected False, found True, which is not supported"),
        ("falcon", {"alibi": True}, "alibi: expected False, found True, which is not supported"),
        ("falcon", {"parallel_attn": False}, "parallel_attn: expected True, found False, which is not supported"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: expected 1, or 2 in the new architecture"),
        ("exaone", {"num_layers": 4}, "num_layers: contradicts num_hidden_layers: 4 and 3"),
        ("exaone4", {"sliding_window": None}, "layer_types: names sliding_attention although sliding_window is null"),
        (
            "exaone4",
            {"layer_types": None, "sliding_window_pattern": "LLLG"},
            "sliding_window_pattern: expected a number or layer_types beside it, found 'LLLG'",
        ),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: expected 'absolute', found"),
        ("bert", {"is_decoder": True}, "is_decoder: expected False, found True, which is not supported"),
        ("roberta", {"max_position_embeddings": 3}, "max_position_embeddings: expected more than 3, found 3"),
        ("roberta", {"is_decoder": True}, "is_decoder: expected False, found True, which is not supported"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets: expected 32, found 64"),
        ("mpnet", {"max_position_embeddings": 2}, "max_position_embeddings: expected more than 2, found 2"),
        ("modernbert", {"local_attention": 1}, "local_attention: expected an integer in 2"),
        ("modernbert", {"num_key_value_heads": 2}, "num_key_value_heads: expected 6, like num_attention_heads"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling: is not supported here"),
        ("bert", {"hidden_act": "relu"}, "hidden_act: expected one of silu, .*, found 'relu'"),
        ("phi3", {"attention_bias": True}, "attention_bias: True is not mapped"),
        ("phi3", {"sliding_window": 0}, "sliding_window: expected an integer"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", "short_mscale": 1.2}}, "short_mscale: 1.2 is not"),
    ],
)
def test_what_changes_the_mathematics_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_tiny_model(family, tmp_path / "model")
    _edit_config(tmp_path / "model", **changes)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("changes", "windows", "tuned"),
    [
        ({}, [8192, 8192, 0], (8192, 0.1)),
        ({"attention_chunk_size": 40, "floor_scale": 30, "attn_scale": 0.5}, [40, 40, 0], (30, 0.5)),
        ({"layer_types": ["full_attention", "chunked_attention", "chunked_attention"]}, [0, 8192, 8192], (8192, 0.1)),
        ({"floor_scale": 40, "attn_temperature_tuning": False}, [8192, 8192, 0], None),
        ({"attention_chunk_size": None}, [0, 0, 0], (8192, 0.1)),
    ],
)
def test_llama4_has_chunks_and_temperatures(
    changes: dict[str, Any], windows: list[int], tuned: tuple[int, float] | None
) -> None:
    config = ConfigFields({**_CONFIGS["llama4"], **changes})
    layers = [layer.mixer.block for layer in all_families()["llama4"].read_model(config).layers]
    assert [layer.window for layer in layers] == windows
    assert [layer.chunked for layer in layers] == [window > 0 for window in windows]
    assert [layer.temperature for layer in layers] == [None, None, None if tuned is None else Temperature(*tuned)]
    config.finish()
