"""Multimodal checkpoints are converted to the text models that they contain."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Exaone4_5_Config,
    Exaone4_5_ForConditionalGeneration,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Llama4Config,
    Llama4ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from tests.models import VOCAB_SIZE, tiny_config, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.quantized_writer import LAYOUTS, write_quantized
from tests.qwen_mtp import random_layer
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.family import Family, all_families
from trtllm_lite.convert.model_config import open_model_config
from trtllm_lite.errors import ConvertError

_VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48},
    **{"image_size": 28, "patch_size": 14},
}
_LLAMA4_VISION = {**_VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
_SIGLIP = {**_VISION, "model_type": "siglip_vision_model"}
# Classes of model and config, and config keys outside of the text model.
_WHOLES: dict[str, tuple[type[PreTrainedModel], Any, dict[str, Any]]] = {
    "llama4": (Llama4ForConditionalGeneration, Llama4Config, {"vision_config": _LLAMA4_VISION}),
    "gemma3": (
        Gemma3ForConditionalGeneration,
        Gemma3Config,
        {"vision_config": _SIGLIP, "mm_tokens_per_image": 4},
    ),
    "mistral": (
        Mistral3ForConditionalGeneration,
        Mistral3Config,
        {"vision_config": {**_VISION, "head_dim": 16}, "tie_word_embeddings": False},
    ),
}
_QWEN_VISION = {
    **{"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14},
    **{"out_hidden_size": 60, "num_position_embeddings": 16},
}
_WHOLES["qwen3_5"] = Qwen3_5ForConditionalGeneration, Qwen3_5Config, {"vision_config": _QWEN_VISION}
_WHOLES["qwen3_5_moe"] = Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig, {"vision_config": _QWEN_VISION}
_WHOLES["ministral3"] = _WHOLES["mistral"]
_WHOLES["exaone4"] = (
    Exaone4_5_ForConditionalGeneration,
    Exaone4_5_Config,
    {"vision_config": {**_QWEN_VISION, "num_key_value_heads": 2}},
)
_WHOLES["gemma4_unified"] = (
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedConfig,
    {"vision_config": {"patch_size": 4, "mm_embed_dim": 60, "mm_posemb_size": 8, "output_proj_dims": 60}},
)
_WHOLES["deepseek_v3"] = (
    Kimi_K25ForConditionalGeneration,
    Kimi_K25Config,
    {
        "vision_config": {**_VISION, "pos_emb_height": 4, "pos_emb_width": 4},
        **{"projection_hidden_size": 32, "tie_word_embeddings": False},
    },
)
_LATER_NAMES = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
_LATER_NAMES |= {part: f"model.{part}" for part in ("vision_tower.", "multi_modal_projector.")}


def _whole(family: str) -> PreTrainedModel:
    """A tiny multimodal model of ``family``, whose text model is that of :func:`tiny_model`."""
    make, make_config, others = _WHOLES[family]
    torch.manual_seed(0)
    whole = make(make_config(text_config=tiny_config(family).to_dict(), **others)).eval()
    text = tiny_model(family)
    whole.get_decoder().config._experts_implementation = "eager"  # others want multiples of four features
    whole.get_decoder().load_state_dict(text.get_decoder().state_dict())
    whole.get_output_embeddings().load_state_dict(text.get_output_embeddings().state_dict())
    return whole


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Llama 4 with its vision model, saved by transformers; the directory text beside it holds its text model."""
    torch.manual_seed(0)
    config = Llama4Config(text_config=tiny_config("llama4").to_dict(), vision_config=_LLAMA4_VISION)
    whole = Llama4ForConditionalGeneration(config)
    whole.save_pretrained(tmp_path / "model")
    whole.language_model.save_pretrained(tmp_path / "text")
    return tmp_path / "model"


