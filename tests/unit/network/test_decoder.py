"""The pattern of nodes that the builder's passes rely on, and the checks on networks from disk."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.network.tiny_decoder import layer, tiny_decoder
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE, WEIGHTS_FILE
from trtllm_lite.network.decoder import Decoder, build_network
from trtllm_lite.network.verifier import load_network


def _model(decoder: Decoder, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Model:
    network = build_network(decoder, dtype)
    zeros = {w.name: ir.tensor(np.zeros(w.shape, w.dtype.numpy()), name=w.name) for w in network.weights}
    return network.bind(zeros, "test", "0")


def _inputs(model: ir.Model, name: str) -> list[str | None]:
    node = next(node for node in model.graph if node.name == name)
    return [None if value is None else value.name for value in node.inputs]


def test_a_layer_has_the_nodes_of_the_contract() -> None:
    model = _model(tiny_decoder(layer()))
    found = Counter(node.op_type for node in model.graph if node.name.startswith("layers.0."))
    assert found == {
        "RMSNormalization": 2,
        "MatMul": 7,
        "Transpose": 7 + 4,
        "Reshape": 4,
        "RotaryEmbedding": 2,
        "TensorScatter": 2,
        "Attention": 1,
        "Swish": 1,
        "Mul": 1,
        "Add": 2,
    }
    assert _inputs(model, "layers.0.attention.attention") == [
        *("layers.0.attention.q_rope", "present_key.0", "present_value.0"),
        *(None, None, None, "nonpad"),
    ]
    assert {node.domain for node in model.graph} == {""}
    assert model.opset_imports == {"": 24}


def test_narrow_matrices_are_cast_where_they_are_used() -> None:
    model = _model(tiny_decoder(layer()), ir.DataType.BFLOAT16)
    assert _inputs(model, "layers.0.attention.q_proj.cast") == ["model.layers.0.self_attn.q_proj.weight"]
    assert _inputs(model, "layers.0.attention.q_proj.transpose") == ["layers.0.attention.q_proj.cast"]
    assert _inputs(model, "embedding.cast") == ["embedding"]
    assert model.graph.initializers["model.norm.weight"].dtype == ir.DataType.FLOAT


def test_tied_embeddings_share_one_initializer() -> None:
    tied, untied = _model(tiny_decoder(layer())), _model(tiny_decoder(layer(), tied=False))
    assert _inputs(tied, "lm_head.transpose") == ["model.embed_tokens.weight"]
    assert _inputs(untied, "lm_head.transpose") == ["lm_head.weight"]
    assert "lm_head.weight" not in tied.graph.initializers


def test_one_mask_per_distinct_window() -> None:
    model = _model(tiny_decoder(layer(window=3), layer(), layer(window=5), layer(window=3)))
    masks = [_inputs(model, f"layers.{i}.attention.attention")[3] for i in range(4)]
    assert masks == ["mask.window_3.inside", None, "mask.window_5.inside", "mask.window_3.inside"]
    assert sum(node.op_type == "Greater" for node in model.graph) == 2


def test_switches_add_their_nodes() -> None:
    model = _model(tiny_decoder(layer(bias=True, head_norms=True), attention_factor=1.5))
    names = {node.name for node in model.graph}
    assert {f"layers.0.attention.{role}_proj.bias" for role in "qkvo"} <= names
    assert {f"layers.0.mlp.{role}_proj.bias" for role in ("gate", "up", "down")} <= names
    assert _inputs(model, "layers.0.attention.q_norm")[0] == "layers.0.attention.q_heads"
    assert _inputs(model, "layers.0.attention.q_rope")[1:] == ["rope.cos.scaled", "rope.sin.scaled"]


def _save(model: ir.Model, directory: Path) -> None:
    ir.save(model, directory / NETWORK_FILE)
    (directory / WEIGHTS_FILE).write_bytes(bytes(64))


def _first_external(model: ir.Model, directory: Path, location: str = WEIGHTS_FILE, offset: int = 0) -> None:
    weight = model.graph.initializers["model.norm.weight"]
    shape = ir.Shape((12,))
    weight.const_value = ir.ExternalTensor(
        location, offset, 48, ir.DataType.FLOAT, shape=shape, name=weight.name or "", base_dir=directory
    )


def test_a_good_network_loads(tmp_path: Path) -> None:
    model = _model(tiny_decoder(layer(window=3, head_norms=True), layer(bias=True), tied=False))
    _first_external(model, tmp_path)
    _save(model, tmp_path)
    assert [value.name for value in load_network(tmp_path).graph.outputs][:2] == ["logits", "present_key.0"]


def test_a_truncated_file_is_a_clear_error(tmp_path: Path) -> None:
    _save(_model(tiny_decoder(layer())), tmp_path)
    whole = (tmp_path / NETWORK_FILE).read_bytes()
    (tmp_path / NETWORK_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineError, match="expected an ONNX network in"):
        load_network(tmp_path)


@pytest.mark.parametrize(
    ("location", "offset", "message"),
    [
        ("other.safetensors", 0, "should lie in a file of the checkpoint directory, but points to 'other.safetensors'"),
        (WEIGHTS_FILE, 32, "model.norm.weight .* points to 48 bytes at 32 of weights.safetensors, which has 64"),
    ],
)
def test_weights_must_lie_inside_their_file(tmp_path: Path, location: str, offset: int, message: str) -> None:
    model = _model(tiny_decoder(layer()))
    _first_external(model, tmp_path, location, offset)
    _save(model, tmp_path)
    with pytest.raises(EngineError, match=message):
        load_network(tmp_path)


def test_other_signatures_opsets_and_domains_are_listed_together(tmp_path: Path) -> None:
    _save(_model(tiny_decoder(layer())), tmp_path)
    proto = onnx.load(tmp_path / NETWORK_FILE, load_external_data=False)
    proto.graph.input[2].name = "lengths"
    proto.graph.node[5].domain = "acme"
    proto.opset_import[0].version = 23
    proto.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    onnx.save(proto, tmp_path / NETWORK_FILE)
    with pytest.raises(EngineError) as caught:
        load_network(tmp_path)
    for expected in ("opset 24", "acme::", "past_lens"):
        assert expected in str(caught.value)
