"""Builds vision towers: from the bytes of an image's pixels to rows that take the place of tokens in a decoder.

An image, or a tile of it, is a sequence of patches, every one of which attends to all others. The inputs are those of
an encoder (network/encoder_context.py) and ``patches`` uint8 [batch, seq, bytes], rows that take the place of tokens:
``input_ids`` is below 0 where there is one; elsewhere it is 0, which stands for the class token, if the tower has one,
and for padding behind ``seq_lens``. The output is ``image_features`` float32 [batch, image_seq, size], where as
many rows of the last layer, one after the other, have become one as the projector reads at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import IMAGE_FEATURES, PATCHES
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.context import declare
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.encoder_context import EncoderContext
from trtllm_lite.network.encoder_layers import PreNormLayer
from trtllm_lite.network.graph import OPSET_VERSION, GraphBuilder, Network
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Function
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.pixels import MIDDLE
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class PatchEmbedding:
    """projection(patch - 127.5) + positions[position ids]; ``class_token`` [1, hidden] is the row of id 0.

    Bytes less their middle are exact in all types of activations; :mod:`trtllm_lite.network.pixels` says how
    ``projection`` undoes that, and normalises pixels. ``positions`` is [max_positions, hidden], in the order of the
    sequence.
    """

    projection: Linear
    class_token: WeightExpression
    positions: WeightExpression | None = None

    def __call__(self, context: "TowerContext") -> ir.Value:
        """float32 [batch, seq, hidden]."""
        graph = context.graph
        pixels = graph.op("Cast", [context.patches], "patches.float", {"to": ir.DataType.FLOAT.value})
        centred = graph.op("Sub", [pixels, graph.scalar("patches.middle", MIDDLE)], "patches.centred")
        rows = self.projection(graph, centred, "patch_embedding")
        zero = graph.constant("zero", np.array(0))
        last = graph.constant("axis.last", np.array([-1]))
        is_patch = graph.op("Less", [context.input_ids, zero], "is_patch")
        ids = graph.op("Max", [context.input_ids, zero], "ids")
        tokens = graph.rows(self.class_token, ids, "class_token")
        column = graph.op("Unsqueeze", [is_patch, last], "is_patch.column")
        hidden = graph.op("Where", [column, rows, tokens], "embedding")
        if self.positions is None:
            return hidden
        positions = graph.rows(self.positions, context.position_ids, "positions")
        return graph.op("Add", [hidden, positions], "embedding.positioned")


@dataclass(frozen=True)
class Projector:
    """output(activation(inner(norm(x)))): from some rows of a tower, concatenated, to a row of a decoder.

    How many rows become one is what their features say.

    ``norm``, ``inner`` and ``activation`` may be absent. ``row_norm`` comes before rows are merged.
    """

    output: Linear
    inner: Linear | None = None
    activation: Function | None = None
    norm: Norm | None = None
    row_norm: Norm | None = None

    def __call__(self, context: "TowerContext", hidden: ir.Value) -> ir.Value:
        """Map [batch, seq, hidden] to [batch, image_seq, size]; rows may merge one by one, and so stay as they are."""
        graph = context.graph
        if self.row_norm is not None:
            hidden = self.row_norm(graph, hidden, "row_norm")
        width = _features(self.inner or self.output)[1]
        shape = graph.constant("merged.shape", np.array([0, -1, width]))
        hidden = graph.op("Reshape", [hidden, shape], "merged")
        hidden.type, hidden.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(("batch", "image_seq", width))
        if self.norm is not None:
            hidden = self.norm(graph, hidden, "norm")
        if self.inner is not None:
            hidden = self.inner(graph, hidden, "inner")
        if self.activation is not None:
            hidden = self.activation(context, hidden)
        return self.output(graph, hidden, "output")


@dataclass(frozen=True)
class VisionTower:
    """A vision tower and the projector behind it; ``sizes.max_position_embeddings`` is the longest sequence.

    ``class_tokens`` come before the patches of each image, and a row for each of them before its rows.
    """

    sizes: Sizes
    embedding: PatchEmbedding
    layers: tuple[PreNormLayer, ...]
    projector: Projector
    class_tokens: int = 0
    first_norm: Norm | None = None
    final_norm: Norm | None = None


class TowerContext(EncoderContext):
    """Declares the inputs of a vision tower."""

    def __init__(self, graph: GraphBuilder, patch_bytes: int) -> None:
        super().__init__(graph)
        self.patches = declare(PATCHES, ir.DataType.UINT8, ("batch", "seq", patch_bytes))


def build_tower(tower: VisionTower, dtype: ir.DataType, blocks: Mapping[str, Blocks] | None = None) -> Network:
    """The network of ``tower`` with matrices stored as ``dtype`` and vectors as float32."""
    graph = GraphBuilder(dtype, blocks)
    context = TowerContext(graph, _features(tower.embedding.projection)[1])
    hidden = tower.embedding(context)
    if tower.first_norm is not None:
        hidden = tower.first_norm(graph, hidden, "first_norm")
    for number, layer in enumerate(tower.layers):
        with graph.scope(f"layers.{number}"):
            hidden = layer(context, hidden)
    if tower.final_norm is not None:
        hidden = tower.final_norm(graph, hidden, "final_norm")
    with graph.scope("projector"):
        features = tower.projector(context, hidden)
    features.name, features.type = IMAGE_FEATURES, ir.TensorType(ir.DataType.FLOAT)
    features.shape = ir.Shape(("batch", "image_seq", _features(tower.projector.output)[0]))
    finished = ir.Graph(
        [context.input_ids, context.position_ids, context.seq_lens, context.patches],
        [features],
        nodes=graph.nodes,
        initializers=list(graph.constants.values()),
        opset_imports={"": OPSET_VERSION},
        name="vision_tower",
    )
    return Network(finished, graph.weights)


def _features(linear: Linear) -> tuple[int, int]:
    """The numbers of output and input features."""
    rows, columns = linear.weight.shape
    return rows, columns
