"""Builds layers between several residual streams (AltUp, arXiv 2301.13310), as Gemma 3n has them.

Source: modeling_gemma3n.py of transformers. A token has four streams. Before a layer each stream is predicted from all
of them; the layer transforms the first; what its result has more than the prediction then corrects all four. Between
layers the streams are concatenated, and behind them is what the layer before has added to all streams but the first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import ATTENTION
from trtllm_lite.network.context import DecoderContext, NetworkContext
from trtllm_lite.network.functions import CUT_ROWS, MIX_STREAMS, RESCALE_ROWS
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.layer_inputs import EmbeddingWithLayerInputs, LayerInputMlp
from trtllm_lite.network.layers import Block, Residual
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import OfOne, Read, SourceTensor, WeightExpression

STREAMS = 4
_INPUTS = STREAMS + 1  # of a mix
_LEAST_SQUARE = 1e-5  # the least mean square by which a row is divided


@dataclass(frozen=True)
class Router(WeightExpression):
    """``matrix`` [modalities, hidden] times the weight ``norm`` [hidden] of its norm, divided by hidden, in float32."""

    matrix: SourceTensor
    norm: SourceTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    def sources(self) -> Iterator[SourceTensor]:
        yield from (self.matrix, self.norm)

    def evaluate(self, read: Read) -> NDArray:
        matrix, norm = (read(tensor.name).astype(np.float32) for tensor in (self.matrix, self.norm))
        return matrix * (norm / np.float32(self.matrix.shape[1]))


@dataclass(frozen=True)
class _MixWeights(OfOne):
    """What MixStreams multiplies modalities by (network/functions.py), [1 + STREAMS, STREAMS, STREAMS + 1].

    The operand has the factors of modalities.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return (1 + STREAMS, STREAMS, _INPUTS)


@dataclass(frozen=True)
class PredictionWeights(_MixWeights):
    """Each stream plus a mix of the four, to all of which but the first the fifth input is added.

    The operand is [STREAMS * STREAMS, STREAMS]; its rows are those of the first result's inputs, then of the second's.
    """

    def evaluate(self, read: Read) -> NDArray:
        factors = self.operand.evaluate(read).astype(np.float32).reshape(STREAMS, STREAMS, STREAMS)
        weights = np.zeros(self.shape, np.float32)
        weights[0, :, :STREAMS] = np.eye(STREAMS)
        weights[1:, :, :STREAMS] = factors.transpose(2, 0, 1)
        weights[:, :, STREAMS] = weights[:, :, 1:STREAMS].sum(2)
        return weights


@dataclass(frozen=True)
class CorrectionWeights(_MixWeights):
    """Stream j is p_j + (1 + factor_j) * (r - p_0), of the layer's result r, which the router sees, and predictions p.

    The result is the first input. The operand is [STREAMS, STREAMS]; row j has the factors of stream j.
    """

    def evaluate(self, read: Read) -> NDArray:
        weights = np.zeros(self.shape, np.float32)
        weights[0, :, 0] = 1
        weights[1:, :, 0] = self.operand.evaluate(read).astype(np.float32).T
        weights[:, :, 1] = -weights[:, :, 0]
        weights[0, :, 1:] += np.eye(STREAMS)
        return weights


@dataclass(frozen=True)
class Mix:
    """STREAMS mixes of up to STREAMS + 1 streams; ``router`` sees the first of these."""

    router: Router
    weights: _MixWeights
    epsilon: float

    def __call__(self, graph: GraphBuilder, streams: Sequence[ir.Value], name: str) -> list[ir.Value]:
        """Map ``streams``, float32 [batch, seq, hidden] each, to as many values of that shape as there are STREAMS."""
        hidden = self.router.shape[1]
        operands = [
            graph.op("Concat", streams, f"{name}.inputs", {"axis": -1}),
            graph.vector(self.router, f"{name}.router"),
            graph.vector(self.weights, f"{name}.weights"),
        ]
        shape = ("batch", "seq", STREAMS * hidden)
        (mixed,) = graph.call(MIX_STREAMS, operands, name, {"epsilon": self.epsilon}, [shape])
        return graph.split(mixed, [hidden] * STREAMS, f"{name}.streams")


