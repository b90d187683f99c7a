"""Inverse frequencies of RoPE against transformers' for every kind of scaling and many sizes."""

import re
from typing import Any

import numpy as np
import pytest
from transformers import Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope import read_rope, read_ropes_by_layer_type
from trtllm_lite.convert.fields.rope_types import RopeDefaults

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "llama3", "factor": 8.0, **_LLAMA3},
    {"rope_type": "llama3", "factor": 32.0, **_LLAMA3},
    {"rope_type": "llama3", "factor": 16.0, **_LLAMA3, "high_freq_factor": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512, "beta_fast": 8.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "longrope", "original_max_position_embeddings": 4096},
    {"rope_type": "longrope", "original_max_position_embeddings": 4096, "factor": 2.0},
    {"rope_type": "longrope", "original_max_position_embeddings": 131072},
    {"rope_type": "longrope", "original_max_position_embeddings": 4096, "attention_factor": 1.25},
    {"rope_type": "default", "partial_rotary_factor": 0.6},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.6},
]
MAX_POSITIONS = 131072


def _reference(parameters: dict[str, Any], head_dim: int) -> tuple[np.ndarray, float]:
    config = Phi3Config(
        head_dim=head_dim,
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        original_max_position_embeddings=parameters.get("original_max_position_embeddings", MAX_POSITIONS),
    )
    config.rope_parameters = dict(parameters)
    if parameters["rope_type"] == "default":
        rotary = Phi3RotaryEmbedding(config)
        return rotary.inv_freq.numpy(), rotary.attention_scaling
    inv_freq, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=MAX_POSITIONS)
    return inv_freq.numpy(), factor


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [10, 64, 128])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda parameters: parameters["rope_type"])
def test_equal_to_transformers(parameters: dict[str, Any], head_dim: int, theta: float) -> None:
    parameters = {**parameters, "rope_theta": theta}
    if parameters["rope_type"] == "longrope":
        random = np.random.default_rng(0)
        parameters |= {f"{kind}_factor": random.uniform(1, 9, head_dim // 2).tolist() for kind in ("short", "long")}
    fields = ConfigFields({"rope_parameters": parameters})
    rope = read_rope(fields, head_dim, MAX_POSITIONS, RopeDefaults(part=1.0))
    assert fields.problems == []
    inv_freq, factor = _reference(parameters, head_dim)
    stretched = parameters["rope_type"] == "longrope" and parameters["original_max_position_embeddings"] < MAX_POSITIONS
    assert (rope.long is not None) == stretched
    found = rope.inv_freq if rope.long is None else rope.long.inv_freq
    # The tolerance is a few units in the last place: numpy's and torch's float32 powers differ by one unit.
    np.testing.assert_allclose(np.array(found, np.float32), inv_freq, rtol=5e-7)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


def test_old_and_new_spellings_agree() -> None:
    old = ConfigFields({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0, "finetuned": True}})
    new = ConfigFields({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}})
    assert read_rope(old, 64, 4096) == read_rope(new, 64, 4096)
    assert old.problems == new.problems == []


@pytest.mark.parametrize("factor", [0.4, 1.5, 0.01])
def test_a_rotated_part_is_even(factor: float) -> None:
    fields = ConfigFields({"partial_rotary_factor": factor})
    read_rope(fields, 64, 4096, RopeDefaults(part=1.0))
    assert f"partial_rotary_factor: expected an even part of 64 elements, found {factor}" in fields.problems[0]


def test_a_scaling_that_says_nothing_is_none() -> None:
    for nothing in ({"type": "default"}, {"rope_type": "default", "type": "default"}, {}, None):
        fields = ConfigFields({"rope_theta": 5e5, "rope_scaling": nothing, "rope_parameters": {"rope_theta": 5e5}})
        assert read_rope(fields, 64, 4096) == read_rope(ConfigFields({"rope_theta": 5e5}), 64, 4096)
        assert fields.problems == []


