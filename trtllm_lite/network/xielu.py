"""The activation function xIELU (arXiv 2411.13010, equation 11), whose factors are learned."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.network.context import NetworkContext
from trtllm_lite.network.weight_expression import Read, SourceTensor, WeightExpression


@dataclass(frozen=True)
class LearnedFactor(WeightExpression):
    """log(1 + exp(``alpha``)) + ``offset`` of tensors with one number each, in float32, for each of ``features``.

    Without ``alpha`` it is the offset alone, without ``offset`` the logarithm.
    """

    features: int
    alpha: SourceTensor | None
    offset: SourceTensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    def sources(self) -> Iterator[SourceTensor]:
        yield from (tensor for tensor in (self.alpha, self.offset) if tensor is not None)

    def evaluate(self, read: Read) -> NDArray:
        softplus = 0.0 if self.alpha is None else np.logaddexp(0, read(self.alpha.name).astype(np.float32))
        offset = 0.0 if self.offset is None else read(self.offset.name).astype(np.float32)
        return np.full(self.features, softplus + offset, np.float32)


@dataclass(frozen=True)
class Xielu:
    """beta x + positive max(x, 0)^2 + negative (exp(m) - 1 - m) with m = min(x, 0).

    The factors are [features]. The reference limits m to at most -1e-6, which changes results by less than that.
    """

    positive: LearnedFactor
    negative: LearnedFactor
    beta: LearnedFactor

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element; each operator has one reader, so that all become one kernel."""
        graph = context.graph

        def node(op_type: str, name: str, *inputs: ir.Value) -> ir.Value:
            return graph.op(op_type, inputs, f"xielu.{name}")

        def below_zero(name: str) -> ir.Value:
            return node("Sub", f"{name}.below_zero", x, node("Relu", f"{name}.relu", x))

        positive, negative, beta = (
            graph.vector(factor, f"xielu.{name}.factor")
            for name, factor in (("square", self.positive), ("tail", self.negative), ("line", self.beta))
        )
        square = node("Mul", "square", node("Mul", "slope", node("Relu", "slope.relu", x), positive), x)
        power = node("Sub", "power", node("Exp", "exp", below_zero("exp")), graph.scalar("xielu.one", 1.0))
        tail = node("Mul", "tail", node("Sub", "difference", power, below_zero("difference")), negative)
        return node("Add", "sum", node("Add", "upper", node("Mul", "line", x, beta), square), tail)
