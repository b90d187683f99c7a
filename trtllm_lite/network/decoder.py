"""A decoder language model put together from blocks, and its network."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.common.vocabulary import FEATURES, HIDDEN
from trtllm_lite.network.attention import Heads
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.context import NO_ROUNDING, CacheRounding, DecoderContext, declare
from trtllm_lite.network.drafting import MakesFeatures
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.graph import OPSET_VERSION, GraphBuilder, Network
from trtllm_lite.network.known_tokens import HeadOfKnownTokens
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.norms import Norm


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, in elements, that building and running need besides its network."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int

    @property
    def heads(self) -> Heads:
        """The heads of every layer's attention."""
        return Heads(self.num_attention_heads, self.num_key_value_heads, self.head_dim)


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    ``features`` computes the features of each token for a drafting head. Such a head ``reads_features``, and replaces
    them by the output of its last layer, or, with ``hidden_is_normed``, of its final norm. The residual stream is
    smaller than in training by the factor ``stream_scale``.
    """

    sizes: Sizes
    embedding: Embedding
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Head | HeadOfKnownTokens
    features: MakesFeatures | None = None
    reads_features: bool = False
    hidden_is_normed: bool = False
    stream_scale: float = 1.0

    @property
    def has_tied_embeddings(self) -> bool:
        """Whether the embedding is also the matrix of the head."""
        return self.head.linear.weight == self.embedding.table


def build_network(
    decoder: Decoder,
    dtype: ir.DataType,
    blocks: Mapping[str, Blocks] | None = None,
    cache: Mapping[int, CacheRounding] = NO_ROUNDING,
) -> Network:
    """The network of ``decoder`` with matrices stored as ``dtype`` and vectors as float32.

    Matrices made of rows of source tensors in ``blocks`` stay in these blocks. ``cache`` has the roundings of the
    keys and values that layers append to their caches, by the number of the layer; others are not rounded.

    Inputs and outputs are listed in :mod:`trtllm_lite.network.contract`; the builder's passes recognise each block by
    the pattern of its nodes.
    """
    graph = GraphBuilder(dtype, blocks)
    context = DecoderContext(graph, cache)
    if decoder.reads_features:
        context.features = declare(FEATURES, ir.DataType.FLOAT, ("batch", "seq", decoder.sizes.hidden_size))
    streams = [decoder.embedding(context)]
    for number, layer in enumerate(decoder.layers):
        context.layer = number
        with graph.scope(f"layers.{number}"):
            streams.append(layer(context, streams[-1]))
    normed = decoder.final_norm(graph, streams[-1], "final_norm")
    logits = decoder.head(context, normed)
    logits.name = "logits"
    logits.type = ir.TensorType(ir.DataType.FLOAT)
    logits.shape = ir.Shape(("batch", "seq", decoder.sizes.vocab_size))
    features = [] if context.features is None else [context.features]
    finished = ir.Graph(
        [context.input_ids, context.position_ids, context.past_lens, *features, *context.past],
        [logits, *_rows_for_drafts(decoder, context, streams, normed), *context.present],
        nodes=graph.nodes,
        initializers=list(graph.constants.values()),
        opset_imports={"": OPSET_VERSION, **graph.imports},
        name="decoder",
    )
    return Network(finished, graph.weights, graph.leaves_inputs, graph.modules, tuple(graph.functions.values()))


def _rows_for_drafts(
    decoder: Decoder, context: DecoderContext, streams: list[ir.Value], normed: ir.Value
) -> list[ir.Value]:
    """The network's output for drafting, besides logits: float32 [batch, seq, hidden]."""
    made = {}
    if decoder.features is not None:
        made[FEATURES] = decoder.features(context, streams, normed)
    if decoder.reads_features:
        made[HIDDEN] = normed if decoder.hidden_is_normed else streams[-1]
    for name, value in made.items():
        value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape(("batch", "seq", decoder.sizes.hidden_size))
    return list(made.values())
