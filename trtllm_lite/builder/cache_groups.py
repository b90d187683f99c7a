"""Divides the layers into cache groups: which state each layer keeps of a sequence, and where it lies in the blocks.

What an operator keeps of a token, and of which kind that is, follows from its schema and the shapes of its caches.
Layers of one kind and window keep the same positions. Every KV cache block is as large as the largest group needs, so
that one pool of blocks serves all groups, as in the hybrid allocator of vLLM. A network with one kind of attention has
one group. The states of recurrent
layers are a group of their own, for which a sequence takes a run of blocks.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, operands, stored_in
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.format import align
from trtllm_lite.engine.manifest import Cache, CacheGroup
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.replay import ALIGNMENT
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

# Largest share of bytes that no layer uses. Smaller blocks usually leave fewer idle, but make more groups.
_MOST_IDLE = 1 / 8
_STATE_ALIGNMENT = 4 * ALIGNMENT  # bytes
_OF_BLOCKS = ("num_blocks", "tokens_per_block")  # the axes of a cache that tokens do not have

_Layer = tuple[Cache, ...]  # what one layer keeps


def assign_cache_groups(graph: ir.Graph, max_seq_len: int) -> tuple[CacheGroup, ...]:
    """Let each layer of ``graph`` read its group's block tables.

    A window as long as the longest sequence counts as no window. Groups without a window come first, then by descending
    window, and then the recurrent layers. Raises BuildError for a network without attention, or if recurrent layers
    keep states of different sizes.
    """
    of_kinds: dict[tuple[int, str], list[_Layer]] = {}
    states: list[_Layer] = []
    owners: dict[_Layer, tuple[ir.Node, ...]] = {}
    for nodes in layers_of(graph):
        kind, kept = caches_of(nodes)
        owners[kept] = nodes
        if kind == STATE:
            states.append(kept)
            continue
        window = attribute(nodes[0], "window", 0)
        window = window if window < max_seq_len else 0
        of_kinds.setdefault((window, "window" if window else kind), []).append(kept)
    if not of_kinds:
        raise BuildError("expected a network with attention layers, found none: it cannot run as a decoder")
    groups = _groups(of_kinds)
    if states:
        _check_alike(states, owners)
        groups = (*groups, CacheGroup(STATE, STATE, 0, tuple(cache for kept in states for cache in kept)))
    for number, group in enumerate(groups):
        for node in (node for kept in group.by_layer.values() for node in owners[kept]):
            node.attributes["cache_group"] = ir.AttrInt64("cache_group", number)
    return groups


def _check_alike(states: Iterable[_Layer], owners: Mapping[_Layer, Sequence[ir.Node]]) -> None:
    """Raise BuildError, which names layers that differ, unless all recurrent layers keep the same ``states``."""
    found: dict[tuple[tuple[str, tuple[int, ...]], ...], str] = {}
    for kept in states:
        shapes = tuple((cache.name, cache.shape) for cache in kept)
        found.setdefault(shapes, str(owners[kept][0].name))
    if len(found) > 1:
        shown = {name: " and ".join(f"{cache} {list(shape)}" for cache, shape in of) for of, name in found.items()}
        keeping = "; ".join(f"{name} keeps {caches}" for name, caches in shown.items())
        raise BuildError(f"expected all layers to keep states of equal size, found that {keeping}")


def caches_layer(node: ir.Node) -> bool:
    """Return whether ``node`` updates or reads caches of a layer."""
    return node.domain == DOMAIN and all_schemas()[node.op_type].caches_layer


def layers_of(graph: ir.Graph) -> list[tuple[ir.Node, ...]]:
    """Return the operators that update or read the caches of each layer, in order; the first updates them.

    A recurrent layer has several, and so has attention whose caches later layers read. A layer with attention and
    states is listed twice, with the operators of each.
    """
    layers: dict[tuple[int, str], list[ir.Node]] = {}
    for node in graph:
        if caches_layer(node):
            kind, kept = caches_of([node])
            layers.setdefault((kept[0].layer, kind), []).append(node)
    return [tuple(nodes) for nodes in layers.values()]


@dataclass(frozen=True)
class BlockLayout:
    """Where a block holds what layers keep: ``offsets`` in bytes by the names of the plan's tensors.

    The blocks of a cache are ``num_bytes`` apart. States lie side by side in runs of blocks, first those whose sizes
    are multiples of ALIGNMENT words (plugins/replay.py), so that each of these begins at such a multiple.
    """

    offsets: Mapping[str, int]
    num_bytes: int


def block_layout(groups: Sequence[CacheGroup], tokens_per_block: int) -> BlockLayout:
    """Lay out what the layers of ``groups`` keep: the caches of a group lie side by side, layer by layer.

    A pipeline stage without attention has blocks as large as its states need. Features, which another engine may read,
    have blocks of their own.
    """
    offsets, of_token = dict[str, int](), _token_bytes(groups)
    for group in groups:
        if group.kind == STATE:
            aligned_first = sorted(group.caches, key=lambda cache: cache.num_bytes % _STATE_ALIGNMENT > 0)
            offsets |= _side_by_side(aligned_first, 1)
            continue
        offsets |= _side_by_side([cache for kept in group.by_layer.values() for cache in kept], tokens_per_block)
    if of_token:
        return BlockLayout(offsets, tokens_per_block * of_token)
    sizes = [-(-group.num_bytes // group.blocks) for group in groups if group.kind == STATE]
    return BlockLayout(offsets, align(sum(sizes)))


def _token_bytes(groups: Iterable[CacheGroup]) -> int:
    """The bytes of a token in a block: those of the largest group; 0 if there are only states."""
    return max((group.num_bytes for group in groups if group.kind != STATE), default=0)


def _side_by_side(caches: Sequence[Cache], num_tokens: int) -> dict[str, int]:
    """The offsets of ``caches`` of ``num_tokens`` tokens."""
    ends = accumulate((cache.num_bytes for cache in caches), initial=0)
    return {cache.tensor: num_tokens * offset for cache, offset in zip(caches, ends, strict=False)}


def as_stored(
    groups: Sequence[CacheGroup],
    tokens_per_block: int,
    dtype_of: Callable[[str], str],
    of_stages: Sequence[Sequence[CacheGroup]] = (),
) -> tuple[CacheGroup, ...]:
    """Return ``groups`` with the types in which a backend stores what they keep, and with the blocks of states.

    ``dtype_of`` maps the type that keys, values or latents have in the graph to that in which they are stored.
    ``of_stages`` are the groups of all stages of a pipeline, whose states take equally many blocks.
    """

    def stored(group: CacheGroup) -> CacheGroup:
        if group.kind == STATE:
            return group
        return replace(group, caches=tuple(replace(cache, dtype=dtype_of(cache.dtype)) for cache in group.caches))

    blocks = _blocks_of_states([[*map(stored, of_stage)] for of_stage in (of_stages or [groups])], tokens_per_block)
    return tuple(replace(group, blocks=blocks) if group.kind == STATE else stored(group) for group in groups)


def _blocks_of_states(stages: Sequence[Sequence[CacheGroup]], tokens_per_block: int) -> int:
    """The blocks that states take, enough in each of ``stages``.

    A stage without attention is counted with blocks as large as the largest of other stages.
    """
    of_block = [tokens_per_block * _token_bytes(groups) for groups in stages]
    of_states = [sum(group.num_bytes for group in groups if group.kind == STATE) for groups in stages]
    largest = max(*of_block, 1)  # an encoder keeps nothing
    return max(-(-states // (num_bytes or largest)) for states, num_bytes in zip(of_states, of_block, strict=True))


def groups_of_rank(groups: Sequence[CacheGroup], graph: ir.Graph) -> tuple[CacheGroup, ...]:
    """Return ``groups`` with what the layers of a rank's ``graph`` keep, which may be a part of the heads."""
    kept = {cache.tensor: cache for nodes in layers_of(graph) for cache in caches_of(nodes)[1]}
    return tuple(replace(group, caches=tuple(kept[cache.tensor] for cache in group.caches)) for group in groups)


