"""Builds layers: how blocks read from the residual stream and add to it."""

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from trtllm_lite.common.vocabulary import ATTENTION, RECURRENT
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.norms import Norm


class Block(Protocol):
    """Attention, an MLP, or anything else between two states of the residual stream."""

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""


class Layer(Protocol):
    """One decoder layer."""

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        """The residual stream [batch, seq, hidden] after the layer."""


@dataclass(frozen=True)
class Residual:
    """hidden + post_norm(block(norm(hidden))); a norm that is None is left out."""

    norm: Norm | None
    block: Block
    post_norm: Norm | None = None

    def __call__(self, context: DecoderContext, hidden: ir.Value, name: str) -> ir.Value:
        """The residual stream after the block, whose nodes are named ``name``."""
        graph = context.graph
        x = hidden if self.norm is None else self.norm(graph, hidden, f"{name}_norm")
        with graph.scope(name):
            x = self.block(context, x)
        if self.post_norm is not None:
            x = self.post_norm(graph, x, f"{name}_post_norm")
        return graph.op("Add", [hidden, x], f"{name}_residual")


@dataclass(frozen=True)
class SequentialLayer:
    """A block that mixes tokens, such as attention, and then the MLP on its result.

    The nodes of the first block are named ``name``, as the kind of the layer in common/vocabulary.py.
    """

    mixer: Residual
    mlp: Residual
    name: str = ATTENTION

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        return self.mlp(context, self.mixer(context, hidden, self.name), "mlp")


@dataclass(frozen=True)
class SingleLayer:
    """A block alone, whether it mixes tokens or not; its nodes are named ``name``."""

    block: Residual
    name: str

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        return self.block(context, hidden, self.name)


@dataclass(frozen=True)
class ParallelMixers:
    """recurrent(x) + attention_factor * attention(x): a block of two that mix tokens, of the same activations."""

    recurrent: Block
    attention: Block
    attention_factor: float = 1.0

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope(RECURRENT):
            recurrent = self.recurrent(context, x)
        with graph.scope(ATTENTION):
            attended = self.attention(context, x)
        if self.attention_factor != 1:
            factor = graph.scalar("attention_factor", self.attention_factor)
            attended = graph.op("Mul", [attended, factor], "attention.scaled")
        return graph.op("Add", [recurrent, attended], "both")


@dataclass(frozen=True)
class ParallelLayer:
    """hidden + attention(norm(hidden)) + mlp(norm(hidden)) (GPT-J, arXiv 2204.02311).

    If ``mlp_norm`` is given, the MLP uses it instead (GPT-NeoX, arXiv 2204.06745, section 2.1).
    """

    norm: Norm
    attention: Block
    mlp: Block
    mlp_norm: Norm | None = None

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        graph = context.graph
        x = self.norm(graph, hidden, "norm")
        with graph.scope("attention"):
            mixed = self.attention(context, x)
        if self.mlp_norm is not None:
            x = self.mlp_norm(graph, hidden, "mlp_norm")
        with graph.scope("mlp"):
            expanded = self.mlp(context, x)
        attended = graph.op("Add", [hidden, mixed], "attention_residual")
        return graph.op("Add", [attended, expanded], "mlp_residual")