def _edit(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("family", ["gemma3", "mistral", "ministral3"])
@pytest.mark.parametrize("later_names", [False, True])
def test_logits_equal_transformers(family: str, later_names: bool, tmp_path: Path) -> None:
    """Tensors have the names of either convention: transformers 4.52 renamed them."""
    whole = _whole(family)
    whole.save_pretrained(tmp_path / "model")
    if later_names:
        file = tmp_path / "model" / "model.safetensors"
        save_file({_later_name(name): tensor for name, tensor in load_file(file).items()}, file)
    converted = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert (converted.config.family, converted.is_text_part) == (family, True)
    tokens = torch.randint(VOCAB_SIZE, (13,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits")


_PUBLISHED: dict[str, dict[str, Any]] = {
    "exaone4": {
        **{"model_type": "exaone4_5_text", "num_nextn_predict_layers": 1, "sliding_window_pattern": "LLLG"},
        "layer_types": [*("sliding_attention", "full_attention", "sliding_attention"), "full_attention"],
    },
    "deepseek_v3": {"model_type": "kimi_k2"},
    "gemma4_unified": {
        **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB_SIZE, "enable_moe_block": False},
        **{"num_experts": None, "moe_intermediate_size": None, "top_k_experts": None},
    },
}
_BESIDE: dict[str, dict[str, Any]] = {
    "exaone4": {},
    "gemma4_unified": {},
    "deepseek_v3": {
        **{"architectures": ["KimiK25ForConditionalGeneration"], "media_placeholder_token_id": 7},
        **{"ignore_index": -100, "use_unified_vision_chunk": True, "video_placeholder": "<|video|>"},
    },
}


_LAYERS = "language_model.model.layers."


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("family", _PUBLISHED)
def test_text_models_of_later_classes(family: str, published: bool, tmp_path: Path) -> None:
    """Published configs say more, and name classes and types otherwise; EXAONE 4.5 also has a layer that drafts."""
    whole = _whole(family)
    whole.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    # transformers renames layers of Kimi's text model as if they were the vision model's.
    tensors = {name.replace("language_model.model.blocks.", _LAYERS): each for name, each in load_file(file).items()}
    if published:
        text = {**tiny_config(family).to_dict(), **_PUBLISHED[family]}
        _edit(tmp_path / "model", text_config=text, **_BESIDE[family])
        tensors |= {"mtp.norm.weight": torch.ones(60)} if family == "exaone4" else {}
    save_file(tensors, file)
    converted = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert (converted.config.family, converted.is_text_part) == (family, True)
    tokens = torch.randint(VOCAB_SIZE, (13,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits")


_MEDIA_IDS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
_VISIONS_OF_QWEN = {
    "qwen2_vl": {"depth": 1, "embed_dim": 32, "hidden_size": 44, "num_heads": 2, "patch_size": 14},
    "qwen2_5_vl": {**_QWEN_VISION, "out_hidden_size": 44},
    "qwen3_vl": {**_QWEN_VISION, "out_hidden_size": 44, "deepstack_visual_indexes": []},
    "qwen3_vl_moe": {**_QWEN_VISION, "out_hidden_size": 44, "deepstack_visual_indexes": []},
}
_QWENS_THAT_SEE: dict[str, tuple[type[PreTrainedModel], Any, str]] = {
    "qwen2_vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig, "qwen2"),
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, "qwen2"),
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLConfig, "qwen3"),
    "qwen3_vl_moe": (Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig, "qwen3_moe"),
}


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", _QWENS_THAT_SEE)
def test_qwens_that_see(name: str, published: bool, tmp_path: Path) -> None:
    """Published Qwen2-VL and 2.5-VL have no text_config, and name the rotation by three positions a type of RoPE.

    The matrices of experts of published Qwen3-VL are [in, out].
    """
    make, make_config, family = _QWENS_THAT_SEE[name]
    torch.manual_seed(0)
    text = {**tiny_config(family).to_dict(), "model_type": f"{name}_text"}
    half = (text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]) // 2
    axes = {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    text["rope_parameters"] = {**text["rope_parameters"], "rope_type": "default", **axes}
    whole = make(make_config(text_config=text, vision_config=_VISIONS_OF_QWEN[name], **_MEDIA_IDS)).eval()
    whole.get_decoder().config._experts_implementation = "eager"  # others want multiples of four features
    whole.save_pretrained(tmp_path / "model")
    if published and name == "qwen3_vl_moe":
        file = tmp_path / "model" / "model.safetensors"
        save_file({name: _turned(name, tensor) for name, tensor in load_file(file).items()}, file)
    if published and name.startswith("qwen2"):
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        own = config.pop("text_config")
        rope = own.pop("rope_parameters")
        own |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": "mrope", **axes}}
        kept = {**own, **config, "vision_token_id": 9}
        (tmp_path / "model" / "config.json").write_text(json.dumps(kept))
    converted = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert (converted.config.family, converted.is_text_part) == (family, True)
    tokens = torch.randint(10, VOCAB_SIZE, (13,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits")


def _turned(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous() if ".mlp.experts." in name else tensor


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_qwens_of_later_releases(family: str, stacked: bool, tmp_path: Path) -> None:
    """Published files also hold a layer that drafts; those in 16 bits hold all experts of a layer in two tensors."""
    whole = _whole(family)
    whole.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    layer = random_layer(tiny_config(family))
    tensors = {**load_file(file), **{f"mtp.{name}": tensor for name, tensor in layer.items()}}
    assert any(name.startswith("model.visual.") for name in tensors)
    if stacked:
        tensors = {name: each for name, each in tensors.items() if ".mlp.experts." not in name or name[:4] == "mtp."}
        tensors |= {name: tensor for name, tensor in whole.state_dict().items() if ".mlp.experts." in name}
    save_file(tensors, file)
    if stacked:
        _edit(tmp_path / "model", text_config=_as_published(family))
    model = str(tmp_path / "model")
    drafting = convert_checkpoint(model, tmp_path / "layer", target_model_dir=model)
    assert (drafting.config.family, drafting.is_text_part) == (f"{family}_mtp", True)
    converted = convert_checkpoint(model, tmp_path / "checkpoint")
    assert (converted.config.family, converted.is_text_part) == (family, True)
    tokens = torch.randint(VOCAB_SIZE, (70,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits", RECURRENT_TOLERANCES)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_qwens_in_fp8_tiles(family: str, tmp_path: Path) -> None:
    """Published files leave gates, convolutions, norms and the vision model in 16 bits, and quantize what drafts."""
    inner = "moe_intermediate_size" if family == "qwen3_5_moe" else "intermediate_size"
    sizes = {"hidden_size": 192, "linear_value_head_dim": 48, inner: 160}
    model = write_quantized(tiny_model(family, **sizes), tmp_path / "model", LAYOUTS["fp8 in tiles"])
    text = json.loads((tmp_path / "model" / "config.json").read_text())
    settings = {**text.pop("quantization_config"), "modules_to_not_convert": ["lm_head", "model.visual.blocks.0.attn"]}
    whole = {"architectures": [f"{'Qwen3_5Moe' if 'moe' in family else 'Qwen3_5'}ForConditionalGeneration"]}
    whole |= {"vision_config": _QWEN_VISION, "image_token_id": 7, "quantization_config": settings, "text_config": text}
    (tmp_path / "model" / "config.json").write_text(json.dumps(whole))
    file = tmp_path / "model" / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in load_file(file).items()}
    tensors["mtp.layers.0.mlp.up_proj.weight"] = torch.ones(224, 192).to(torch.float8_e4m3fn)
    tensors |= {"mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(2, 2), "model.visual.a.weight": torch.ones(3)}
    save_file(tensors, file)
    converted = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert (converted.config.family, converted.quantization) == (family, "fp8 in tiles of 128x128, weights only")
    tokens = torch.randint(VOCAB_SIZE, (13,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens[None], use_cache=False).logits[0].numpy()
    [found] = OnnxRunner(tmp_path / "checkpoint", 1, len(tokens)).step([tokens.tolist()])
    assert_close(found, expected, "float32", "logits", RECURRENT_TOLERANCES)


def _as_published(family: str) -> dict[str, Any]:
    """The text model's config with the further keys of published models."""
    config = tiny_config(family).to_dict()
    rope = {**config["rope_parameters"], "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    said = {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "full_attention_interval": 4}
    drafting = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    return {**config, **said, **drafting, "rope_parameters": rope}


def _later_name(name: str) -> str:
    """The name of a tensor in files of later releases, which renamed all tensors of these models."""
    [(old, new)] = [(old, new) for old, new in _LATER_NAMES.items() if name.startswith(old)]
    return new + name.removeprefix(old)


@pytest.mark.parametrize("name", _WHOLES)
def test_defaults_are_those_of_transformers(name: str) -> None:
    family = all_families()[name]
    usual = type(tiny_config(family.name))()
    assert usual.model_type == (family.model_type or family.name)
    _check_defaults(family, usual)


@pytest.mark.parametrize("name", _QWENS_THAT_SEE)
def test_defaults_of_qwens_that_see(name: str) -> None:
    _, make_config, family = _QWENS_THAT_SEE[name]
    _check_defaults(all_families()[family], make_config().text_config)


def _check_defaults(family: Family, usual: PreTrainedConfig) -> None:
    assert family.multimodal is not None
    found = {key: value for key, value in family.multimodal.defaults.items() if hasattr(usual, key)}
    assert found == {key: getattr(usual, key) for key in found}


@pytest.mark.parametrize("says", [False, True])
def test_the_head_is_tied_if_there_is_none_where_the_config_contradicts_itself(says: bool, tmp_path: Path) -> None:
    """transformers 5 saves contradictory configs and follows their outer level; older releases follow text_config."""
    _whole("mistral").save_pretrained(tmp_path / "model")  # with a separate LM head
    file = tmp_path / "model" / "model.safetensors"
    text = tiny_config("mistral").to_dict()
    _edit(tmp_path / "model", text_config={**text, "tie_word_embeddings": says}, tie_word_embeddings=not says)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "untied")
    tensors = load_file(file)
    del tensors["language_model.lm_head.weight"]
    save_file(tensors, file)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "tied")
    sizes = {name: (tmp_path / name / "weights.safetensors").stat().st_size for name in ("tied", "untied")}
    assert 0 <= sizes["untied"] - sizes["tied"] - VOCAB_SIZE * text["hidden_size"] * 4 < 1000


@pytest.mark.parametrize("found", ["qwen3", ["mistral"]])
def test_a_text_model_of_another_family_is_refused(found: object, tmp_path: Path) -> None:
    _whole("mistral").save_pretrained(tmp_path / "model")
    _edit(tmp_path / "model", text_config={**tiny_config("mistral").to_dict(), "model_type": found})
    message = f"to have the model_type ministral3 or mistral, found {found!r}, which is not supported"
    with pytest.raises(ConvertError, match=re.escape(message)):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "found")


def test_a_name_twice_is_an_error(tmp_path: Path) -> None:
    _whole("mistral").save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file({**load_file(file), "model.language_model.norm.weight": torch.ones(60)}, file)
    with pytest.raises(ConvertError, match=r"unused \(1\): (model\.)?language_model\.(model\.)?norm\.weight"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "found")


def test_network_and_weights_are_those_of_the_text_model(model: Path) -> None:
    _edit(model, torch_dtype="bfloat16")
    found = convert_checkpoint(str(model), model.parent / "found")
    assert found.config.architecture == "Llama4ForCausalLM"
    assert found.describe() == "matrices in float32, the text model alone"
    convert_checkpoint(str(model.parent / "text"), model.parent / "expected")
    for name in ("network.onnx", "weights.safetensors"):
        assert (model.parent / "found" / name).read_bytes() == (model.parent / "expected" / name).read_bytes()


@pytest.mark.parametrize("within", [False, True])
def test_quantized_layers_are_those_of_the_text_model(within: bool, tmp_path: Path) -> None:
    """The whole model's config says how layers of the text model are quantized, or text_config, as in Kimi K2.5."""
    model = tiny_model("ministral3", hidden_size=64, intermediate_size=96)
    write_quantized(model, tmp_path / "text", LAYOUTS["fp8 static of transformers"])
    text = json.loads((tmp_path / "text" / "config.json").read_text())
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "vision_config": {"hidden_size": 32}}
    if not within:
        whole["quantization_config"] = text.pop("quantization_config")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**whole, "text_config": text}))
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**named, "vision_tower.ln_pre.weight": torch.ones(32)}, tmp_path / "model" / "model.safetensors")
    for name in ("text", "model"):
        converted = convert_checkpoint(str(tmp_path / name), tmp_path / f"{name}-checkpoint")
        assert converted.quantization == "fp8"
    for name in ("network.onnx", "weights.safetensors"):
        assert (tmp_path / "model-checkpoint" / name).read_bytes() == (tmp_path / "text-checkpoint" / name).read_bytes()


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
    repeated = {"model.norm.weight": torch.ones(60)}  # the name of the text model's norm without its prefix
    save_file({**tensors, "audio_model.weight": torch.ones(3), **repeated}, model / "model.safetensors")
    with pytest.raises(ConvertError, match=r"unused \(2\): audio_model\.weight, language_model\.model\.norm\.weight"):
        convert_checkpoint(str(model), model.parent / "found")
