"""Divides attention over latents: every rank keeps all latents, and has some of the heads that read them."""

import onnx_ir as ir

from trtllm_lite.builder.graph import features_of, operands, results
from trtllm_lite.builder.sharding.attention import uneven_heads
from trtllm_lite.builder.sharding.rank import Range, Rank
from trtllm_lite.network.tensors import extents


def share(rank: Rank, node: ir.Node) -> None:
    """Give the rank its heads of ``node``."""
    given = operands(node)
    num_heads, value_dim, _ = extents(rank.tensor(given["value_up"]))
    count = num_heads // rank.tp_size
    for name in ("key_up", "value_up"):
        rank.cut(given[name], 0, [rank.own(count)])
    rank.mark(results(node)["y"], [rank.own(count * value_dim)])


def heads(rank: Rank, attention: ir.Node) -> list[Range]:
    """The features of the rank's queries: their plain parts, then those that are rotated."""
    given = operands(attention)
    num_heads, plain_dim, _ = extents(rank.tensor(given["key_up"]))
    if num_heads % rank.tp_size:
        raise uneven_heads(rank, attention, f"{num_heads} query heads cannot be split", num_heads, 1)
    rotary_dim = features_of(given["rotary_cache"])
    first, last = rank.own(num_heads // rank.tp_size)
    behind = num_heads * plain_dim
    return [(first * plain_dim, last * plain_dim), (behind + first * rotary_dim, behind + last * rotary_dim)]
