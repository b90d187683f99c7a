"""Divides attention by query heads; a rank gets the key/value heads that these read, which other ranks may share."""

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, fused_by, operands, results
from trtllm_lite.builder.sharding.rank import Range, Rank
from trtllm_lite.common.vocabulary import MAX_TP_SIZE
from trtllm_lite.errors import BuildError


def share(rank: Rank, node: ir.Node) -> None:
    """Give the rank its heads of ``node``."""
    if norms_all_heads(node):
        _take_heads(rank, node)
    given, made = operands(node), results(node)
    num_heads = attribute(node, "num_heads") // rank.tp_size
    num_kv_heads, head_dim = _kv_shape(rank, node)
    node.attributes["num_heads"] = ir.AttrInt64("num_heads", num_heads)
    for value in (given["key_cache"], given["value_cache"], *map(made.get, ("key_cache_out", "value_cache_out"))):
        if value is None:
            continue
        shape = list(rank.whole_dims(value))
        shape[1] = _own_kv_heads(rank, num_kv_heads)
        rank.reshape(value, shape)
    if "sinks" in given:
        rank.cut(given["sinks"], -1, [rank.own(num_heads)])
    if "stored" in made:
        raise rank.refusal(node, "what it stores is an output of the network")
    rank.mark(made["y"], [rank.own(num_heads * head_dim)])


def heads(rank: Rank, attention: ir.Node) -> list[Range]:
    """The features of the rank's heads: queries, keys, values. Several ranks may have the same key/value head.

    A layer that appends nothing to a cache has queries alone.
    """
    num_heads = attribute(attention, "num_heads")
    num_kv_heads, head_dim = _kv_shape(rank, attention)
    if num_heads % rank.tp_size:
        raise uneven_heads(rank, attention, f"{num_heads} query heads cannot be split", num_heads, num_kv_heads)
    own_kv = heads_that_serve(rank, num_kv_heads)
    if own_kv is None:
        problem = f"{num_kv_heads} key/value heads cannot be split or repeated"
        raise uneven_heads(rank, attention, problem, num_heads, num_kv_heads)
    ranges = [rank.own(num_heads // rank.tp_size)]
    for behind in (num_heads, num_heads + num_kv_heads) if attribute(attention, "appends", 1) else ():
        ranges.append((behind + own_kv[0], behind + own_kv[1]))
    return [(start * head_dim, stop * head_dim) for start, stop in ranges]


def heads_that_serve(rank: Rank, count: int) -> Range | None:
    """The heads among ``count``, each for several successive ones, that serve the rank's; None if it cannot be."""
    if not _shares_out(count, rank.tp_size):
        return None
    first = rank.number * count // rank.tp_size
    return first, first + _own_kv_heads(rank, count)


def norms_all_heads(attention: ir.Node) -> bool:
    """Whether one operator normalises all heads of the queries, so that each rank computes all of them."""
    rows = operands(attention)["qkv"]
    return any(fused_by(rows, kind) is not None for kind in ("QueryKeyNorm", "HeadLayerNorm"))


def uneven_heads(rank: Rank, node: ir.Node, problem: str, num_heads: int, num_kv_heads: int) -> BuildError:
    """The error for heads that cannot be divided, with the sizes that can divide them."""
    sizes = range(1, MAX_TP_SIZE + 1)
    fitting = [str(size) for size in sizes if num_heads % size == 0 and _shares_out(num_kv_heads, size)]
    return rank.refusal(node, f"its {problem} evenly; pass a --tp_size of {' or '.join(fitting)}")


def _take_heads(rank: Rank, attention: ir.Node) -> None:
    """Let ``attention`` read the rank's heads of all queries, keys and values."""
    rank.take_columns(attention, operands(attention)["qkv"], heads(rank, attention), f"{attention.name}.heads")


def _kv_shape(rank: Rank, attention: ir.Node) -> tuple[int, int]:
    """The key/value heads of all ranks, and the size of a head."""
    _, num_kv_heads, head_dim, _ = rank.whole_dims(operands(attention)["key_cache"])
    assert isinstance(num_kv_heads, int)
    assert isinstance(head_dim, int)
    return num_kv_heads, head_dim


def _own_kv_heads(rank: Rank, num_kv_heads: int) -> int:
    return max(num_kv_heads // rank.tp_size, 1)


def _shares_out(num_kv_heads: int, tp_size: int) -> bool:
    """Whether each rank gets equally many key/value heads, or each head equally many ranks."""
    return num_kv_heads % tp_size == 0 or tp_size % num_kv_heads == 0
