"""Divides a fused network among ranks (tensor parallelism, Megatron-LM, arXiv 1909.08053).

A product whose result only another product reads (query, key and value; gate and up) computes some of its output
features on each rank, for attention and recurrent layers whole heads. The next product takes those as its input
features, and an AllReduce adds up the ranks' results. If a norm covers all query heads together, every rank computes
all queries, keys and values, and takes its heads after the norm. In a mixture of experts each of ``moe_ep_size`` EP
ranks has some of the experts (expert parallelism, arXiv 2006.16668), whose features are divided among the ranks with
this EP rank; all ranks route all rows, each computes its own experts, and the AllReduce adds up their results as well.
Each rank has some rows of the vocabulary in the embedding and the LM head; an AllGather joins the ranks' logits. Every
rank computes all other operators, such as norms, in full. All ranks have the same plan, and weights of the same shapes.
"""

from collections.abc import Callable

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_layer
from trtllm_lite.builder.sharding import attention, by_schema, experts, latent_attention, products, vocabulary
from trtllm_lite.builder.sharding.rank import Rank
from trtllm_lite.builder.sharding.shared_sources import SharedSources


def shard(graph: ir.Graph, tp_size: int, moe_ep_size: int = 1) -> list[ir.Graph]:
    """Return each rank's part of ``graph``, which holds fused operators only and is left unchanged.

    Tensors are evaluated once for all ranks, if the ranks' weights are loaded in turns. Raises BuildError if something
    cannot be divided among this many ranks.
    """
    sources = SharedSources(tp_size)
    ranks = [Rank(graph.clone(), number, tp_size, tp_size // moe_ep_size, sources) for number in range(tp_size)]
    for rank in ranks:
        _rewrite(rank)
    return [rank.graph for rank in ranks]


def _share_outer(rank: Rank, node: ir.Node) -> None:
    """Divide a product whose result all ranks need."""
    if rank.has_part_of_inputs(node):
        products.share_inputs(rank, node, rank.tp_size)
    elif vocabulary.makes_logits(node):
        vocabulary.share_logits(rank, node)


_RULES: dict[str, Callable[[Rank, ir.Node], None]] = {
    "Embedding": vocabulary.share_embedding,
    "PagedAttention": attention.share,
    "LatentAttention": latent_attention.share,
    "Router": experts.tally_own,
    "GroupedGatedLinear": experts.share_outputs,
    "GroupedLinear": experts.share_inputs,
    "Linear": _share_outer,
}
"""Rules by which operators are divided; schemas say it of others, or they treat each feature by itself, or read whole
rows."""


def _rewrite(rank: Rank) -> None:
    inner = products.inner(rank)
    for node in list(rank.graph):
        if node in inner:
            products.cut_outputs(rank, node, inner[node])
        elif node.op_type in _RULES:
            _RULES[node.op_type](rank, node)
        elif caches_layer(node) or (rank.has_part_of_inputs(node) and by_schema.is_divided(node)):
            by_schema.share(rank, node)
        elif rank.has_part_of_inputs(node):
            products.follow(rank, node)