def caches_of(nodes: Sequence[ir.Node]) -> tuple[str, tuple[Cache, ...]]:
    """Return the kind of the caches of a layer's operators, without its window, and what they keep.

    The types are those in the graph: backends may choose others.
    """
    kinds, caches = set(), dict[Cache, None]()
    for node in nodes:
        given = operands(node)
        for argument in all_schemas()[node.op_type].caches:
            kinds.add(argument.cache)
            value = stored_in(given[argument.name])
            assert value.dtype is not None
            of_axes = list(zip(argument.shape, dims(value) or (), strict=True))
            extents = tuple(extent for axis, extent in of_axes if axis not in _OF_BLOCKS and isinstance(extent, int))
            assert len(extents) == sum(axis not in _OF_BLOCKS for axis, _ in of_axes)
            _, _, layer = str(value.name).rpartition(".")
            kept = Cache(int(layer), argument.name, DTYPE_NAMES[value.dtype], extents)
            assert kept.tensor == value.name
            caches[kept] = None
    (kind,) = kinds
    assert kind is not None
    return kind, tuple(caches)


def _groups(of_kinds: Mapping[tuple[int, str], list[_Layer]]) -> tuple[CacheGroup, ...]:
    """Divide the layers of each window and kind into groups for which a block has room."""
    capacity = block_capacity(of_kinds.values())
    groups: list[CacheGroup] = []
    for window, kind in sorted(of_kinds, key=lambda key: (key[0] > 0, -key[0])):
        name = f"window_{window}" if window else "full"
        for layers in _divided(of_kinds[window, kind], capacity):
            number = sum(group.window == window for group in groups)
            suffix = f".{number}" if number else ""
            caches = tuple(cache for kept in layers for cache in kept)
            groups.append(CacheGroup(name + suffix, kind, window, caches))
    return tuple(groups)


