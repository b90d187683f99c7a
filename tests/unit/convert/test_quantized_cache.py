"""KV caches with scales in the checkpoint: the network rounds keys and values by them, engines store them rounded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from tests.models import save_tiny_model
from tests.mtp import save_tiny_mimo
from tests.onnx_runner import OnnxRunner
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.mapping import open_source
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.quantize.kv_cache import find_attentions, kv_cache_dtype_of
from trtllm_lite.runtime.sequence_runner import SequenceRunner

KEYS, VALUES = (0.011, 0.007), (0.013, 0.004)  # a scale for each layer
TOKENS = np.random.default_rng(0).integers(3, 60, 40).astype(np.int32)
_LARGEST = {"float8_e4m3fn": 448, "int8": 127}


def scheme(kind: str = "float", **others: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": kind, "strategy": "tensor", "dynamic": False, "symmetric": True, **others}


def compressed_tensors(cache: Any) -> dict[str, Any]:
    """Settings in the form of llm-compressor 0.14, for a model of which only the KV cache is quantized."""
    return {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": cache}


def write(directory: Path, settings: dict[str, Any], names: tuple[str, str] = ("k_scale", "v_scale")) -> Any:
    """Write a tiny model whose attention layers have bfloat16 scales called ``names``."""
    model = save_tiny_model("llama", directory / "model", num_hidden_layers=2)
    config = json.loads((directory / "model" / "config.json").read_text())
    (directory / "model" / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    change(directory, lambda tensors: tensors.update(scales_of(names)))
    return model


def scales_of(names: tuple[str, str]) -> dict[str, torch.Tensor]:
    return {
        f"model.layers.{layer}.self_attn.{name}": torch.tensor([scale], dtype=torch.bfloat16)
        for name, scales in zip(names, (KEYS, VALUES), strict=True)
        for layer, scale in enumerate(scales)
    }


def change(directory: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model" / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


class RoundedCache(DynamicCache):
    """A cache that rounds keys and values."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.rounded_to = dtype

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *rest: Any, **others: Any) -> Any:
        scales = (torch.tensor(scales[layer_idx]).bfloat16().float() for scales in (KEYS, VALUES))
        key, value = (self.round(x, scale) for x, scale in zip((key_states, value_states), scales, strict=True))
        return super().update(key, value, layer_idx, *rest, **others)

    def round(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        most = _LARGEST[self.rounded_to]
        bounded = (x / scale).clamp(-most, most)
        if self.rounded_to == "int8":
            return bounded.round() * scale
        return bounded.to(torch.float8_e4m3fn).float() * scale


@pytest.mark.parametrize(
    ("settings", "names", "dtype"),
    [
        (compressed_tensors(scheme()), ("k_scale", "v_scale"), "float8_e4m3fn"),
        (compressed_tensors(scheme("int")), ("k_scale", "v_scale"), "int8"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
            ("k_proj.k_scale", "v_proj.v_scale"),
            "float8_e4m3fn",
        ),
    ],
)
def test_engines_keep_the_caches_that_the_checkpoint_means(
    settings: dict[str, Any], names: tuple[str, str], dtype: str, tmp_path: Path
) -> None:
    model = write(tmp_path, settings, names)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    graph = load_network(tmp_path / "checkpoint").graph
    for layer, attention in enumerate(find_attentions(graph)):
        scales = [torch.tensor(scale[layer]).bfloat16().item() for scale in (KEYS, VALUES)]
        assert [(r.to, r.scale) for r in attention.roundings if r is not None] == [(dtype, scale) for scale in scales]
    limits = {"max_batch_size": 1, "max_seq_len": 64, "gather_context_logits": True}
    assert build_engine(tmp_path / "checkpoint", tmp_path / "engine", **limits).kv_cache.dtype == dtype
    ids = torch.tensor(TOKENS[None].astype(np.int64))
    with torch.no_grad():
        expected, plain = (model(ids, past_key_values=cache).logits[0].numpy() for cache in (RoundedCache(dtype), None))
    in_onnx = OnnxRunner(tmp_path / "checkpoint", 1, 64).step([TOKENS])[0]
    in_engine = np.concatenate(list(SequenceRunner(tmp_path / "engine").logits(TOKENS, 16)))
    for found in (in_onnx, in_engine):
        # Another order of summation occasionally rounds a key to the next number.
        assert np.std(found - expected) < 0.1 * np.std(expected - plain)


@pytest.mark.parametrize(
    ("cache", "note"),
    [
        (scheme(strategy="attn_head"), "KV cache as it is ('float8 by attn_head' is not supported)"),
        (scheme(dynamic=True), "KV cache as it is ('float8 dynamic' is not supported)"),
        (scheme(num_bits=4), "KV cache as it is ('float4 by tensor' is not supported)"),
        ("NVFP4", "KV cache as it is ('NVFP4' is not supported)"),
    ],
)
def test_caches_that_engines_lack_stay_as_they_are(cache: Any, note: str, tmp_path: Path) -> None:
    write(tmp_path, compressed_tensors(cache))
    source = open_source(str(tmp_path / "model"))
    assert source.quantization == f"compressed-tensors dense, {note}"
    assert source.cache == {}
    assert not [name for name in source.tensors if name.endswith("_scale")]


def test_no_scale_is_made_up(tmp_path: Path) -> None:
    write(tmp_path, compressed_tensors(scheme()))
    change(
        tmp_path, lambda tensors: [tensors.pop(f"model.layers.{n}.self_attn.{k}_scale") for n in (0, 1) for k in "kv"]
    )
    source = open_source(str(tmp_path / "model"))
    assert source.quantization == "compressed-tensors dense, KV cache as it is (FP8 without scales)"
    assert source.cache == {}


def test_expanded_checkpoints_have_plain_caches(tmp_path: Path) -> None:
    write(tmp_path, compressed_tensors(scheme()))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dequantize=True)
    assert kv_cache_dtype_of(load_network(tmp_path / "checkpoint").graph) is None


