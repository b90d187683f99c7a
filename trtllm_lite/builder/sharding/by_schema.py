"""Divides operators as their schemas say: by heads, or by channels that are treated each by itself."""

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from trtllm_lite.builder.constraints import broken_among
from trtllm_lite.builder.graph import attribute, weight_tensor
from trtllm_lite.builder.sharding.attention import heads_that_serve, uneven_heads
from trtllm_lite.builder.sharding.rank import Columns, Range, Rank, shifted
from trtllm_lite.plugins.schema import Argument, Schema, all_schemas


def is_divided(node: ir.Node) -> bool:
    """Whether the schema says how ranks divide ``node``."""
    schema = all_schemas()[node.op_type]
    return bool(schema.heads or schema.channels)


def rows_of_heads(rank: Rank, node: ir.Node) -> list[tuple[Columns, list[Range]]]:
    """The rows that ``node`` reads, with the features of the rank's heads; none unless ``node`` is divided by heads."""
    if not all_schemas()[node.op_type].heads:
        return []
    names, heads = _whole_extents(rank, node), _own_heads(rank, node)
    read = _columns(rank, node)
    return [(read[argument.name], _features(argument, names, heads)) for argument, _ in _rows(node)]


def rows_of_channels(rank: Rank, node: ir.Node) -> list[Columns]:
    """The rows of which ``node`` treats each feature alone, or in groups."""
    return [] if all_schemas()[node.op_type].channels is None else list(_columns(rank, node).values())


def share(rank: Rank, node: ir.Node) -> None:
    """Give the rank its heads or channels of ``node``, the rows of which are divided already."""
    schema = all_schemas()[node.op_type]
    names, parts = _whole_extents(rank, node), _parts(rank, node)
    rows = _rows_in_parts(rank, node)
    for argument, _ in _rows(node):
        if rows.get(argument.name) != _features(argument, names, parts):
            raise rank.refusal(node, f"the ranks have other features of {argument.name} than it needs")
    for argument, value in _arguments(node):
        _cut(rank, argument, value, names, parts)
    for argument, value in zip(schema.outputs, node.outputs, strict=False):
        if argument.is_row and value.name:
            rank.mark(value, _features(argument, names, parts))
    own = {name: _count(parts[name]) for name in schema.heads if name in node.attributes}
    own |= _own_begins(rank, node)
    node.attributes.update({name: ir.AttrInt64(name, count) for name, count in own.items()})