@dataclass(frozen=True)
class StreamsLayer:
    """A layer between STREAMS streams.

    The first prediction x becomes u = (x + attention(n) + n + laurel(n)) / sqrt(2) with n = norm(x), and u + mlp(u) is
    the result that corrects all streams; the blocks' results are normalised. The first of these, times ``scale``, and
    the layer's own input make what is added to the others.
    """

    predict: Mix
    norm: Norm
    attention: Block
    attention_post_norm: Norm
    laurel: LowRankLinear
    laurel_norm: Norm
    mlp: Residual
    correct: Mix
    scale: WeightExpression | None
    input_block: LayerInputMlp
    input_norm: Norm

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        graph, size = context.graph, self.correct.router.shape[1]
        count = STREAMS if context.layer == 0 else STREAMS + 1
        predicted = self.predict(graph, graph.split(hidden, [size] * count, "streams"), "predict")
        result = self.mlp(context, self._mixed(context, predicted[0]), "mlp")
        corrected = self.correct(graph, [result, *predicted], "correct")
        first = corrected[0]
        if self.scale is not None:
            first = graph.op("Mul", [first, graph.vector(self.scale, "correct_scale")], "correct.scaled")
        with graph.scope("layer_input"):
            added = self.input_block(context, first)
        added = self.input_norm(graph, added, "layer_input_post_norm")
        return graph.op("Concat", [*corrected, added], "all_streams", {"axis": -1})

    def _mixed(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """(x + attention(n) + n + laurel(n)) / sqrt(2)."""
        graph = context.graph
        normed = self.norm(graph, x, "attention_norm")
        laurel = self.laurel_norm(graph, self.laurel(graph, normed, "laurel"), "laurel_norm")
        with graph.scope(ATTENTION):
            mixed = self.attention(context, normed)
        mixed = self.attention_post_norm(graph, mixed, "attention_post_norm")
        attended = graph.op("Add", [x, mixed], "attention_residual")
        laurel = graph.op("Add", [normed, laurel], "laurel_residual")
        both = graph.op("Add", [attended, laurel], "attention_and_laurel")
        return graph.op("Mul", [both, graph.scalar("mean", 1 / math.sqrt(2))], "attention_and_laurel.scaled")


@dataclass(frozen=True)
class EmbeddingOfStreams(EmbeddingWithLayerInputs):
    """An embedding, which is the first stream; ``projections`` make the others, each as long as the first."""

    projections: tuple[Linear, ...] = ()

    def __call__(self, context: NetworkContext) -> ir.Value:
        graph, first = context.graph, super().__call__(context)
        with graph.scope("streams"):
            others = [
                _as_long_as(graph, first, projection, first, number)
                for number, projection in enumerate(self.projections, start=1)
            ]
            return graph.op("Concat", [first, *others], "all", {"axis": -1})


@dataclass(frozen=True)
class NormOfStreams:
    """``norm`` of the mean of the first stream and of projections of the others, each as long as the first."""

    projections: tuple[Linear, ...]
    norm: Norm

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Map ``x``, float32 [batch, seq, (STREAMS + 1) * hidden], to [batch, seq, hidden]."""
        hidden = self.projections[0].weight.shape[0]
        with graph.scope(f"{name}.streams"):
            first, *others, added = graph.split(x, [hidden] * (STREAMS + 1), "split")
            whole = first
            for number, (stream, projection) in enumerate(zip(others, self.projections, strict=True), start=1):
                stream = graph.op("Add", [stream, added], f"added.{number}")
                part = _as_long_as(graph, first, projection, stream, number)
                whole = graph.op("Add", [whole, part], f"sum.{number}")
            mean = graph.op("Mul", [whole, graph.scalar("share", 1 / STREAMS)], "mean")
        return self.norm(graph, mean, name)


def _as_long_as(graph: GraphBuilder, first: ir.Value, projection: Linear, x: ir.Value, number: int) -> ir.Value:
    """``projection`` of ``x``, with the length that the ``first`` stream of each token has."""
    projected, shape = projection(graph, x, f"projection.{number}"), ("batch", "seq", projection.weight.shape[0])
    return graph.call(RESCALE_ROWS, [projected, first], f"rescaled.{number}", {"least": _LEAST_SQUARE}, [shape])[0]


@dataclass(frozen=True)
class CutActivation:
    """``activation`` of what a gate's elements have above mean + ``factor`` * deviation of all, which few have.

    The factor is rounded to the storage type of matrices, as in training.
    """

    activation: Activation
    factor: float
    features: int

    def gated(self, context: NetworkContext, gate: ir.Value, up: ir.Value) -> ir.Value:
        """activation(cut gate) * up, float32 [batch, seq, features]."""
        graph = context.graph
        factor = float(np.array(self.factor).astype(graph.dtype.numpy()))
        shape = ("batch", "seq", self.features)
        (cut,) = graph.call(CUT_ROWS, [gate], "gate.cut", {"factor": factor}, [shape])
        return self.activation.gated(context, cut, up)
