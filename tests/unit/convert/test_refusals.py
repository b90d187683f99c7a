"""A model of no known family is refused first, with the nearest family and what no family maps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from tests.models import save_tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.family import all_families
from trtllm_lite.errors import ConvertError

_SIZES = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3}
_HEADS = {"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
_VISION = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}


def _mamba() -> PreTrainedModel:
    return transformers.MambaForCausalLM(transformers.MambaConfig(**_SIZES, state_size=8))


def _rwkv() -> PreTrainedModel:
    return transformers.RwkvForCausalLM(transformers.RwkvConfig(**_SIZES, attention_hidden_size=64))


def _jamba() -> PreTrainedModel:
    sizes = {**_SIZES, **_HEADS, "num_hidden_layers": 8, "mamba_d_state": 8, "mamba_dt_rank": 4, "num_experts": 4}
    return transformers.JambaForCausalLM(transformers.JambaConfig(**sizes))


def _vip_llava() -> PreTrainedModel:
    config = transformers.VipLlavaConfig(
        text_config=transformers.Qwen2Config(**_SIZES, **_HEADS), vision_config=transformers.CLIPVisionConfig(**_VISION)
    )
    return transformers.VipLlavaForConditionalGeneration(config)


def _refusal(path: Path) -> str:
    output = path.parent / "checkpoint"
    with pytest.raises(ConvertError) as caught:
        convert_checkpoint(str(path), output)
    assert not output.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "nearest", "tensors", "keys"),
    [
        (
            _mamba,
            "the family nemotron_h (30 of its tensors differ)",
            "(9): backbone.layers.{0-2}.mixer.dt_proj.bias, backbone.layers.{0-2}.mixer.dt_proj.weight, backbone.",
            "(5): state_size, time_step_init_scheme, time_step_rank, time_step_scale, use_associative_scan",
        ),
        (
            _rwkv,
            "none, as no family has any of its 60 tensors",
            "(60): head.weight, rwkv.blocks.{0-2}.attention.key.weight, ",
            "(3): attention_hidden_size, context_length, rescale_every",
        ),
        (
            _jamba,
            "the family falcon_h1 (",
            "(42): model.layers.{0-3,5-7}.mamba.b_layernorm.weight, ",
            "(6): attn_layer_offset, attn_layer_period, expert_layer_offset, ",
        ),
        (
            _vip_llava,
            "the family qwen2 (all tensors of its text model fit)",
            "",
            "(6): image_seq_length, image_token_index, projector_hidden_act, projector_layernorm_eps, ",
        ),
    ],
)
def test_the_nearest_family_comes_first_and_then_what_none_maps(
    make: Callable[[], PreTrainedModel], nearest: str, tensors: str, keys: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path / "model")
    lines = _refusal(tmp_path / "model").split("\n  ")
    assert lines[0].startswith(f"architecture {type(model).__name__} is not supported, expected one of")
    assert lines[1].startswith(f"nearest by tensors: {nearest}")
    expected = {"tensors that no family maps ": tensors, "config keys that no family reads ": keys}
    for start, value in expected.items():
        found = [line.removeprefix(start) for line in lines if line.startswith(start)]
        assert found == [] if not value else found[0].startswith(value)
    assert lines[-1].startswith("to add a family: docs/contributing/family.md")
    assert all(len(line) < 1000 for line in lines)


def test_lists_are_cut_with_a_count(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    odd = {f"odd_{number:02}": number + 1 for number in range(20)}
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **odd, "architectures": ["Odd"]}))
    message = _refusal(tmp_path / "model")
    first = ", ".join(f"odd_{number:02}" for number in range(6))
    assert f"config keys that no family reads (20): {first} and 14 more\n" in message


# What else is wrong: contents of files, None for one that is absent, and keys of the config.
_WRONG: dict[str, tuple[dict[str, bytes | None], dict[str, Any]]] = {
    "quantized": ({}, {"quantization_config": {"quant_method": "hqq"}}),
    "no weights": ({"model.safetensors": None}, {}),
    "cut weights": ({"model.safetensors": b"\x10\0\0"}, {}),
    "tokenizer": ({"tokenizer.json": b"{"}, {}),
    "layers": ({}, {"num_hidden_layers": 4000}),
}


@pytest.mark.parametrize("wrong", _WRONG)
@pytest.mark.parametrize("whole", ["OddForCausalLM", "Gemma3ForConditionalGeneration"])
def test_that_a_model_is_not_supported_comes_before_anything_else(wrong: str, whole: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_tiny_model("llama", path)
    files, changes = _WRONG[wrong]
    for name, content in files.items():
        (path / name).unlink()
        if content is not None:
            (path / name).write_bytes(content)
    config = {**json.loads((path / "config.json").read_text()), **changes}
    (path / "config.json").write_text(json.dumps(config))
    assert "not supported" not in _refusal(path)
    odd = {"architectures": [whole], "text_config": {"model_type": "odd"}}
    (path / "config.json").write_text(json.dumps({**config, **odd}))
    message = _refusal(path)
    if whole == "OddForCausalLM":
        assert message.startswith("architecture OddForCausalLM is not supported")
        assert ("(all tensors of its text model fit)" in message) == (wrong in ("quantized", "tokenizer"))
    else:
        assert "to have the model_type gemma3_text, found 'odd', which is not supported" in message


def _write(path: Path, architecture: str, names: list[str], keys: dict[str, int]) -> None:
    """Write a GGUF file with tensors of these ``names``, {} for the number of each of three layers."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for name in dict.fromkeys(name.format(layer) for name in names for layer in range(3)):
        writer.add_tensor(name, np.ones((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_MAMBA = ["token_embd.weight", "output_norm.weight", "blk.{}.ssm_in.weight", "blk.{}.ssm_x.weight", "blk.{}.ssm_a"]
_RWKV = ["emb.weight", "blk.{}.time_mix_w1.weight", "blk.{}.channel_mix_key.weight"]
_QWEN = ["token_embd.weight", "blk.{}.attn_q.weight", "blk.{}.attn_q.bias", "blk.{}.ffn_gate.weight"]


@pytest.mark.parametrize("damage", ["none", "cut", "parts"])
@pytest.mark.parametrize(
    ("architecture", "names", "lines"),
    [
        ("mamba", _MAMBA, ["which has 4 of its 5 kinds of tensors", "(3): blk.{0-2}.ssm_x.weight"]),
        ("rwkv6", _RWKV, ["nearest by tensors: none, as no family", "(7): blk.{0-2}.channel_mix_key.weight, "]),
        ("qwen2audio", _QWEN, ["the family qwen2 (qwen2), which has 3 of its 3 kinds of tensors"]),
    ],
)
def test_gguf_files_of_other_architectures(
    architecture: str, names: list[str], lines: list[str], damage: str, tmp_path: Path
) -> None:
    path = tmp_path / ("m-00001-of-00003.gguf" if damage == "parts" else "m.gguf")
    _write(path, architecture, names, {"block_count": 3, "odd.size": 7})
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    message = _refusal(path)
    known = {name for family in all_families().values() if family.gguf for name in family.gguf.architectures}
    what = f"{path} has the GGUF architecture '{architecture}', expected one of {', '.join(sorted(known))}"
    assert message.startswith(f"{what}\n  nearest by tensors: ")
    for line in lines:
        assert line in message
    assert ("tensors that no family maps" in message) == (len(lines) == 2)
    assert f"config keys that no family reads (1): {architecture}.odd.size\n" in message
    assert message.endswith("in a package of your own: docs/contributing/out-of-tree.md")
