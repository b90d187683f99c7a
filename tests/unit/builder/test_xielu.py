"""xIELU is one operator of each layer in engines, and what the paper says."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import save_tiny_model
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.weight_expression import SourceTensor
from trtllm_lite.network.xielu import LearnedFactor
from trtllm_lite.plugins.rowwise.expression import evaluate


@pytest.fixture(scope="module")
def activations(tmp_path_factory: pytest.TempPathFactory) -> list[ir.Node]:
    """The elementwise operators of a small model with two layers."""
    path: Path = tmp_path_factory.mktemp("apertus")
    save_tiny_model("apertus", path / "model", num_hidden_layers=2)
    convert_checkpoint(str(path / "model"), path / "checkpoint")
    fused = fuse_into_plugins(open_checkpoint(path / "checkpoint").model, AUTO_DTYPE, BuildLimits(2, 16, 32))
    return [node for node in fused.graph if node.op_type == "Rowwise"]


def test_there_is_one_operator_for_each_layer(activations: list[ir.Node]) -> None:
    assert [node.name for node in activations] == [f"layers.{number}.mlp.xielu.sum" for number in range(2)]


def test_the_operator_computes_the_function_of_the_paper(activations: list[ir.Node]) -> None:
    x = np.array([-3.0, -0.5, -1e-3, 0.0, 1e-3, 0.7, 4.0])
    programs = {node.attributes["program"].value for node in activations}
    (program,) = programs
    beta, positive, negative = 0.5, 0.8, 1.3
    # The first vector of the program belongs to the line, the second to the square, the third to the tail.
    operands = {"x0": x, "v0": beta, "v1": positive, "v2": negative, "c0": 1.0}
    functions = {
        **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "exp": np.exp},
        "relu": lambda values: np.maximum(values, 0),
    }
    found = evaluate(program, operands.__getitem__, functions)
    expected = np.where(x > 0, positive * x**2 + beta * x, negative * (np.expm1(x) - x) + beta * x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_factors_are_made_of_learned_numbers() -> None:
    numbers = {"alpha": np.array([-0.4], np.float32), "beta": np.array(0.25, np.float32)}
    alpha, beta = SourceTensor("alpha", (1,)), SourceTensor("beta", ())
    softplus = np.log1p(np.exp(np.float32(-0.4)))
    for factor, expected in (
        (LearnedFactor(3, alpha), softplus),
        (LearnedFactor(3, alpha, beta), softplus + 0.25),
        (LearnedFactor(3, None, beta), 0.25),
    ):
        values = factor.evaluate(numbers.__getitem__)
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, np.full(factor.shape, expected), rtol=1e-6)
