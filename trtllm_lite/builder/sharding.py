"""Shares a fused network out among ranks (tensor parallelism, Megatron-LM, arXiv 1909.08053).

A product whose result is read by another one alone (query, key and value; gate and up) keeps some of its output
features on each rank, heads whole; the product behind it takes those as its input features, and an AllReduce adds up
what the ranks make of them. Where a norm is of all query heads, every rank computes all queries, keys and values, and
takes its heads behind the norm. Of mixtures of experts each of ``moe_ep_size`` runs of ranks has some of the experts
(expert parallelism, arXiv 2006.16668), of which its ranks share out the features; all ranks route all rows alike, each
computes the experts that it has, and the AllReduce adds up these, too. Ranks have their rows of the vocabulary in
embedding and LM head, whose logits an AllGather puts together. All else, norms among it, every rank computes alike. All
ranks have the same plan, and weights of the same shapes.
"""

from collections.abc import Sequence
from math import lcm

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.cache_groups import OPS
from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    fused_by,
    fused_node,
    operands,
    replace_value,
    results,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.shared_sources import SharedSources
from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import add_initializer, extents, take, zeros
from trtllm_lite.plugins.schema import all_schemas
from trtllm_lite.quantize.formats import matrix_of
from trtllm_lite.vocabulary import LOGITS, MAX_TP_SIZE

_PADDED_TO = 8  # features; kernels of GPUs read so many at once
_VOCAB_PADDED_TO = 64
_ROW_WISE = ("GatherRows", "QuantizeRows", "Rowwise")  # treat the features of a row apart

Range = tuple[int, int]