def _parts(rank: Rank, node: ir.Node) -> dict[str, list[Range]]:
    """The rank's heads of each kind, or its channels, by the name that the schema gives them."""
    schema = all_schemas()[node.op_type]
    if schema.heads:
        return _own_heads(rank, node)
    if schema.channels is None:
        raise rank.refusal(node, f"the schema of {node.op_type} does not say how ranks divide it")
    channels = _own_channels(rank, node)
    _check_bounds(rank, node, channels)
    parts = {schema.channels: channels}
    if schema.channel_groups is not None:
        size = _group_size(schema, _whole_extents(rank, node))
        parts[schema.channel_groups] = [(start // size, stop // size) for start, stop in parts[schema.channels]]
    return parts


def _own_channels(rank: Rank, node: ir.Node) -> list[Range]:
    """The channels that the rank has of all rows that ``node`` reads. Raises BuildError if they differ."""
    rows = list(_rows_in_parts(rank, node).values())
    if not rows:
        raise rank.refusal(node, "what it reads is not divided")
    if any(part != rows[0] for part in rows):
        raise rank.refusal(node, "it reads inputs of which the ranks have different features")
    return rows[0]


def _rows_in_parts(rank: Rank, node: ir.Node) -> dict[str, list[Range]]:
    """The features that the rank has of rows that ``node`` reads and ranks divide, by the name of the input."""
    found = {}
    for name, columns in _columns(rank, node).items():
        part = rank.part_of(columns.rows)
        if part is not None:
            features = rank.whole_dims(columns.rows)[-1]
            found[name] = shifted([own for own in part if columns.holds(own, features)], -columns.first)
    return found


def _own_begins(rank: Rank, node: ir.Node) -> dict[str, int]:
    """Where columns that ``node`` reads begin in the rank's rows, by attribute."""
    read = _columns(rank, node)
    return {
        argument.first: _count([own for own in rank.part_of(value) or () if own[0] < read[argument.name].first])
        for argument, value in _rows(node)
        if argument.columns is not None
    }


def _columns(rank: Rank, node: ir.Node) -> dict[str, Columns]:
    """The columns that ``node`` reads of the rows of the whole network, by the name of the input."""
    names = _whole_extents(rank, node)
    found = {}
    for argument, value in _rows(node):
        first = names[argument.first] if argument.columns else 0
        found[argument.name] = Columns(value, first, first + names[str(argument.features)])
    return found


def _group_size(schema: Schema, names: Mapping[str, int]) -> int:
    """The channels of a group; 1 if the schema has no groups of channels."""
    if schema.channels is None or schema.channel_groups is None:
        return 1
    return names[schema.channels] // names[schema.channel_groups]


def _own_heads(rank: Rank, node: ir.Node) -> dict[str, list[Range]]:
    """The rank's heads of each kind. Raises BuildError if they cannot be divided."""
    kinds, names = all_schemas()[node.op_type].heads, _whole_extents(rank, node)
    first, second = names[kinds[0]], names[kinds[-1]]
    serving = heads_that_serve(rank, second)
    if first % rank.tp_size:
        raise uneven_heads(rank, node, f"{first} {_words(kinds[0])} cannot be split", first, second)
    if serving is None:
        raise uneven_heads(rank, node, f"{second} {_words(kinds[-1])} cannot be split or repeated", first, second)
    return {kinds[-1]: [serving], kinds[0]: [rank.own(first // rank.tp_size)]}


def _words(kind: str) -> str:
    return kind.removeprefix("num_").replace("_", " ")


def _features(argument: Argument, names: Mapping[str, int], parts: Mapping[str, Sequence[Range]]) -> list[Range]:
    """The rank's elements of the last axis of ``argument``."""
    if not argument.heads:
        return list(parts[str(argument.features)])
    found, begin = [], 0
    for part in argument.heads:
        kind, _, each = part.partition(" * ")
        found += [(begin + start * names[each], begin + stop * names[each]) for start, stop in parts[kind]]
        begin += names[kind] * names[each]
    return found


def _cut(
    rank: Rank,
    argument: Argument,
    value: ir.Value,
    names: Mapping[str, int],
    parts: Mapping[str, Sequence[Range]],
) -> None:
    """Keep the rank's elements of a weight, or give a cache the shape that it has on the rank."""
    if argument.heads and weight_tensor(value) is not None:
        rank.cut(value, -1, _features(argument, names, parts))
        return
    for axis, symbol in enumerate(argument.shape):
        if symbol not in parts:
            continue
        if weight_tensor(value) is not None:
            rank.cut(value, axis, parts[str(symbol)])
        elif not argument.is_row:
            shape = list(rank.whole_dims(value))
            shape[axis] = _count(parts[str(symbol)])
            rank.reshape(value, shape)


def _check_bounds(rank: Rank, node: ir.Node, channels: Sequence[Range]) -> None:
    """Raise BuildError if the rank's ``channels`` begin or end where the schema's constraints allow no end."""
    schema, names = all_schemas()[node.op_type], _whole_extents(rank, node)
    assert schema.channels is not None
    size = _group_size(schema, names)
    for argument in schema.inputs:
        if argument.columns is not None:
            del names[str(argument.shape[-1])]  # a padded part may end behind the rows
    for bound in {bound for part in channels for bound in part}:
        groups = {} if schema.channel_groups is None else {schema.channel_groups: bound // size}
        broken = broken_among(schema, {**names, **groups, schema.channels: bound}, schema.channels)
        if broken:
            raise rank.refusal(node, f"the rank's features would begin or end at {bound}, against {broken[0]}")


def _whole_extents(rank: Rank, node: ir.Node) -> dict[str, int]:
    """The extents and integer attributes of ``node`` in the whole network, by name."""
    attributes = {given.name: attribute(node, given.name) for given in all_schemas()[node.op_type].attributes}
    names = {name: value for name, value in attributes.items() if isinstance(value, int)}
    for argument, value in _arguments(node):
        axes = zip(argument.shape, rank.whole_dims(value), strict=True)
        names |= {axis: extent for axis, extent in axes if isinstance(axis, str) and isinstance(extent, int)}
    return names


def _arguments(node: ir.Node) -> Iterator[tuple[Argument, ir.Value]]:
    """The inputs and outputs that ``node`` has."""
    schema = all_schemas()[node.op_type]
    for arguments, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for argument, value in zip(arguments, values, strict=False):
            if value is not None and value.name:
                yield argument, value


def _rows(node: ir.Node) -> list[tuple[Argument, ir.Value]]:
    """The rows of activations that ``node`` reads, and of which a rank has some features."""
    schema = all_schemas()[node.op_type]
    inputs = zip(schema.inputs, node.inputs, strict=False)
    return [
        (argument, value)
        for argument, value in inputs
        if value is not None and weight_tensor(value) is None and argument.is_row
        if argument.heads or argument.features in (*schema.heads, schema.channels)
    ]


def _count(ranges: Sequence[Range]) -> int:
    return sum(stop - start for start, stop in ranges)