def test_an_unsupported_kind_is_told_without_its_parameters() -> None:
    fields = ConfigFields({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "factor": 2.0}})
    read_rope(fields, 64, 4096)
    assert [problem.split(":")[0] for problem in fields.problems] == ["rope_scaling.rope_type"]


def test_each_kind_of_layer_has_its_own_in_old_and_new_spellings() -> None:
    thetas = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
    stretched = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": stretched}
    new = {"full_attention": {**stretched, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 5e3}}
    read = [ConfigFields(old), ConfigFields({"rope_parameters": new})]
    ropes = [read_ropes_by_layer_type(fields, 64, 4096, thetas) for fields in read]
    assert ropes[0] == ropes[1]
    assert ropes[0]["sliding_attention"] == read_rope(ConfigFields({"rope_theta": 5e3}), 64, 4096)
    full = {"rope_parameters": {**stretched, "rope_theta": 1e6}}
    assert ropes[0]["full_attention"] == read_rope(ConfigFields(full), 64, 4096)
    assert [problem for fields in read for problem in fields.problems] == []


def test_original_length_beside_the_parameters() -> None:
    """With a pretraining length at the config's top level, the factor is the maximum length divided by that length."""
    outside = ConfigFields({"original_max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn"}})
    inside = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert read_rope(outside, 64, 16384) == read_rope(ConfigFields({"rope_parameters": inside}), 64, 16384)


def test_frequency_factors_divide() -> None:
    """Llama 3.1's GGUF files store each unscaled frequency divided by the scaled frequency."""
    stretched = {"rope_type": "llama3", "factor": 8.0, **_LLAMA3}
    plain = np.array(read_rope(ConfigFields({}), 64, 4096).inv_freq)
    wanted = np.array(read_rope(ConfigFields({"rope_parameters": stretched}), 64, 131072).inv_freq)
    factors = {"rope_type": "frequency_factors", "factors": (plain / wanted).tolist()}
    np.testing.assert_allclose(read_rope(ConfigFields({"rope_parameters": factors}), 64, 4096).inv_freq, wanted, 2e-7)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, "found 'mrope', which is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor: expected 32 positive"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling.factor: expected a positive number, found none"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: expected a positive number, found none"),
        (
            {"rope_scaling": {"type": "linear", "factor": -1}},
            "rope_scaling.factor: expected a positive number, found -1",
        ),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [8, 8]}}, "mrope_section: .* is not mapped"),
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "rope_parameters.partial_rotary_factor: expected 1.0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: expected 1.0, found 1.5, which is not"),
        ({"rope_theta": 1e-37}, "rope_theta: 1e-37 and the other parameters of default RoPE give no finite angles"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-45}}, "rope_scaling.factor: expected a number from"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-37}}, "of linear RoPE give no finite angles"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention: .* is not mapped"),
        ({"rope_parameters": "yarn"}, "expected an object"),
        (
            {"rope_parameters": {"rope_type": "frequency_factors", "factors": [1.0]}},
            "factors: expected 32 positive numbers",
        ),
        (
            {"rope_parameters": {"factor": 2.0}, "rope_scaling": {"factor": 4.0}},
            "rope_scaling: contradicts rope_parameters",
        ),
        (
            {"rope_scaling": {**_LLAMA3, "type": "llama3", "factor": 8.0, "high_freq_factor": 0.5}},
            r"high_freq_factor: expected low_freq_factor \(1.0\) or more",
        ),
    ],
)
def test_refuses_what_it_cannot_map(config: dict[str, Any], message: str) -> None:
    fields = ConfigFields(config)
    read_rope(fields, 64, 4096)
    assert any(re.search(message, problem) for problem in fields.problems), fields.problems
    keys = [problem.split(":")[0] for problem in fields.problems]
    assert len(keys) == len(set(keys)), "a key is reported twice"