def shard(graph: ir.Graph, tp_size: int, moe_ep_size: int = 1) -> list[ir.Graph]:
    """The part of each rank of ``graph``, which holds fused operators only and is left as it is.

    Tensors are evaluated once for all ranks, if the ranks' weights are loaded in turns. Raises BuildError for what
    cannot be shared out by so many.
    """
    sources = SharedSources(tp_size)
    ranks = [graph.clone() for _ in range(tp_size)]
    for rank, part in enumerate(ranks):
        _Rank(part, tp_size, rank, sources, tp_size // moe_ep_size).rewrite()
    return ranks


class _Rank:
    """The part of one rank while it is made."""

    def __init__(self, graph: ir.Graph, tp_size: int, rank: int, sources: SharedSources, moe_tp_size: int) -> None:
        self.graph, self.tp_size, self.rank, self.sources = graph, tp_size, rank, sources
        self.moe_tp_size = moe_tp_size  # the ranks that share out each expert
        self.parted: set[ir.Value] = set()  # values of which the rank has some features
        self.cut: dict[tuple[ir.Value, int], Sequence[Range]] = {}  # weights that were cut along an axis already
        # Layers of several groups have one cache.
        caches = {operands(node)["key_cache"] for node in graph if node.op_type == "PagedAttention"}
        self.num_kv_heads = {cache: (dims(cache) or ())[1] for cache in caches}

    def rewrite(self) -> None:
        inner = self._inner_products()
        for node in list(self.graph):
            reads_part = any(value in self.parted for value in node.inputs if value is not None)
            if node.op_type == "Embedding":
                self._share_embedding(node)
            elif node.op_type == "PagedAttention":
                self._share_attention(node)
            elif node.op_type == "LatentAttention":
                self._share_latent_attention(node)
            elif _is(node, "Router"):
                self._tally_own_experts(node)
            elif _is(node, "GroupedGatedLinear"):  # whose result GroupedLinear alone reads
                self._take_experts(node)
                self._cut_product(node, [self._part_of_expert(node)])
            elif node in inner:
                self._share_outputs(node)
            elif reads_part and node.op_type in ("Linear", "GroupedLinear"):
                self._share_inputs(node)
            elif reads_part:
                self._follow(node)
            elif node.op_type == "Linear" and self._makes_logits(node):
                self._share_logits(node)

    def _inner_products(self) -> set[ir.Node]:
        """The products whose results only other products read, but for what treats features apart."""
        found: set[ir.Node] = set()
        for node in self.graph:
            if node.op_type == "PagedAttention" and not _norms_all_heads(node):
                found.add(self._product_before(node, "qkv"))
            if node.op_type == "LatentAttention":
                found.add(self._product_before(node, "query"))
            if node.op_type == "Linear":
                origins = _origins(operands(node)["x"])
                if all(_is(origin, "Linear", "GatedLinear", *OPS) for origin in origins):
                    found |= {origin for origin in origins if origin and _is(origin, "Linear", "GatedLinear")}
        return found

    def _product_before(self, attention: ir.Node, operand: str) -> ir.Node:
        product = fused_by(operands(attention)[operand], "Linear")
        if product is None:
            raise self._refusal(attention, "its queries, keys and values do not come straight from one product")
        return product

    # What a rank has of the outputs of products.

    def _share_outputs(self, node: ir.Node) -> None:
        matrix = matrix_of(operands(node))
        attention = next((use.node for use in node.outputs[0].uses() if use.node.op_type in OPS), None)
        part = _even_part(matrix.shape[-2], self.tp_size, self.rank, _PADDED_TO)
        self._cut_product(node, [part] if attention is None else self._heads(attention))

    def _heads(self, attention: ir.Node) -> list[Range]:
        """The features of the rank's heads: queries, keys, values. A key/value head may be several ranks'."""
        if _is(attention, "LatentAttention"):
            return self._latent_heads(attention)
        num_heads = attribute(attention, "num_heads")
        num_kv_heads, head_dim = self._kv_shape(attention)
        if num_heads % self.tp_size:
            raise self._uneven_heads(
                attention, f"{num_heads} query heads cannot be shared out", num_heads, num_kv_heads
            )
        if not _shares_out(num_kv_heads, self.tp_size):
            problem = f"{num_kv_heads} key/value heads cannot be shared out or repeated"
            raise self._uneven_heads(attention, problem, num_heads, num_kv_heads)
        heads = num_heads // self.tp_size
        kv_heads = self._own_kv_heads(num_kv_heads)
        first_kv = self.rank * num_kv_heads // self.tp_size
        ranges = [(self.rank * heads, heads), (num_heads + first_kv, kv_heads)]
        ranges.append((num_heads + num_kv_heads + first_kv, kv_heads))
        return [(first * head_dim, (first + count) * head_dim) for first, count in ranges]

    def _latent_heads(self, attention: ir.Node) -> list[Range]:
        """The features of the rank's queries: their plain parts, then those that are rotated."""
        given = operands(attention)
        num_heads, plain_dim, _ = extents(self._tensor(given["key_up"]))
        if num_heads % self.tp_size:
            raise self._uneven_heads(attention, f"{num_heads} query heads cannot be shared out", num_heads, 1)
        heads, rotary_dim = num_heads // self.tp_size, features_of(given["key_cache"])
        first, last = self.rank * heads, (self.rank + 1) * heads
        behind = num_heads * plain_dim
        return [(first * plain_dim, last * plain_dim), (behind + first * rotary_dim, behind + last * rotary_dim)]

    def _share_latent_attention(self, node: ir.Node) -> None:
        """Every rank keeps all latents, and has some of the heads that read them."""
        given = operands(node)
        num_heads, value_dim, _ = extents(self._tensor(given["value_up"]))
        heads = num_heads // self.tp_size
        for name in ("key_up", "value_up"):
            self._cut(given[name], 0, [(self.rank * heads, (self.rank + 1) * heads)])
        self._mark(results(node)["y"], heads * value_dim)

    def _kv_shape(self, attention: ir.Node) -> tuple[int, int]:
        """The key/value heads of all ranks, and the size of a head."""
        cache = operands(attention)["key_cache"]
        num_kv_heads, (_, _, head_dim, _) = self.num_kv_heads[cache], dims(cache) or ()
        assert isinstance(num_kv_heads, int)
        assert isinstance(head_dim, int)
        return num_kv_heads, head_dim

    def _own_kv_heads(self, num_kv_heads: int) -> int:
        return max(num_kv_heads // self.tp_size, 1)

    def _cut_product(self, node: ir.Node, ranges: Sequence[Range]) -> None:
        """Keep the output features ``ranges`` of a product."""
        given = operands(node)
        for value in matrix_of(given).operands.values():
            self._cut(value, -2, ranges)
        if "bias" in given:
            self._cut(given["bias"], -1, ranges)
        self._mark(node.outputs[0], sum(stop - start for start, stop in ranges))

    def _take_heads(self, attention: ir.Node) -> None:
        """Let ``attention`` read the rank's heads of all queries, keys and values."""
        rows, name = operands(attention)["qkv"], f"{attention.name}.heads"
        columns = np.concatenate([np.arange(start, stop, dtype=np.int32) for start, stop in self._heads(attention)])
        order = add_initializer(self.graph, f"{name}.order", ir.tensor(columns))
        own = value_of(f"{name}.qkv", ir.DataType.FLOAT, [*(dims(rows) or ())[:1], len(columns)])
        self.graph.insert_before(attention, fused_node("GatherColumns", name, {"x": rows, "order": order}, {"y": own}))
        attention.replace_input_with(list(attention.inputs).index(rows), own)

    def _share_attention(self, node: ir.Node) -> None:
        if _norms_all_heads(node):
            self._take_heads(node)
        given, made = operands(node), results(node)
        num_heads = attribute(node, "num_heads") // self.tp_size
        num_kv_heads, head_dim = self._kv_shape(node)
        node.attributes["num_heads"] = ir.AttrInt64("num_heads", num_heads)
        for value in (given["key_cache"], given["value_cache"], made["key_cache_out"], made["value_cache_out"]):
            shape = list(dims(value) or ())
            shape[1] = self._own_kv_heads(num_kv_heads)
            value.shape = ir.Shape(shape)
        if "sinks" in given:
            self._cut(given["sinks"], -1, [(self.rank * num_heads, (self.rank + 1) * num_heads)])
        if "stored" in made:
            raise self._refusal(node, "what it stores is an output of the network")
        self._mark(made["y"], num_heads * head_dim)

    # What a rank has of the inputs of products.

    def _share_inputs(self, node: ir.Node) -> None:
        given = operands(node)
        if attribute(node, "activation", "none") != "none":
            raise self._refusal(node, "its activation would be applied before the ranks' parts are added")
        if _is(node, "GroupedLinear"):
            self._take_experts(node)
        matrix = matrix_of(given)
        in_features, part = matrix.shape[-1], self._part_of(given["x"], node)
        for value in matrix.operands.values():
            self._cut_inputs(node, value, in_features, part)
        room = results(node).get("gathered")
        if room is not None:
            room.shape = ir.Shape([*(dims(room) or ())[:-1], part[1] - part[0]])
        is_first = self.rank % (self.moe_tp_size if _is(node, "GroupedLinear") else self.tp_size) == 0
        if "bias" in given and not is_first:  # it is added once
            self._replace(given["bias"], zeros(extents(self._tensor(given["bias"]))))
        self._add_collective(node, "AllReduce")

    def _part_of(self, x: ir.Value, node: ir.Node) -> Range:
        """The features that ``x``, which ``node`` reads, has on this rank; the last ones may be padding."""
        features = (dims(x) or ())[-1]
        assert isinstance(features, int)
        part = self.rank % self.moe_tp_size if _is(node, "GroupedLinear") else self.rank
        return part * features, (part + 1) * features

    def _cut_inputs(self, node: ir.Node, value: ir.Value, in_features: int, part: Range) -> None:
        """Keep the input features ``part`` of a weight or its numbers, whose columns are each for a block of them."""
        columns = extents(self._tensor(value))[-1]
        block = in_features // columns
        if columns == 1:
            return
        if part[0] % block or part[1] % block:
            raise self._refusal(
                node,
                f"a rank would have the input features {part[0]} to {part[1] - 1}, and the weight has scales for "
                f"blocks of {block}: quantize with a --group_size that divides {part[1] - part[0]}",
            )
        self._cut(value, -1, [(part[0] // block, part[1] // block)])

    # Experts.

    def _take_experts(self, node: ir.Node) -> None:
        """Keep the experts of the rank's run."""
        run, runs = self.rank // self.moe_tp_size, self.tp_size // self.moe_tp_size
        given = operands(node)
        for value in [*matrix_of(given).operands.values(), *([given["bias"]] if "bias" in given else [])]:
            count = extents(self._tensor(value))[0] // runs
            self._cut(value, 0, [(run * count, (run + 1) * count)])
        node.attributes["moe_tp_size"] = ir.AttrInt64("moe_tp_size", self.moe_tp_size)

    def _tally_own_experts(self, router: ir.Node) -> None:
        """Let ``router``, which chooses of all experts, count what falls on those of the rank's run."""
        local = attribute(router, "local_experts") * self.moe_tp_size // self.tp_size
        owned = {"local_experts": local, "moe_tp_size": self.moe_tp_size}
        router.attributes.update({name: ir.AttrInt64(name, value) for name, value in owned.items()})
        results(router)["tally"].shape = ir.Shape([implied_extents(all_schemas()["Router"], owned)["tallied"]])

    def _part_of_expert(self, node: ir.Node) -> Range:
        """The features that the rank has of each expert: whole blocks of the matrix that multiplies them."""
        (reader,) = {use.node for use in node.outputs[0].uses()}
        matrix = matrix_of(operands(reader))
        features, numbers = matrix.shape[-1], matrix.operands.get("weight_scale")
        blocks = 1 if numbers is None else extents(self._tensor(numbers))[-1]
        padded_to = _PADDED_TO if blocks == 1 else lcm(_PADDED_TO, features // blocks)
        return _even_part(features, self.moe_tp_size, self.rank % self.moe_tp_size, padded_to)

    # Embedding and logits.

    def _share_embedding(self, node: ir.Node) -> None:
        matrix = matrix_of(operands(node))
        part = _even_part(matrix.shape[0], self.tp_size, self.rank, _VOCAB_PADDED_TO)
        for value in matrix.operands.values():
            self._cut(value, -2, [part])
        self._add_collective(node, "AllReduce")

    def _makes_logits(self, node: ir.Node) -> bool:
        value = node.outputs[0]
        while not value.is_graph_output():
            readers = {use.node for use in value.uses()}
            if len(readers) != 1:
                return False
            (reader,) = readers
            if not _is(reader, "Rowwise"):
                return False
            value = reader.outputs[0]
        return value.name == LOGITS

    def _share_logits(self, node: ir.Node) -> None:
        features = (dims(node.outputs[0]) or ())[-1]
        assert isinstance(features, int)
        self._cut_product(node, [_even_part(features, self.tp_size, self.rank, _VOCAB_PADDED_TO)])
        self.parted.remove(node.outputs[0])
        self._add_collective(node, "AllGather", features)

    # What reads some features and makes as many.

    def _follow(self, node: ir.Node) -> None:
        if node.op_type not in _ROW_WISE:
            raise self._refusal(node, f"{node.op_type} reads features that the ranks share out")
        (features,) = {(dims(value) or ())[-1] for value in node.inputs if value is not None and value in self.parted}
        assert isinstance(features, int)
        if _is(node, "Rowwise"):
            for name, value in operands(node).items():
                if name.startswith("x") and value not in self.parted:
                    raise self._refusal(node, "it reads features that the ranks share out beside others")
                if name.startswith("v"):
                    self._cut(value, -1, [(self.rank * features, (self.rank + 1) * features)])
        for name, value in results(node).items():
            if name == "y":
                self._mark(value, features)

    # Tools.

    def _mark(self, value: ir.Value, features: int) -> None:
        value.shape = ir.Shape([*(dims(value) or ())[:-1], features])
        self.parted.add(value)

    def _cut(self, value: ir.Value, axis: int, ranges: Sequence[Range]) -> None:
        """Keep ``ranges`` of a weight; a weight that several operators read is cut once along an axis."""
        tensor = self._tensor(value)
        axis %= len(extents(tensor))
        if (value, axis) in self.cut:
            if self.cut[value, axis] != ranges:
                raise BuildError(
                    f"tp_size is {self.tp_size}: {value.name} is shared by operators that need different parts of it: "
                    "give each its own copy in network.onnx"
                )
            return
        if list(ranges) == [(0, extents(tensor)[axis])]:
            return
        is_whole = all(known is not value for known, _ in self.cut)
        self.cut[value, axis] = ranges
        self._replace(value, take(self.sources.of(tensor) if is_whole else tensor, axis, ranges))

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol:
        tensor = weight_tensor(value)
        assert tensor is not None
        return tensor

    def _replace(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        value.const_value, value.shape = tensor, ir.Shape(extents(tensor))

    def _add_collective(self, node: ir.Node, op_type: str, features: int | None = None) -> None:
        """Let what reads the result of ``node`` read what ``op_type`` makes of all ranks' results."""
        value = node.outputs[0]
        shape = list(dims(value) or ())
        whole = value_of(f"{value.name}.whole", ir.DataType.FLOAT, [*shape[:-1], features or shape[-1]])
        replace_value(value, whole)
        name = f"{node.name}.{'all_reduce' if op_type == 'AllReduce' else 'all_gather'}"
        self.graph.insert_after(node, fused_node(op_type, name, {"x": value}, {"y": whole}))

    def _uneven_heads(self, node: ir.Node, problem: str, num_heads: int, num_kv_heads: int) -> BuildError:
        sizes = range(1, MAX_TP_SIZE + 1)
        fitting = [str(size) for size in sizes if num_heads % size == 0 and _shares_out(num_kv_heads, size)]
        return self._refusal(node, f"its {problem} evenly; pass a --tp_size of {' or '.join(fitting)}")

    def _refusal(self, node: ir.Node, problem: str) -> BuildError:
        return BuildError(
            f"tp_size is {self.tp_size}, and {node.name} cannot be shared out by so many ranks: {problem}"
        )


def _shares_out(num_kv_heads: int, tp_size: int) -> bool:
    """Whether each rank gets as many key/value heads, or each head as many ranks."""
    return num_kv_heads % tp_size == 0 or tp_size % num_kv_heads == 0


def _even_part(features: int, num_parts: int, part: int, padded_to: int) -> Range:
    """Part number ``part`` of ``features``: equal parts, the last of which ends with padding if they are not even."""
    share, uneven = divmod(features, num_parts)
    if uneven or (num_parts > 1 and share % padded_to):
        share = -(-features // num_parts // padded_to) * padded_to
    return part * share, (part + 1) * share


def _norms_all_heads(attention: ir.Node) -> bool:
    return fused_by(operands(attention)["qkv"], "QueryKeyNorm") is not None


def _is(node: ir.Node | None, *op_types: str) -> bool:
    return node is not None and node.op_type in op_types


def _origins(value: ir.Value) -> set[ir.Node | None]:
    """What makes the features that operators without regard to their neighbours turn into ``value``."""
    node = value.producer()
    if node is None or node.op_type not in _ROW_WISE:
        return {node}
    rows = [found for name, found in operands(node).items() if name.startswith("x")]
    return set().union(*map(_origins, rows))
