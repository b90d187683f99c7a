"""The passes of encoders: how they change the standard network, and why they do not change other networks."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.encoders import write_pooling
from tests.models import save_tiny_model
from tests.unit.builder.structure import find, insert_after, operators, set_attribute, set_input
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.builder.graph import dims
from trtllm_lite.builder.passes import ENCODER_PIPELINE
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Fusion


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with normalised mean pooling."""
    directory = tmp_path_factory.mktemp("bert")
    save_tiny_model("bert", directory / "model")
    write_pooling(directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return directory / "checkpoint"


@pytest.fixture
def network(checkpoint: Path) -> ir.Model:
    """The network of the checkpoint, which a test may change."""
    return open_checkpoint(checkpoint).model


def _network_of(family: str, directory: Path) -> ir.Model:
    save_tiny_model(family, directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return open_checkpoint(directory / "checkpoint").model


def _reasons(fusions: list[Fusion], pass_name: str) -> dict[str, str]:
    return {fusion.site: fusion.reason for fusion in fusions if fusion.pass_name == pass_name and not fusion.fused}


def test_a_layer_is_six_operators(network: ir.Model) -> None:
    model, fusions = run_passes(network, ENCODER_PIPELINE)
    assert operators(model) == {
        **{"Embedding": 1, "PositionEmbedding": 1, "Rowwise": 1, "Pooling": 1},
        **{"Linear": 4 * 3, "RaggedAttention": 3, "LayerNorm": 1 + 2 * 3},
    }
    assert not _reasons(fusions, "ragged_attention")
    assert [(value.name, dims(value)) for value in (*model.graph.inputs, *model.graph.outputs)] == [
        ("token_ids", ("num_tokens",)),
        ("position_ids", ("num_tokens",)),
        ("cu_seqlens", ("num_seqs_plus_1",)),
        ("sentence_embedding", ("num_seqs", 60)),
    ]


def test_attributes_come_from_the_graph(network: ir.Model) -> None:
    model, _ = run_passes(set_attribute(network, "layers.1.attention.attention", scale=0.5), ENCODER_PIPELINE)
    attention = find(model, "layers.1.attention.attention")
    assert {name: entry.value for name, entry in attention.attributes.items()} == {
        **{"num_heads": 6, "head_dim": 10},
        **{"scale": 0.5, "window": 0},
    }
    (pooling,) = [node for node in model.graph if node.op_type == "Pooling"]
    assert {name: entry.value for name, entry in pooling.attributes.items()} == {"mode": "mean", "normalization": "l2"}


@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_masks_and_rope_are_part_of_attention(family: str, tmp_path: Path) -> None:
    model, fusions = run_passes(_network_of(family, tmp_path), ENCODER_PIPELINE)
    assert not _reasons(fusions, "ragged_attention")
    layers = [node for node in model.graph if node.op_type == "RaggedAttention"]
    attributes = [node.attributes["window"].as_int() for node in layers]
    inputs = [[None if value is None else value.name for value in node.inputs] for node in layers]
    if family == "mpnet":
        assert attributes == [0, 0, 0]
        assert {row[4] for row in inputs} == {"weights.distance_bias.weight"}
        assert {tuple(row[1:3]) for row in inputs} == {(None, None)}
    else:
        assert attributes == [0, 7, 7]
        assert [row[1] == inputs[1][1] for row in inputs] == [False, True, True]
        assert None not in inputs[0][1:3]
        assert operators(model)["RotaryTable"] == 2


@pytest.mark.parametrize(
    ("family", "value", "op_type", "reason"),
    [
        ("modernbert", "mask.window_7.inside", "Not", "its mask is neither a window nor a bias by distance"),
        ("modernbert", "mask.window_7.offsets", "Neg", "the mask does not compare the slots of keys"),
        ("modernbert", "mask.window_7.last.column", "Neg", "the mask does not compare the positions of queries"),
        ("modernbert", "mask.window_7.last", "Neg", "the mask does not put padding at the last token"),
        ("mpnet", "distance_bias.bias", "Neg", "its mask is neither a window nor a bias by distance"),
        ("mpnet", "distance_bias.clipped", "Neg", "the bias is not of clipped distances"),
        ("mpnet", "distance_bias.keys", "Neg", "the bias is not by the distance from query to key"),
    ],
)
def test_other_masks_stay(family: str, value: str, op_type: str, reason: str, tmp_path: Path) -> None:
    changed = insert_after(_network_of(family, tmp_path), value, op_type)
    assert reason in _reasons(run_passes(changed, ENCODER_PIPELINE)[1], "ragged_attention").values()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [({"softcap": 2.0}, "its scores have a softcap"), ({"softmax_precision": 10}, "it asks for a softmax in type 10")],
)
def test_other_attention_stays(network: ir.Model, attributes: dict[str, float], reason: str) -> None:
    changed = set_attribute(network, "layers.1.attention.attention", **attributes)
    _, fusions = run_passes(changed, ENCODER_PIPELINE)
    (found,) = _reasons(fusions, "ragged_attention").values()
    assert found.startswith(reason)


def test_key_lengths_must_be_those_of_the_texts(network: ir.Model) -> None:
    tensor = ir.tensor(np.array([3]), name="three")
    other = ir.Value(name="three", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]), const_value=tensor)
    network.graph.register_initializer(other)
    changed = set_input(network, "layers.0.attention.attention", 6, other)
    assert _reasons(run_passes(changed, ENCODER_PIPELINE)[1], "ragged_attention") == {
        "layers.0.attention.attention": "its key lengths are not seq_lens"
    }


@pytest.mark.parametrize(
    ("value", "op_type", "reason"),
    [
        ("pooling.mask", "Neg", "the row of a text is not a sum over its tokens"),
        ("pooling.counts", "Neg", "sums are not divided by seq_lens"),
        ("pooling.mean", "Neg", "the row of a text is neither a mean nor the first"),
    ],
)
def test_other_poolings_stay(network: ir.Model, value: str, op_type: str, reason: str) -> None:
    _, fusions = run_passes(insert_after(network, value, op_type), ENCODER_PIPELINE)
    assert list(_reasons(fusions, "pooling").values()) == [reason]


def test_other_norms_stay(network: ir.Model) -> None:
    _, fusions = run_passes(set_attribute(network, "pooling.normalized", p=1), ENCODER_PIPELINE)
    (reason,) = _reasons(fusions, "pooling").values()
    assert reason == "rows are normalised otherwise than by their Euclidean norm"
