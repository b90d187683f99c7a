"""Divides the layers into cache groups: which state each layer keeps of a sequence, and where it lies in the blocks.

What an operator keeps of a token, and of which kind that is, follows from its schema and the shapes of its caches.
Layers of one kind and window keep the same positions. Every KV cache block has the same number of places, each for one
layer of a group, so that one pool of blocks serves all groups, as in the hybrid allocator of vLLM. A network with one
kind of attention has one group. The states of recurrent layers are a group of their own, for which a sequence takes a
run of blocks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, cache_kind, dims, operands
from trtllm_lite.common.vocabulary import DTYPES, FEATURES, STATE
from trtllm_lite.engine.manifest import Cache, CacheGroup
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

# Largest share of places without a layer. With fewer places per block, fewer stay empty, but there are more groups.
_MOST_IDLE = 1 / 8
_OF_BLOCKS = ("num_blocks", "tokens_per_block")  # the axes of a cache that tokens do not have


def assign_cache_groups(graph: ir.Graph, max_seq_len: int) -> tuple[CacheGroup, ...]:
    """Let each layer of ``graph`` read its group's block tables, and attentions of equal place in groups share a cache.

    A window as long as the longest sequence counts as no window. Groups without a window come first, then by descending
    window, and then the recurrent layers. Raises BuildError for a network without attention, or if layers of a kind
    keep different things.
    """
    layers = dict(enumerate(layers_of(graph)))
    recurrent = {layer: nodes for layer, nodes in layers.items() if caches_of(nodes)[0] == STATE}
    attention = {layer: nodes for layer, nodes in layers.items() if layer not in recurrent}
    if not attention:
        raise BuildError("expected a network with attention layers, found none: it cannot run as a decoder")
    of_windows: dict[int, list[int]] = {}
    for layer, (node,) in attention.items():
        window = attribute(node, "window", 0)
        of_windows.setdefault(window if window < max_seq_len else 0, []).append(layer)
    _check_alike(attention.values(), "as much of a token")
    groups = _groups(of_windows, *caches_of(next(iter(attention.values()))))
    share_caches(graph, attention, groups)
    if recurrent:
        _check_alike(recurrent.values(), "states of equal size")
        kind, caches = caches_of(next(iter(recurrent.values())))
        groups = (*groups, CacheGroup(kind, kind, 0, tuple(recurrent), caches))
        for node in (node for nodes in recurrent.values() for node in nodes):
            node.attributes["tokens_per_state"] = ir.AttrInt64("tokens_per_state", max_seq_len)
    for number, group in enumerate(groups):
        for node in (node for layer in group.layers for node in layers[layer]):
            node.attributes["cache_group"] = ir.AttrInt64("cache_group", number)
    return groups


def _check_alike(layers: Iterable[Sequence[ir.Node]], what: str) -> None:
    """Raise BuildError, which names layers that differ, unless all of ``layers`` keep the same."""
    kept: dict[tuple[tuple[str, tuple[int, ...]], ...], str] = {}
    for nodes in layers:
        _, caches = caches_of(nodes)
        kept.setdefault(tuple((cache.name, cache.shape) for cache in caches), str(nodes[0].name))
    if len(kept) > 1:
        shown = {name: " and ".join(f"{cache} {list(shape)}" for cache, shape in of) for of, name in kept.items()}
        found = "; ".join(f"{name} keeps {caches}" for name, caches in shown.items())
        raise BuildError(f"expected all layers to keep {what}, found that {found}")


def caches_layer(node: ir.Node) -> bool:
    """Return whether ``node`` updates caches of a layer."""
    return node.domain == DOMAIN and all_schemas()[node.op_type].caches_layer


def layers_of(graph: ir.Graph) -> list[tuple[ir.Node, ...]]:
    """Return the operators that update the caches of each layer, in order.

    A recurrent layer has several, each of another type.
    """
    layers: list[tuple[ir.Node, ...]] = []
    for node in graph:
        if not caches_layer(node):
            continue
        last = layers[-1] if layers else ()
        follows = caches_of([node])[0] == STATE and last and caches_of(last)[0] == STATE
        if follows and node.op_type not in {other.op_type for other in last}:
            layers[-1] = (*last, node)
        else:
            layers.append((node,))
    return layers


@dataclass(frozen=True)
class BlockLayout:
    """Where a block holds what each cache of layers keeps: ``offsets`` in bytes by the cache's name, side by side.

    The blocks of a cache are ``num_bytes`` apart. States lie side by side in runs of ``blocks_of_states`` blocks.
    """

    offsets: Mapping[str, int]
    num_bytes: int
    blocks_of_states: int


def block_layout(graph: ir.Graph, tokens_per_block: int, dtype_of: Callable[[ir.Value], str]) -> BlockLayout:
    """Lay out the caches of layers that ``graph`` has as inputs, in their order.

    ``dtype_of`` is how keys, values and latents are stored. Features, which another engine may read, have blocks of
    their own.
    """
    offsets, end, end_of_states = dict[str, int](), 0, 0
    for value in graph.inputs:
        kind, name = cache_kind(value), str(value.name)
        if kind is None or name == FEATURES:
            continue
        extents = [tokens_per_block if dim == _OF_BLOCKS[1] else dim for dim in (dims(value) or ())[1:]]
        count = prod(extent for extent in extents if isinstance(extent, int))
        if kind == STATE:
            offsets[name] = end_of_states
            end_of_states += count * DTYPES[_stored_dtype(value)].bits // 8
        else:
            offsets[name] = end
            end += count * DTYPES[dtype_of(value)].bits // 8
    return BlockLayout(offsets, end, -(-end_of_states // end) if end else 0)


def with_runs(groups: Sequence[CacheGroup], layout: BlockLayout) -> tuple[CacheGroup, ...]:
    """Return ``groups`` with the number of blocks that states take by ``layout``."""
    return tuple(replace(group, blocks=layout.blocks_of_states) if group.kind == STATE else group for group in groups)


def _stored_dtype(value: ir.Value) -> str:
    assert value.dtype is not None
    return DTYPE_NAMES[value.dtype]


def groups_of_rank(groups: Sequence[CacheGroup], graph: ir.Graph) -> tuple[CacheGroup, ...]:
    """Return ``groups`` with what the layers of a rank's ``graph`` keep, which may be a part of the heads."""
    ((_, caches),) = {caches_of(nodes) for nodes in layers_of(graph)}
    return tuple(replace(group, caches=caches) for group in groups)


