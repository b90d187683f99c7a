"""The bodies of functions, which onnxruntime runs, compute what the references of their operators say."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from tests.plugins.harness import assert_close, reference
from trtllm_lite.network.functions import FUNCTIONS, FUNCTIONS_VERSION, definition
from trtllm_lite.network.graph import IR_VERSION, OPSET_VERSION

_SEED = np.random.default_rng(7)
STREAMS = _SEED.standard_normal((5, 3, 6)).astype(np.float32)  # of three tokens
ROUTER, WEIGHTS = (_SEED.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (5, 4, 5)))


def _run(function: str, inputs: list[np.ndarray], attributes: dict[str, float]) -> np.ndarray:
    """The output of ``function`` for rows of one sequence; inputs of two axes and more are [batch, seq, ...]."""
    values = [ir.Value(name=f"x{n}", type=ir.TensorType(ir.DataType.FLOAT)) for n in range(len(inputs))]
    for value, array in zip(values, inputs, strict=True):
        value.shape = ir.Shape(array.shape)
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", "seq", "features"]))
    node = ir.node(function, values, attributes, domain=FUNCTIONS, outputs=[y], name="call")
    imports = {"": OPSET_VERSION, FUNCTIONS: FUNCTIONS_VERSION}
    graph = ir.Graph(values, [y], nodes=[node], opset_imports=imports, name="graph")
    model = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION, functions=[definition(function)]))
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {str(value.name): array for value, array in zip(values, inputs, strict=True)}
    (found,) = session.run(None, feeds)
    return np.asarray(found)


@pytest.mark.parametrize("count", [4, 5])
def test_mix_streams(count: int) -> None:
    joined = np.concatenate(list(STREAMS[:count]), axis=1)[None]
    found = _run("MixStreams", [joined, ROUTER, WEIGHTS], {"epsilon": 1e-3})
    given: list[Any] = [*STREAMS[:count], *[None] * (5 - count), ROUTER, WEIGHTS]
    expected = reference("MixStreams", given, {"epsilon": 1e-3})
    assert_close(found[0], np.concatenate([expected[f"y{number}"] for number in range(4)], axis=1))


def test_rescale_rows() -> None:
    x, like = STREAMS[0].copy(), 3 * STREAMS[1]
    x[1] *= 1e-4  # less than the least mean square
    found = _run("RescaleRows", [x[None], like[None]], {"least": 1e-5})
    assert_close(found[0], reference("RescaleRows", [x, like], {"least": 1e-5})["y"])


def test_cut_rows() -> None:
    found = _run("CutRows", [STREAMS[0][None]], {"factor": 0.5})
    assert_close(found[0], reference("CutRows", [STREAMS[0]], {"factor": 0.5})["y"])