def test_scales_are_not_those_of_the_layer_that_drafts(tmp_path: Path) -> None:
    model, config = str(tmp_path / "model"), tmp_path / "model" / "config.json"
    save_tiny_mimo(tmp_path / "model")
    settings = {"quantization_config": compressed_tensors(scheme())}
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    scales = {
        f"model.layers.{layer}.self_attn.{what}_scale": torch.tensor([0.1]) for layer in range(3) for what in "kv"
    }
    change(tmp_path, lambda tensors: tensors.update(scales))
    convert_checkpoint(model, tmp_path / "checkpoint", draft_model_dir=model)
    convert_checkpoint(model, tmp_path / "layer-checkpoint", target_model_dir=model)
    graphs = [load_network(tmp_path / name).graph for name in ("checkpoint", "layer-checkpoint")]
    assert [kv_cache_dtype_of(graph) for graph in graphs] == ["fp8", None]


SCALE = "model.layers.1.self_attn.v_scale"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda tensors: tensors.update({SCALE.replace("v_scale", "v_proj.v_scale"): torch.ones(1)}),
            "are scales of one KV cache: expected one",
        ),
        (
            lambda tensors: [
                tensors.update(
                    {f"model.layers.7.self_attn.{k}_scale": tensors.pop(f"model.layers.1.self_attn.{k}_scale")}
                )
                for k in "kv"
            ],
            r"of the layers \[0, 7\], and its layers with such caches are \[0, 1\]",
        ),
        (lambda tensors: tensors.pop(SCALE), "a KV cache of FP8, and there is no v_scale of layer 1"),
        (
            lambda tensors: tensors.update({SCALE: torch.tensor(0.0)}),
            f"{SCALE}: expected .* positive number, found .*0.0",
        ),
        (lambda tensors: tensors.update({SCALE: torch.ones(2)}), f"{SCALE}: expected .* found float32 \\[2\\]"),
        (lambda tensors: tensors.update({SCALE: torch.ones(1, dtype=torch.int32)}), f"{SCALE}: expected .* int32"),
        (
            lambda tensors: [tensors.pop(f"model.layers.1.self_attn.{k}_scale") for k in "kv"],
            r"of the layers \[0\], and its layers with such caches are \[0, 1\]",
        ),
    ],
)
def test_scales_that_are_damaged(edit: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, compressed_tensors(scheme()))
    change(tmp_path, edit)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
