"""Functions between residual streams become operators, which read and make each stream by itself."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import save_tiny_model
from tests.unit.builder.structure import find, operators, run_until
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.graph import attribute, operands
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes.streams import STREAMS
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.sharding import shard
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.functions import FUNCTIONS
from trtllm_lite.network.verifier import load_network


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    """Gemma 3n of six layers, of which three cut their gates."""
    directory = tmp_path_factory.mktemp("gemma3n")
    save_tiny_model("gemma3n", directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return load_network(directory / "checkpoint")


def test_streams_are_not_copied_between_layers(network: ir.Model) -> None:
    """A mix reads what the one before it made, and what the layer before has added to the other streams."""
    model, decisions = run_until("rowwise", network)
    assert all(decision.fused for decision in run_until("streams", network)[1])
    assert decisions  # the operators between mixes
    *corrections, _ = find(model, "layers.0.correct").outputs
    prediction = operands(find(model, "layers.1.predict"))
    assert [prediction[f"x{number}"] for number in range(4)] == corrections
    assert prediction["x4"] is find(model, "layers.0.layer_input_post_norm").outputs[0]
    assert {"x4", "residual", "scale"}.isdisjoint(operands(find(model, "layers.0.predict")))
    assert {"Concat", "Split"}.isdisjoint(operators(model))


def test_corrections_add_and_scale(network: ir.Model) -> None:
    """A mix adds the two rows that are a layer's result, and multiplies what the block of the layer's input reads."""
    model, _ = run_until("rowwise", network)
    correction = find(model, "layers.0.correct")
    given = operands(correction)
    assert given["x0"] is find(model, "layers.0.attention_and_laurel.scaled").outputs[0]
    assert given["residual"] is find(model, "layers.0.mlp_post_norm").outputs[0]
    assert given["scale"].name == "model.layers.0.altup.correct_output_scale"
    assert operands(find(model, "layers.0.layer_input.gate_proj"))["x"] is correction.outputs[4]
    assert len(correction.outputs[0].uses()) == 1  # by the next prediction alone


def test_each_function_becomes_its_operator(network: ir.Model) -> None:
    model, _ = run_until("streams", network)
    counts = operators(model)
    assert (counts["MixStreams"], counts["RescaleRows"], counts["CutRows"]) == (12, 6, 3)
    assert FUNCTIONS not in {node.domain for node in model.graph}
    assert attribute(find(model, "layers.0.predict"), "epsilon") == pytest.approx(1e-5)
    assert attribute(find(model, "streams.rescaled.2"), "least") == pytest.approx(1e-5)
    assert attribute(find(model, "layers.0.mlp.gate.cut"), "factor") == pytest.approx(0.6744898)


def test_ranks_add_up_attention_and_mlps_alone(network: ir.Model) -> None:
    """Each rank has the low-rank products and the gates that are cut, of which it takes its features."""
    limits = BuildLimits(max_batch_size=4, max_input_len=32, max_seq_len=64, tp_size=2)
    [graph, _] = shard(fuse_into_plugins(network, AUTO_DTYPE, limits).graph, 2)
    sums = [str(node.inputs[0].producer().name) for node in graph if node.op_type == "AllReduce"]
    in_layers = [f"layers.{n}.{part}" for n in range(6) for part in ("attention.o_proj", "mlp.down_proj")]
    assert sums == ["embedding", "layer_inputs.embedding", *in_layers]
    taken = [str(node.name) for node in graph if node.op_type == "GatherColumns"]
    assert taken == [f"layers.{number}.mlp.gated.own" for number in range(3)]


def _mix(inputs: int, parts: int) -> ir.Model:
    """A mix of ``inputs`` streams of 6 features, whose result is split into ``parts``."""
    kind = ir.TensorType(ir.DataType.FLOAT)

    def value(name: str, *shape: int | str) -> ir.Value:
        return ir.Value(name=name, type=kind, shape=ir.Shape(shape))

    def weight(name: str, *shape: int) -> ir.Value:
        tensor = ir.tensor(np.ones(shape, np.float32), name=name)
        return ir.Value(name=name, type=kind, shape=ir.Shape(shape), const_value=tensor)

    streams = [value(f"x{number}", "num_tokens", 6) for number in range(inputs)]
    weights = [weight("router", 4, 6), weight("weights", 5, 4, 5)]
    joined, mixed = value("joined", "num_tokens", 6 * inputs), value("mixed", "num_tokens", 24)
    made = [value(f"y{number}", "num_tokens", 24 // parts) for number in range(parts)]
    sizes = ir.Value(name="sizes", const_value=ir.tensor(np.full(parts, 24 // parts), name="sizes"))
    nodes = [
        ir.node("Concat", streams, {"axis": -1}, outputs=[joined], name="join"),
        ir.node("MixStreams", [joined, *weights], {"epsilon": 1e-5}, domain=FUNCTIONS, outputs=[mixed], name="mix"),
        ir.node("Split", [mixed, sizes], {"axis": -1}, outputs=made, name="split"),
    ]
    imports = {"": 24, FUNCTIONS: 1}
    graph = ir.Graph(streams, made, nodes=nodes, initializers=[*weights, sizes], opset_imports=imports, name="mix")
    return ir.Model(graph, ir_version=12)


@pytest.mark.parametrize(
    ("inputs", "parts", "reason"),
    [
        (6, 4, "it reads 6 streams, expected at most 5"),
        (5, 2, "its result is not split into 4 streams"),
        (5, 4, ""),
    ],
)
def test_other_mixes_are_left_alone(inputs: int, parts: int, reason: str) -> None:
    graph = _mix(inputs, parts).graph
    [decision] = STREAMS(graph)
    assert (decision.site, decision.fused, decision.reason) == ("mix", not reason, reason)
