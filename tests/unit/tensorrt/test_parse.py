"""What TensorRT's parser makes of networks: their inputs and outputs, caches, RoPE and attention."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from tests.models import NETWORK_FAMILIES, VOCAB_SIZE
from tests.unit.quantize.made_up import made_up
from tests.unit.tensorrt.shapes import ARCHS, LIMITS, overrides, rewritten, save_checkpoint
from trtllm_lite.builder.tensorrt import worker
from trtllm_lite.builder.tensorrt.library import find_library
from trtllm_lite.builder.tensorrt.request import write_request
from trtllm_lite.quantize.network import Recipe, quantize_network

_CACHES = [f"{what}.{layer}" for layer in range(2) for what in ("key", "value")]
_PROFILES = (
    {"input_ids": [[1, 1], [1, 32], [1, 64]], "past_lens": [[1], [1], [1]], "logits_indices": [[1], [1], [1]]},
    {"input_ids": [[1, 1], [3, 1], [3, 1]], "past_lens": [[1], [3], [3]], "logits_indices": [[1], [3], [3]]},
)


def _ignore(done: int, total: int) -> None:
    del done, total


@pytest.fixture
def trt() -> Any:
    return find_library().module


class _Parsed:
    """The network that TensorRT made of a request, which lies in the working directory."""

    def __init__(self, trt: Any, model: ir.Model, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        graph = rewritten(model, "bfloat16")[0].graph
        write_request(directory, graph, LIMITS, ARCHS, find_library(), _ignore)
        monkeypatch.chdir(directory)
        self.request = json.loads((directory / worker.REQUEST).read_text())
        logger = trt.Logger(trt.Logger.ERROR)
        self._builder = trt.Builder(logger)
        self.network = self._builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert worker.parse(trt, self.network, logger, self.request["weights"])

    def layers(self, kind: Any) -> list[Any]:
        every = (self.network.get_layer(number) for number in range(self.network.num_layers))
        return [layer for layer in every if layer.type == kind]


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_every_family_has_its_inputs_outputs_and_layers(
    family: str, trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = _Parsed(trt, save_checkpoint(tmp_path, family, "bfloat16").model, tmp_path, monkeypatch)
    network = parsed.network
    kv_heads = overrides(family).get("num_key_value_heads", 4)
    cache = (trt.bfloat16, (-1, kv_heads, 64, 32))
    inputs = [network.get_input(number) for number in range(network.num_inputs)]
    assert {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in inputs} == {
        **dict.fromkeys(("input_ids", "position_ids"), (trt.int64, (-1, -1))),
        **dict.fromkeys(("past_lens", "logits_indices"), (trt.int64, (-1,))),
        **{f"past_{name}": cache for name in _CACHES},
    }
    outputs = [network.get_output(number) for number in range(network.num_outputs)]
    assert {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in outputs} == {
        "logits": (trt.float32, (-1, VOCAB_SIZE)),
        **{f"present_{name}": cache for name in _CACHES},
    }
    _check_profiles(parsed.request["profiles"], kv_heads)
    updates = parsed.layers(trt.LayerType.KV_CACHE_UPDATE)
    # TensorRT updates a cache in place if this layer reads a network input and writes a network output.
    assert sorted((layer.get_input(0).name, layer.get_output(0).name) for layer in updates) == [
        (f"past_{name}", f"present_{name}") for name in sorted(_CACHES)
    ]
    assert all(layer.get_input(0).is_network_input and layer.get_output(0).is_network_output for layer in updates)
    rotated = Counter(layer.name.rpartition(".")[2] for layer in parsed.layers(trt.LayerType.ROTARY_EMBEDDING))
    layers = {"gpt2": 0, "smollm3": 1, "exaone4": 1, "cohere2": 1}.get(family, 2)  # number of layers with RoPE
    assert rotated == ({"q_rope": layers, "k_rope": layers} if layers else {})
    num_attentions = 0 if family in ("gemma2", "vaultgemma") else 2  # soft caps have no kernel
    assert len(parsed.layers(trt.LayerType.ATTENTION_INPUT)) == num_attentions


def _check_profiles(found: list[dict[str, Any]], kv_heads: int) -> None:
    """Compare the minimum, optimum and maximum shapes of the profiles of context and generation."""
    for profile, tokens in zip(found, _PROFILES, strict=True):
        rows = [extents[0] for extents in tokens["past_lens"]]
        caches = [[batch, kv_heads, 64, 32] for batch in rows]
        assert profile == {
            **tokens,
            "position_ids": tokens["input_ids"],
            **{f"past_{name}": caches for name in _CACHES},
        }


@pytest.mark.parametrize(
    ("qformat", "stored"),
    [
        *((name, "int4") for name in ("int4_wo", "int4_awq", "int4_gptq")),
        *((name, "fp8") for name in ("fp8", "fp8_gptq", "fp8_rowwise", "fp8_rowwise_gptq")),
        ("int8_sq", "int8"),
    ],
)
def test_quantized_weights_stay_as_they_are(
    qformat: str, stored: str, trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_checkpoint(tmp_path, "llama", "bfloat16").model
    quantized, _ = quantize_network(model, Recipe(qformat, group_size=32), made_up(model))
    parsed = _Parsed(trt, quantized, tmp_path, monkeypatch)
    weights = {layer.get_output(0).name for layer in parsed.layers(trt.LayerType.CONSTANT)}
    read = [layer.get_input(0) for layer in parsed.layers(trt.LayerType.DEQUANTIZE)]
    types = [tensor.dtype for tensor in read if tensor.name in weights]
    assert types == [getattr(trt, stored)] * 14  # 7 products in each of 2 layers
    assert {tensor.dtype for tensor in read} == {getattr(trt, stored)}  # activations, too
    rounded = [layer.get_output(0).dtype for layer in parsed.layers(trt.LayerType.QUANTIZE)]
    assert rounded == [] if stored == "int4" else set(rounded) == {getattr(trt, stored)}


def test_attentions_read_the_lengths_of_their_sequences(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT's own parser drops the lengths, and its causal mask begins at the first key."""
    parsed = _Parsed(trt, save_checkpoint(tmp_path, "gemma3", "bfloat16").model, tmp_path, monkeypatch)
    inputs = parsed.layers(trt.LayerType.ATTENTION_INPUT)
    for layer in inputs:
        layer.__class__ = trt.IAttentionInputLayer
    assert [layer.attention.key_value_lengths for layer in inputs] == [None, None]
    worker.set_lengths(trt, parsed.network)
    (lengths,) = (layer for layer in parsed.layers(trt.LayerType.CAST) if layer.name == worker.KV_LENGTHS)
    assert lengths.get_input(0).name == "nonpad"
    for layer in inputs:
        assert layer.attention.key_value_lengths.name == lengths.get_output(0).name
    windowed, full = (layer.attention for layer in inputs)
    assert windowed.mask is not None
    assert full.causal_kind == trt.CausalMaskKind.LOWER_RIGHT