def caches_of(nodes: Sequence[ir.Node]) -> tuple[str, tuple[Cache, ...]]:
    """Return the kind of the caches that a layer's operators update, without its window, and what they keep.

    The types are those in the graph: backends may choose others.
    """
    kinds, caches = set(), []
    for node in nodes:
        given = operands(node)
        for argument in all_schemas()[node.op_type].caches:
            kinds.add(argument.cache)
            value = given[argument.name]
            of_axes = list(zip(argument.shape, dims(value) or (), strict=True))
            extents = tuple(extent for axis, extent in of_axes if axis not in _OF_BLOCKS and isinstance(extent, int))
            assert len(extents) == sum(axis not in _OF_BLOCKS for axis, _ in of_axes)
            caches.append(Cache(argument.name, _stored_dtype(value), extents))
    (kind,) = kinds
    assert kind is not None
    return kind, tuple(caches)


def _groups(layers: dict[int, list[int]], kind: str, caches: tuple[Cache, ...]) -> tuple[CacheGroup, ...]:
    """Divide the layers of each window into groups of at most as many layers as a block has places.

    Successive layers of a window go to its groups in turn, so that a pipeline stage has about equally many of each.
    """
    num_places = places_of_block([len(of_kind) for of_kind in layers.values()])
    groups = []
    for window in sorted(layers, key=lambda window: (window > 0, -window)):
        name, own = f"window_{window}" if window else "full", layers[window]
        count = -(-len(own) // num_places)
        for number in range(count):
            suffix = f".{number}" if number else ""
            of_window = ("window" if window else kind, window, tuple(own[number::count]))
            groups.append(CacheGroup(name + suffix, *of_window, caches))
    return tuple(groups)


def places_of_block(counts: Sequence[int]) -> int:
    """How many layers a block holds, given the number of layers of each kind: the smallest of these or a divisor of it.

    The result is the largest for which at most an eighth of all places are without a layer.
    """

    def num_idle(places: int) -> int:
        return sum(-count % places for count in counts)

    smallest, total = min(counts), sum(counts)
    divisors = [places for places in range(smallest, 0, -1) if smallest % places == 0]
    return next(places for places in divisors if num_idle(places) <= (total + num_idle(places)) * _MOST_IDLE)


def share_caches(graph: ir.Graph, layers: Mapping[int, Sequence[ir.Node]], groups: Sequence[CacheGroup]) -> None:
    """Let layers of equal place in ``groups`` update one cache, one after the other, in blocks of their groups.

    ``layers`` maps the number of each layer to its operators, in order of layers.
    """
    places = {layer: place for group in groups for place, layer in enumerate(group.layers)}
    latest = dict[tuple[str, int], ir.Value]()
    for layer, node in ((layer, node) for layer, nodes in layers.items() for node in nodes):
        schema = all_schemas()[node.op_type]
        outputs = {output.alias: position for position, output in enumerate(schema.outputs)}
        for cache in (argument.name for argument in schema.caches):
            position, before = schema.input_index(cache), latest.get((cache, places[layer]))
            if before is not None:
                own = node.inputs[position]
                assert own is not None
                node.replace_input_with(position, before)
                graph.inputs.remove(own)
                graph.outputs.remove(before)
            latest[cache, places[layer]] = node.outputs[outputs[cache]]
