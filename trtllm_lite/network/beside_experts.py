"""Builds an MLP and a mixture of experts side by side, each between norms of its own (Gemma 4)."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.layers import Block
from trtllm_lite.network.moe import EXPERTS, Experts, Router
from trtllm_lite.network.norms import Norm


@dataclass(frozen=True)
class Normed:
    """post_norm(block(norm(x)))."""

    norm: Norm
    block: Block
    post_norm: Norm

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        return self.post_norm(graph, self.block(context, self.norm(graph, x, "norm")), "post_norm")


@dataclass(frozen=True)
class RoutedExperts:
    """post_norm(experts(norm(x))), of which shares are made of router_norm(x)."""

    router_norm: Norm
    router: Router
    norm: Norm
    experts: Experts
    post_norm: Norm

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope("router"):
            shares = self.router(graph, self.router_norm(graph, x, "norm"))
        with graph.scope(EXPERTS):
            mixed = self.experts(context, self.norm(graph, x, "norm"), shares)
            return self.post_norm(graph, mixed, "post_norm")


@dataclass(frozen=True)
class MlpBesideExperts:
    """The sum of an MLP and of experts; both read the residual stream."""

    mlp: Normed
    experts: RoutedExperts

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        dense = self.mlp(context, x)
        return context.graph.op("Add", [dense, self.experts(context, x)], "with_experts")
