"""An encoder for embeddings: every token of a text sees all of it, and a row of the result stands for the text.

Texts of a batch are padded at the right. ``seq_lens`` are their tokens: attention masks the keys behind them, and what
is computed of pad tokens goes nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.attention import Heads, merge_heads, split_heads
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.context import NetworkContext, declare
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.graph import OPSET_VERSION, GraphBuilder, Network
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import PlainMlp
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import WeightExpression
from trtllm_lite.vocabulary import EMBEDDING, SEQ_LENS

_FLOAT = ir.DataType.FLOAT


class EncoderContext(NetworkContext):
    """Declares the inputs of an encoder."""

    def __init__(self, graph: GraphBuilder) -> None:
        super().__init__(graph)
        self.seq_lens = declare(SEQ_LENS, ir.DataType.INT64, ("batch",))


@dataclass(frozen=True)
class EncoderEmbedding:
    """norm(embedding(ids) + token_type): all tokens are of one type, whose row is float32 [hidden]."""

    tokens: Embedding
    token_type: WeightExpression
    norm: Norm

    def __call__(self, context: EncoderContext) -> ir.Value:
        """float32 [batch, seq, hidden]."""
        graph, hidden = context.graph, self.tokens(context)
        token_type = graph.vector(self.token_type, "token_type.weight")
        return self.norm(graph, graph.op("Add", [hidden, token_type], "token_type"), "embedding_norm")


@dataclass(frozen=True)
class EncoderAttention:
    """Multi-head attention in both directions: output(softmax(query . key / sqrt(head_dim)) value)."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: Heads

    def __call__(self, context: EncoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph, heads = context.graph, self.heads
        query, key, value = (
            split_heads(graph, linear(graph, x, f"{role}_proj"), heads.num_heads, heads.head_dim, role)
            for role, linear in (("q", self.query), ("k", self.key), ("v", self.value))
        )
        attributes = {"is_causal": 0, "scale": heads.head_dim**-0.5}
        inputs = [query, key, value, None, None, None, context.seq_lens]
        return self.output(graph, merge_heads(graph, graph.op("Attention", inputs, "attention", attributes)), "o_proj")


@dataclass(frozen=True)
class PostNormLayer:
    """Attention and then the MLP, each added to what it reads, with the norm behind (arXiv 1706.03762, section 3.1)."""

    attention: EncoderAttention
    attention_norm: Norm
    mlp: PlainMlp
    mlp_norm: Norm

    def __call__(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope("attention"):
            mixed = self.attention(context, hidden)
        hidden = self.attention_norm(graph, graph.op("Add", [hidden, mixed], "attention_residual"), "attention_norm")
        with graph.scope("mlp"):
            widened = self.mlp(context, hidden)
        return self.mlp_norm(graph, graph.op("Add", [hidden, widened], "mlp_residual"), "mlp_norm")


@dataclass(frozen=True)
class Pooling:
    """Which row stands for a text: the mean over its tokens, or the ``first`` one; divided by its norm if wanted."""

    first: bool = False
    normalize: bool = False

    def __call__(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to [batch, hidden]."""
        graph = context.graph
        with graph.scope("pooling"):
            row = self._first(graph, hidden) if self.first else self._mean(context, hidden)
            if self.normalize:
                row = graph.op("LpNormalization", [row], "normalized", {"axis": -1, "p": 2})
        return row

    def _first(self, graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
        return graph.op("Gather", [hidden, graph.constant("zero", np.array(0))], "first", {"axis": 1})

    def _mean(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """The sum is a product with a mask [batch, 1, seq] of zeros and ones."""
        graph = context.graph
        length = graph.op("Shape", [hidden], "seq.shape", {"start": 1, "end": 2})
        zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
        slots = graph.op("Range", [zero, graph.op("Squeeze", [length], "seq"), one], "slots")
        axes = graph.constant("axes.middle_and_last", np.array([1, 2]))
        lens = graph.op("Unsqueeze", [context.seq_lens, axes], "lens")
        mask = graph.op("Cast", [graph.op("Less", [slots, lens], "is_token")], "mask", {"to": _FLOAT.value})
        total = graph.op("MatMul", [mask, hidden], "total")
        counts = graph.op("Cast", [lens], "counts", {"to": _FLOAT.value})
        middle = graph.constant("axis.middle", np.array([1]))
        return graph.op("Squeeze", [graph.op("Div", [total, counts], "mean"), middle], "mean.row")


@dataclass(frozen=True)
class Encoder:
    """An encoder for embeddings."""

    sizes: Sizes
    embedding: EncoderEmbedding
    layers: tuple[PostNormLayer, ...]
    pooling: Pooling = Pooling()


def build_encoder(encoder: Encoder, dtype: ir.DataType, blocks: Mapping[str, Blocks] | None = None) -> Network:
    """The network of ``encoder`` with matrices stored as ``dtype`` and vectors as float32.

    Matrices made of rows of source tensors that are ``blocks`` stay in these blocks.
    """
    graph = GraphBuilder(dtype, blocks)
    context = EncoderContext(graph)
    hidden = encoder.embedding(context)
    for number, layer in enumerate(encoder.layers):
        with graph.scope(f"layers.{number}"):
            hidden = layer(context, hidden)
    row = encoder.pooling(context, hidden)
    row.name, row.type = EMBEDDING, ir.TensorType(_FLOAT)
    row.shape = ir.Shape(("batch", encoder.sizes.hidden_size))
    finished = ir.Graph(
        [context.input_ids, context.position_ids, context.seq_lens],
        [row],
        nodes=graph.nodes,
        initializers=list(graph.constants.values()),
        opset_imports={"": OPSET_VERSION},
        name="encoder",
    )
    return Network(finished, graph.weights)
