"""Gemma 3n as it is published: with other parts, with keys of older configs, with keys and values that none reads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3nTextConfig

from tests.models import VOCAB_SIZE, save_tiny_model, tiny_config
from tests.onnx_runner import OnnxRunner
from tests.tolerances import assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.family import all_families
from trtllm_lite.convert.features import FC, NUM_FEATURES, with_features
from trtllm_lite.convert.mapping import read_model
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.decoder import Decoder

_OTHER_PARTS = ("vision_tower.timm_model.a", "audio_tower.conformer.0.b", "embed_vision.embedding", "embed_audio.c")


def _publish(directory: Path) -> None:
    """Change a saved text model to what is published: names, keys of configs, and tensors that no one reads."""
    config = json.loads((directory / "config.json").read_text())
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"]["rope_theta"]
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    config |= {"rope_scaling": None, "query_pre_attn_scalar": 256, "altup_lr_multiplier": 1.0}
    whole: dict[str, Any] = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    whole |= {"text_config": config, "vision_config": {"hidden_size": 20}, "audio_config": {"hidden_size": 16}}
    whole |= {"audio_soft_tokens_per_image": 188, "image_token_id": 395, "boa_token_id": 390}
    (directory / "config.json").write_text(json.dumps(whole))
    file = directory / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in load_file(file).items()}
    tensors |= {f"model.{name}.weight": torch.ones(3, 2) for name in _OTHER_PARTS}
    for number in (4, 5):  # which read the keys and values of earlier layers
        for name, shape in (("k_proj", (28, 60)), ("v_proj", (28, 60)), ("k_norm", (14,))):
            tensors[f"model.language_model.layers.{number}.self_attn.{name}.weight"] = torch.ones(shape)
    save_file(tensors, file)


def test_published_models_give_the_logits_of_transformers(tmp_path: Path) -> None:
    """Tokens without inputs of layers have those of token 0."""
    model = save_tiny_model("gemma3n", tmp_path / "model")
    _publish(tmp_path / "model")
    converted = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert (converted.config.family, converted.is_text_part) == ("gemma3n", True)
    tokens = torch.randint(VOCAB_SIZE, (13,), generator=torch.Generator().manual_seed(1))
    tokens[3:6] = torch.tensor([VOCAB_SIZE - 5, 0, VOCAB_SIZE - 1])
    with torch.no_grad():
        expected = model(input_ids=tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits")


def test_keys_of_a_layer_of_its_own_are_needed(tmp_path: Path) -> None:
    save_tiny_model("gemma3n", tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if "layers.2.self_attn.k_norm" not in name}, file)
    with pytest.raises(ConvertError, match=r"missing \(1\): model\.layers\.2\.self_attn\.k_norm\.weight"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


def test_defaults_are_those_of_transformers() -> None:
    family, usual = all_families()["gemma3n"], Gemma3nTextConfig()
    assert family.multimodal is not None
    widths = {"intermediate_size": [family.multimodal.defaults["intermediate_size"]] * usual.num_hidden_layers}
    defaults = {**family.multimodal.defaults, **widths}
    assert defaults == {key: getattr(usual, key) for key in defaults}
    assert usual.model_type == family.model_type == tiny_config("gemma3n").model_type


def test_no_head_drafts_from_four_streams() -> None:
    config = {**tiny_config("gemma3n").to_dict(), "architectures": ["Gemma3nForCausalLM"]}
    model = Source("m", config, {}, {}, np.zeros, None, {})
    _, _, decoder = read_model(model)
    assert isinstance(decoder, Decoder)
    head = replace(model, description="h", tensors={FC: TensorInfo("float32", (60, NUM_FEATURES * 60))})
    with pytest.raises(ConvertError, match="expected a model with one residual stream, from which h drafts, found 4"):
        with_features(model, decoder, head)
