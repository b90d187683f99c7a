"""The nodes that each block adds to the graph, which the builder's passes look for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.network.tiny_decoder import layer, tiny_decoder
from trtllm_lite.network.context import DecoderContext, declare
from trtllm_lite.network.decoder import build_network
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.layers import ParallelLayer, Residual
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import ACTIVATIONS, PlainMlp
from trtllm_lite.network.norms import LayerNorm, RmsNorm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.weight_expression import SourceTensor

_VECTOR, _BIAS = SourceTensor("norm.weight", (4,)), SourceTensor("norm.bias", (4,))
_LINEAR = Linear(SourceTensor("linear.weight", (4, 4)))
_NORM = RmsNorm(_VECTOR, 1e-6)


def _nodes(
    block: Callable[[DecoderContext, ir.Value], Any], dtype: ir.DataType = ir.DataType.FLOAT
) -> list[tuple[str | None, str, list[str | None]]]:
    """Name, operator and inputs of every node that ``block`` adds when it is called on an activation x."""
    graph = GraphBuilder(dtype)
    block(DecoderContext(graph), declare("x", ir.DataType.FLOAT, ("batch", "seq", 4)))
    return [(node.name, node.op_type, [value and value.name for value in node.inputs]) for node in graph.nodes]


def _double(context: DecoderContext, x: ir.Value) -> ir.Value:
    return context.graph.op("Add", [x, x], "double")


def test_layer_norms_with_and_without_bias() -> None:
    with_bias = _nodes(lambda context, x: LayerNorm(_VECTOR, _BIAS, 1e-5)(context.graph, x, "n"))
    assert with_bias == [("n", "LayerNormalization", ["x", "norm.weight", "norm.bias"])]
    without = _nodes(lambda context, x: LayerNorm(_VECTOR, None, 1e-5)(context.graph, x, "n"))
    assert without == [("n", "LayerNormalization", ["x", "norm.weight"])]


def test_a_computed_weight_is_named_after_its_node() -> None:
    norm = RmsNorm(_VECTOR.affine(offset=1.0), 1e-6)
    nodes = _nodes(lambda context, x: norm(context.graph, x, "n"))
    assert nodes == [("n", "RMSNormalization", ["x", "weights.n.weight"])]


def test_a_norm_may_stand_before_and_behind_a_block() -> None:
    both = _nodes(lambda context, x: Residual(_NORM, _double, _NORM)(context, x, "mlp"))
    assert both == [
        ("mlp_norm", "RMSNormalization", ["x", "norm.weight"]),
        ("mlp.double", "Add", ["mlp_norm", "mlp_norm"]),
        ("mlp_post_norm", "RMSNormalization", ["mlp.double", "norm.weight"]),
        ("mlp_residual", "Add", ["x", "mlp_post_norm"]),
    ]
    behind = _nodes(lambda context, x: Residual(None, _double, _NORM)(context, x, "mlp"))
    assert [name for name, *_ in behind] == ["mlp.double", "mlp_post_norm", "mlp_residual"]


def test_parallel_blocks_may_have_norms_of_their_own() -> None:
    nodes = _nodes(lambda context, x: ParallelLayer(_NORM, _double, _double, _NORM)(context, x))
    assert nodes[2:4] == [
        ("mlp_norm", "RMSNormalization", ["x", "norm.weight"]),
        ("mlp.double", "Add", ["mlp_norm", "mlp_norm"]),
    ]


def test_parallel_blocks_read_one_norm() -> None:
    nodes = _nodes(lambda context, x: ParallelLayer(_NORM, _double, _double)(context, x))
    assert nodes == [
        ("norm", "RMSNormalization", ["x", "norm.weight"]),
        ("attention.double", "Add", ["norm", "norm"]),
        ("mlp.double", "Add", ["norm", "norm"]),
        ("attention_residual", "Add", ["x", "attention.double"]),
        ("mlp_residual", "Add", ["attention_residual", "mlp.double"]),
    ]


@pytest.mark.parametrize(
    ("name", "op_type"), [("silu", "Swish"), ("gelu", "Gelu"), ("gelu_new", "Gelu"), ("gelu_pytorch_tanh", "Gelu")]
)
def test_a_plain_mlp_has_two_linear_layers(name: str, op_type: str) -> None:
    nodes = _nodes(lambda context, x: PlainMlp(_LINEAR, _LINEAR, ACTIVATIONS[name])(context, x))
    assert [op for _, op, _ in nodes] == ["Transpose", "MatMul", op_type, "Transpose", "MatMul"]


def test_learned_positions_are_added_to_scaled_embeddings() -> None:
    table, positions = SourceTensor("wte", (9, 4)), SourceTensor("wpe", (7, 4))
    embedding = Embedding(table, scale=7.7459, positions=positions)
    nodes = _nodes(lambda context, _: embedding(context), ir.DataType.BFLOAT16)
    assert nodes == [
        ("embedding", "Gather", ["wte", "input_ids"]),
        ("embedding.cast", "Cast", ["embedding"]),
        ("embedding.scaled", "Mul", ["embedding.cast", "embedding.scale"]),
        ("positions", "Gather", ["wpe", "position_ids"]),
        ("positions.cast", "Cast", ["positions"]),
        ("embedding.positioned", "Add", ["embedding.scaled", "positions.cast"]),
    ]


@pytest.mark.parametrize(
    ("options", "operators"),
    [
        ({}, []),
        ({"scale": 0.25}, ["Mul"]),
        ({"softcap": 30.0}, ["Div", "Tanh", "Mul"]),
        ({"scale": 0.25, "softcap": 30.0}, ["Mul", "Div", "Tanh", "Mul"]),
    ],
)
def test_logits_are_scaled_and_capped(options: dict[str, float], operators: list[str]) -> None:
    nodes = _nodes(lambda context, x: Head(_LINEAR, **options)(context, x))
    assert [op for _, op, _ in nodes] == ["Transpose", "MatMul", *operators]


def _attributes(op_type: str, **attention: Any) -> list[dict[str, Any]]:
    graph = build_network(tiny_decoder(layer(**attention)), ir.DataType.FLOAT).graph
    return [
        {name: attribute.value for name, attribute in node.attributes.items()}
        for node in graph
        if node.op_type == op_type
    ]


def test_rope_covers_the_head_a_part_or_nothing() -> None:
    assert _attributes("RotaryEmbedding") == [{}, {}]
    assert _attributes("RotaryEmbedding", rope=Rope((1.0, 0.1))) == [{"rotary_embedding_dim": 4}] * 2
    assert _attributes("RotaryEmbedding", rope=None) == []
    assert _attributes("Cos", rope=None) == []


def test_scores_are_scaled_and_capped_by_the_operator() -> None:
    assert _attributes("Attention") == [{"is_causal": 1, "scale": pytest.approx(6**-0.5)}]
    capped = {"is_causal": 1, "scale": pytest.approx(0.3), "softcap": 50.0}
    assert _attributes("Attention", scale=0.3, softcap=50.0) == [capped]


def test_every_rope_has_one_table() -> None:
    other = Rope((1.0, 0.5, 0.25))
    network = build_network(tiny_decoder(layer(), layer(rope=other), layer()), ir.DataType.FLOAT)
    tables = [[value and value.name for value in n.inputs[1:]] for n in network.graph if n.op_type == "RotaryEmbedding"]
    first, second = ["rope.cos", "rope.sin"], ["rope_2.cos", "rope_2.sin"]
    assert tables == [first, first, second, second, first, first]


def test_a_constant_has_one_content_and_a_weight_one_name() -> None:
    graph = GraphBuilder(ir.DataType.FLOAT)
    graph.constant("c", np.array(1))
    with pytest.raises(ValueError, match="the constant c is"):
        graph.constant("c", np.array(2))
    graph.vector(_VECTOR, "n")
    with pytest.raises(ValueError, match=r"two weights are named norm\.weight"):
        graph.vector(SourceTensor("norm.weight", (5,)), "n")
