"""Multimodal checkpoints are converted as the text models that they hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Llama4Config, Llama4ForConditionalGeneration

from tests.models import tiny_config
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.model_config import open_model_config
from trtllm_lite.errors import ConvertError

_VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48},
    **{"image_size": 28, "patch_size": 14, "vision_output_dim": 32},
    **{"projector_input_dim": 32, "projector_output_dim": 32},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Llama 4 with its vision model, as transformers saves it; its text model is saved beside it as ``text``."""
    torch.manual_seed(0)
    config = Llama4Config(text_config=tiny_config("llama4").to_dict(), vision_config=_VISION)
    whole = Llama4ForConditionalGeneration(config)
    whole.save_pretrained(tmp_path / "model")
    whole.language_model.save_pretrained(tmp_path / "text")
    return tmp_path / "model"


def _edit(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def test_network_and_weights_are_those_of_the_text_model(model: Path) -> None:
    _edit(model, torch_dtype="bfloat16")
    found = convert_checkpoint(str(model), model.parent / "found")
    assert found.config.architecture == "Llama4ForConditionalGeneration"
    assert found.describe() == "matrices in float32, the text model alone"
    convert_checkpoint(str(model.parent / "text"), model.parent / "expected")
    for name in ("network.onnx", "weights.safetensors"):
        assert (model.parent / "found" / name).read_bytes() == (model.parent / "expected" / name).read_bytes()


def test_the_config_alone_describes_the_text_model(model: Path) -> None:
    shapes = [open_model_config(folder / "config.json").network.graph for folder in (model, model.parent / "text")]
    initializers = [{name: value.shape for name, value in graph.initializers.items()} for graph in shapes]
    assert initializers[0] == initializers[1]


def test_architectures_that_are_no_names_are_refused(model: Path) -> None:
    _edit(model, architectures=[{}])
    with pytest.raises(ConvertError, match=r"'architectures' in the config of .* to name a class"):
        convert_checkpoint(str(model), model.parent / "found")


def test_keys_beside_the_text_model_count_unless_they_concern_images(model: Path) -> None:
    _edit(model, logit_softcap=3.0)
    with pytest.raises(ConvertError, match="logit_softcap"):
        convert_checkpoint(str(model), model.parent / "found")


def test_what_is_no_text_model_is_an_error(model: Path) -> None:
    _edit(model, text_config=[1])
    with pytest.raises(ConvertError, match=r"expected text_config in the config of .* to be an object, found \[1\]"):
        convert_checkpoint(str(model), model.parent / "found")


def test_tensors_of_unknown_parts_are_an_error(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    repeated = {"model.norm.weight": torch.ones(60)}  # as the text model's own is named behind its prefix
    save_file({**tensors, "audio_model.weight": torch.ones(3), **repeated}, model / "model.safetensors")
    with pytest.raises(ConvertError, match=r"unused \(2\): audio_model\.weight, language_model\.model\.norm\.weight"):
        convert_checkpoint(str(model), model.parent / "found")
