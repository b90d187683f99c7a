"""Divides mixtures of experts: ranks with the same EP rank have the same experts, each rank some of their features."""

from math import lcm

import onnx_ir as ir

from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.builder.graph import attribute, features_of, operands, results
from trtllm_lite.builder.sharding.products import PADDED_TO, cut_outputs, take_inputs
from trtllm_lite.builder.sharding.rank import Range, Rank, even_part, shifted
from trtllm_lite.network.tensors import extents
from trtllm_lite.plugins.schema import all_schemas
from trtllm_lite.quantize.formats import matrix_of


def tally_own(rank: Rank, router: ir.Node) -> None:
    """Let ``router``, which chooses among all experts, count the rows of the experts of its EP rank."""
    local = attribute(router, "local_experts") * rank.moe_tp_size // rank.tp_size
    owned = {"local_experts": local, "moe_tp_size": rank.moe_tp_size}
    router.attributes.update({name: ir.AttrInt64(name, value) for name, value in owned.items()})
    results(router)["tally"].shape = ir.Shape([implied_extents(all_schemas()["Router"], owned)["tallied"]])


def share_outputs(rank: Rank, node: ir.Node) -> None:
    """Give the rank its features of its experts in ``node``, whose result only GroupedLinear reads."""
    _take_own(rank, node)
    part, y = _part_of_expert(rank, node), results(node)["y"]
    features = features_of(y)
    cut_outputs(rank, node, [part])
    if attribute(node, "self_gated"):  # y has the features of both halves
        whole = part == (0, features // 2)
        rank.mark(y, [(0, features)] if whole else [part, *shifted([part], features // 2)])


def share_inputs(rank: Rank, node: ir.Node) -> None:
    """Let ``node`` read the rank's features of its experts."""
    _take_own(rank, node)
    take_inputs(rank, node, rank.part_of_inputs(node), rank.number % rank.moe_tp_size)


def _take_own(rank: Rank, node: ir.Node) -> None:
    """Keep the experts of the EP rank."""
    ep_rank, ep_size = rank.number // rank.moe_tp_size, rank.tp_size // rank.moe_tp_size
    given = operands(node)
    for value in [*matrix_of(given).operands.values(), *([given["bias"]] if "bias" in given else [])]:
        count = extents(rank.tensor(value))[0] // ep_size
        rank.cut(value, 0, [(ep_rank * count, (ep_rank + 1) * count)])
    node.attributes["moe_tp_size"] = ir.AttrInt64("moe_tp_size", rank.moe_tp_size)


def _part_of_expert(rank: Rank, node: ir.Node) -> Range:
    """The features that the rank has of each expert, or of its halves: whole blocks of the matrix that reads them."""
    (reader,) = {use.node for use in node.outputs[0].uses()}
    matrix = matrix_of(operands(reader))
    features, numbers = matrix.shape[-1], matrix.operands.get("weight_scale")
    blocks = 1 if numbers is None else extents(rank.tensor(numbers))[-1]
    padded_to = PADDED_TO if blocks == 1 else lcm(PADDED_TO, features // blocks)
    matrices = 1 + attribute(node, "self_gated")
    return even_part(features // matrices, rank.moe_tp_size, rank.number % rank.moe_tp_size, padded_to)