def _divided(layers: Sequence[_Layer], capacity: int) -> list[list[_Layer]]:
    """Divide ``layers`` into the fewest groups of at most ``capacity`` bytes a token, the largest layers first."""
    least = -(-_sum_of_bytes(layers) // capacity)
    divisions = (_in_turns(layers, count) for count in range(least, len(layers) + 1))
    return next(groups for groups in divisions if max(map(_sum_of_bytes, groups)) <= capacity)


def _in_turns(layers: Sequence[_Layer], count: int) -> list[list[_Layer]]:
    """``count`` groups of ``layers``.

    Successive layers of a size go to the groups in turn, so that a pipeline stage has about equally many of each.
    """
    by_size = sorted(layers, key=_num_bytes, reverse=True)
    return [by_size[number::count] for number in range(count)]


def _num_bytes(kept: _Layer) -> int:
    return sum(cache.num_bytes for cache in kept)


def _sum_of_bytes(layers: Iterable[_Layer]) -> int:
    return sum(map(_num_bytes, layers))


def block_capacity(kinds: Collection[Sequence[_Layer]]) -> int:
    """The bytes of a token in a block, given the layers of each kind: those of the smallest kind, or an even part.

    The result is the largest that leaves at most an eighth of the bytes of all groups' blocks idle. If none does,
    because layers differ too much, it is the size of a part of any kind: the largest such, or else the one that leaves
    the smallest share idle.
    """
    largest = max(_num_bytes(kept) for layers in kinds for kept in layers)

    def parts(layers: Sequence[_Layer], counts: Iterable[int]) -> list[int]:
        sizes = [max(map(_sum_of_bytes, _in_turns(layers, count))) for count in counts]
        return [size for size in sizes if size >= largest]

    def share_idle(capacity: int) -> float:
        groups = [_sum_of_bytes(layers) for of_kind in kinds for layers in _divided(of_kind, capacity)]
        return 1 - sum(groups) / (len(groups) * max(groups))

    smallest = min(kinds, key=_sum_of_bytes)
    even = parts(smallest, (count for count in range(1, len(smallest) + 1) if len(smallest) % count == 0))
    every = sorted({size for layers in kinds for size in parts(layers, range(1, len(layers) + 1))}, reverse=True)
    found = next((size for size in (*even, *every) if share_idle(size) <= _MOST_IDLE), None)
    return min(every, key=share_idle) if found is None else found
