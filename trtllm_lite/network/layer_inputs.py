"""Builds inputs of layers: each layer reads an embedding of its own of every token (Gemma 3n).

Source: modeling_gemma3n.py of transformers.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext, NetworkContext
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.layers import Layer, Residual
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import Filled, WeightExpression

_MEAN = 2**-0.5  # the factor that keeps the variance of a sum of two


@dataclass(frozen=True)
class LayerInputs:
    """What each layer reads: (norm(projection(embedding)) + own embedding) / sqrt(2), ``size`` features of a token.

    The features of all layers are concatenated in ``embedding`` and in the results of ``projection``; the norm is over
    those of one layer.
    """

    embedding: Embedding
    projection: Linear
    norm: Norm
    num_layers: int
    size: int

    def __call__(self, context: NetworkContext, hidden: ir.Value) -> list[ir.Value]:
        """The inputs of the layers, float32 [batch, seq, size] each, for embeddings [batch, seq, hidden]."""
        graph = context.graph
        with graph.scope("layer_inputs"):
            own = self.embedding(context)
            projected = self.projection(graph, hidden, "projection")
            sizes = np.array([0, 0, self.num_layers, self.size])
            split = graph.constant(f"shape.{self.num_layers}_of_{self.size}", sizes)
            normed = self.norm(graph, graph.op("Reshape", [projected, split], "by_layer"), "norm")
            merged = graph.op("Reshape", [normed, graph.constant("shape.merge_layers", np.array([0, 0, -1]))], "merge")
            mean = graph.op("Mul", [graph.op("Add", [merged, own], "sum"), graph.scalar("mean", _MEAN)], "scaled")
            return graph.split(mean, [self.size] * self.num_layers, "of_layer")


@dataclass(frozen=True)
class EmbeddingWithLayerInputs(Embedding):
    """An embedding from which the inputs of layers are made, too."""

    layer_inputs: LayerInputs | None = None

    def __call__(self, context: NetworkContext) -> ir.Value:
        hidden = super().__call__(context)
        if self.layer_inputs is not None and isinstance(context, DecoderContext):
            context.layer_inputs = self.layer_inputs(context, hidden)
        return hidden


@dataclass(frozen=True)
class LayerInputMlp:
    """out(activation(gate(x)) * the layer's input)."""

    gate: Linear
    out: Linear
    activation: Activation

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        gate = self.gate(graph, x, "gate_proj")
        return self.out(graph, self.activation.gated(context, gate, context.layer_inputs[context.layer]), "out_proj")


@dataclass(frozen=True)
class ScaledLayer:
    """A ``layer``, then perhaps the block of the layer's input; the residual stream is multiplied by ``scale`` [1]."""

    layer: Layer
    input_block: Residual | None
    scale: WeightExpression
    hidden_size: int

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        graph = context.graph
        hidden = self.layer(context, hidden)
        if self.input_block is not None:
            hidden = self.input_block(context, hidden, "layer_input")
        scale = Filled(self.scale, self.hidden_size)
        return graph.op("Mul", [hidden, graph.vector(scale, "layer_scale")], "layer_scaled")
