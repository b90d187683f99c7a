"""Builds encoders: every token attends to the whole text, and one row stands for a text.

That row is an embedding, or what a head computes scores of labels from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from trtllm_lite.common.vocabulary import EMBEDDING, SCORES
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.classification import ClassificationHead
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.encoder_context import EncoderContext
from trtllm_lite.network.encoder_layers import PostNormLayer, PreNormLayer
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.graph import OPSET_VERSION, GraphBuilder, Network
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.pooling import Pooling
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class EncoderEmbedding:
    """norm(embedding(ids) + token_type): all tokens have one type, whose row is ``token_type`` [hidden], or None."""

    tokens: Embedding
    norm: Norm
    token_type: WeightExpression | None = None

    def __call__(self, context: EncoderContext) -> ir.Value:
        """float32 [batch, seq, hidden]."""
        graph, hidden = context.graph, self.tokens(context)
        if self.token_type is not None:
            token_type = graph.vector(self.token_type, "token_type.weight")
            hidden = graph.op("Add", [hidden, token_type], "token_type")
        return self.norm(graph, hidden, "embedding_norm")


@dataclass(frozen=True)
class Encoder:
    """An encoder for embeddings, or, with a ``head``, a classifier.

    ``second_text_offset`` is added to the ids of tokens of a pair's second text, whose rows the embedding has apart; 0
    if the model does not tell the texts of a pair apart.
    """

    sizes: Sizes
    embedding: EncoderEmbedding
    layers: tuple[PostNormLayer | PreNormLayer, ...]
    final_norm: Norm | None = None
    pooling: Pooling = field(default_factory=Pooling)
    head: ClassificationHead | None = None
    second_text_offset: int = 0


def build_encoder(encoder: Encoder, dtype: ir.DataType, blocks: Mapping[str, Blocks] | None = None) -> Network:
    """The network of ``encoder`` with matrices stored as ``dtype`` and vectors as float32.

    Matrices made of rows of source tensors in ``blocks`` stay in these blocks.
    """
    graph = GraphBuilder(dtype, blocks)
    context = EncoderContext(graph)
    hidden = encoder.embedding(context)
    for number, layer in enumerate(encoder.layers):
        with graph.scope(f"layers.{number}"):
            hidden = layer(context, hidden)
    if encoder.final_norm is not None:
        hidden = encoder.final_norm(graph, hidden, "final_norm")
    row = encoder.pooling(context, hidden)
    name, size = EMBEDDING, encoder.sizes.hidden_size
    if encoder.head is not None:
        row, name, size = encoder.head(context, row), SCORES, len(encoder.head.labels)
    row.name, row.type, row.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape(("batch", size))
    finished = ir.Graph(
        [context.input_ids, context.position_ids, context.seq_lens],
        [row],
        nodes=graph.nodes,
        initializers=list(graph.constants.values()),
        opset_imports={"": OPSET_VERSION},
        name="encoder",
    )
    return Network(finished, graph.weights)
