"""Configs are read strictly: typed and complete, and no key that could matter is ignored."""

import math
from typing import Any

import pytest

from trtllm_lite.convert.family import all_families
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.weight_expression import SourceTensor

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 60,
    "intermediate_size": 91,
    "max_position_embeddings": 128,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "vocab_size": 397,
}


def _read(family: str, **changes: Any) -> Decoder:
    fields = ConfigFields({**BASE, **changes})
    decoder = all_families()[family].read_model(fields)
    fields.finish()
    return decoder


def test_absent_keys_have_the_defaults_of_their_class() -> None:
    llama, qwen3 = _read("llama"), _read("qwen3")
    assert (llama.sizes.num_key_value_heads, llama.sizes.head_dim) == (6, 10)
    assert llama.final_norm == RmsNorm(SourceTensor("model.norm.weight", (60,)), 1e-6)
    assert not llama.has_tied_embeddings
    assert qwen3.sizes.head_dim == 128
    assert [layer.mixer.block.window for layer in _read("mistral").layers] == [4096] * 3
    assert [layer.mixer.block.window for layer in _read("mistral", sliding_window=None).layers] == [0] * 3


def test_neutral_and_switched_off_keys_pass() -> None:
    _read("llama", is_llama_config=True, max_sequence_length=2048, neftune_noise_alpha=5.0, num_labels=2)
    _read("llama", attn_implementation="sdpa", classifier_dropout=0.1)
    _read("llama", use_cache=True, initializer_range=0.02, torch_dtype="bfloat16", pretraining_tp=2)
    _read("llama", quantization_config=None, parallel_residual=False, _name_or_path="x", logit_scale=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act: expected one of silu, .*, found 'relu', which is not supported"),
        ({"sliding_window": 64}, "sliding_window: 64 is not mapped"),
        ({"logit_scale": 0.5}, r"logit_scale: 0\.5 is not mapped"),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers: expected an integer in 1\.\.4096, found 1000000000"),
        ({"hidden_size": "60"}, "hidden_size: expected an integer"),
        ({"hidden_size": None}, "hidden_size: expected an integer .* found None"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps: expected a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false"),
        ({"num_key_value_heads": 4}, r"expected a multiple of num_key_value_heads \(4\), found 6"),
        ({"head_dim": 11}, "head_dim: expected an even number up to 65536, found 11"),
        ({"hidden_size": 2**30, "num_attention_heads": 1}, "head_dim: expected an even number up to 65536"),
        ({"rms_norm_eps": 10**400}, r"rms_norm_eps: expected a number from 1\.18e-38 to 3\.4e\+38"),
        ({"rms_norm_eps": 1e-45}, "rms_norm_eps: expected a number from"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps: expected a positive number"),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn"}}, "rope_theta: expected more than 1 for yarn"),
    ],
)
def test_what_changes_the_mathematics_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        _read("llama", **changes)


def test_yarns_attn_factor_multiplies_its_temperature() -> None:
    """attn_factor multiplies the temperature, as in vLLM; DeepSeek-R1-0528-Qwen3-8B so gets the temperature 1."""
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

    def factor(**more: float) -> float:
        (rope,) = {layer.mixer.block.rope for layer in _read("qwen3", rope_scaling={**stretched, **more}).layers}
        return rope.attention_factor

    assert factor() == pytest.approx(0.1 * math.log(4) + 1)
    assert factor(attn_factor=0.8782488562869419) == pytest.approx(1.0)
    with pytest.raises(ConvertError, match=r"attn_factor: expected this or attention_factor, .* found both"):
        factor(attn_factor=0.9, attention_factor=1.0)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConvertError) as caught:
        _read("llama", hidden_act="relu", head_dim=7, residual_multiplier=2.0, rope_scaling={"type": "x"})
    for key in ("hidden_act", "head_dim", "residual_multiplier", "rope_scaling.rope_type"):
        assert key in str(caught.value)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({}, [0, 0, 0]),
        ({"sliding_window": 5}, [0, 0, 0]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, [0, 0, 5]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, [5, 5, 5]),
        ({"use_sliding_window": True}, [0, 0, 0]),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [5, 0, 5],
        ),
    ],
)
def test_windows_of_qwen(config: dict[str, Any], windows: list[int]) -> None:
    fields = ConfigFields(config)
    assert qwen_windows(fields, 3) == windows
    assert fields.problems == []


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["full_attention"] * 2},
        {"layer_types": ["full_attention", "full_attention", "linear_attention"]},
        {"layer_types": "full_attention"},
        {"layer_types": ["sliding_attention"] * 3},
    ],
)
def test_wrong_layer_types_are_errors(config: dict[str, Any]) -> None:
    fields = ConfigFields(config)
    qwen_windows(fields, 3)
    assert any("layer_types" in problem for problem in fields.problems)
