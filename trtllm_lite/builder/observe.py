"""Makes the inputs of chosen products, or the keys and values of attentions, outputs of the step, for calibration."""

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from trtllm_lite.builder.graph import aliases_of, dims, fused_node, nodes_of, operands, results, value_of
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

ROWS, MAGNITUDES = "observed.", "magnitudes."  # prefixes of the outputs' names


def observe(graph: ir.Graph, inputs: Mapping[str, Sequence[str]], unfused: Collection[str]) -> None:
    """Add outputs ``observed.<name>`` and ``magnitudes.<name>`` to the fused ``graph`` for each of ``inputs``.

    The former outputs are rows, the latter their magnitudes by ChannelMagnitudes. ``inputs`` maps a name to the paths
    of the network's products that multiply the same activations, or to the path of an attention, whose keys and values
    are shown as they are before a cache rounds them. ``unfused`` are the names of all nodes before fusions: a product
    without such a name merges several. Raises BuildError if activations are overwritten within a step.
    """
    attentions = {str(node.name): node for node in nodes_of(graph, "PagedAttention", DOMAIN)}
    products = {str(node.name): node for kind in ("Linear", "GatedLinear") for node in nodes_of(graph, kind, DOMAIN)}
    for name, paths in inputs.items():
        if paths[0] in attentions:
            _show(graph, _stored(attentions[paths[0]]), name)
            continue
        own = (products[path] for path in paths if path in products)
        node = next(own, None) or _merged(products, paths, unfused)
        if node is None:
            raise BuildError(f"{name}: the build finds no product that multiplies this input; leave the layer out")
        x = operands(node)["x"]
        if _is_overwritten(x):
            raise BuildError(
                f"{name}: its input shares memory with the residual, and cannot be observed; leave the layer out"
            )
        if x.is_graph_output():
            raise BuildError(f"{name}: its input is an output already ({x.name}); report this with network.onnx")
        _show(graph, x, name)


def shows_rows(graph: ir.Graph) -> bool:
    """Whether the graph has outputs that :func:`observe` adds."""
    return any(str(value.name).startswith(ROWS) for value in graph.outputs)


def _stored(attention: ir.Node) -> ir.Value:
    """Adds the output ``stored`` to an attention."""
    rows = (dims(results(attention)["y"]) or (None,))[0]
    _, heads, head_dim, _ = dims(operands(attention)["key_cache"]) or (None,) * 4
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    position = [output.name for output in all_schemas()["PagedAttention"].outputs].index("stored")
    attention.resize_outputs(position + 1)
    stored = attention.outputs[position]
    stored.type, stored.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([rows, 2 * heads * head_dim])
    return stored


def _merged(products: Mapping[str, ir.Node], paths: Sequence[str], unfused: Collection[str]) -> ir.Node | None:
    """Return the product that merges the projections at ``paths``, which is in their block of the network."""
    blocks = {path.rpartition(".")[0] for path in paths}
    found = (node for name, node in products.items() if name.rpartition(".")[0] in blocks and name not in unfused)
    return next(found, None)


def _is_overwritten(value: ir.Value) -> bool:
    """Whether the value shares its storage with another."""
    producer = value.producer()
    makes = producer is not None and producer.outputs.index(value) in aliases_of(producer)
    return makes or any(use.idx in aliases_of(use.node).values() for use in value.uses())


def _show(graph: ir.Graph, rows: ir.Value, name: str) -> None:
    """Let ``rows`` and their magnitudes be outputs."""
    producer, shape = rows.producer(), dims(rows)
    assert producer is not None
    assert shape is not None
    rows.name = f"{ROWS}{name}"
    magnitudes = value_of(f"{MAGNITUDES}{name}", ir.DataType.FLOAT, [2, shape[-1]])
    node = fused_node("ChannelMagnitudes", f"{name}.magnitudes", {"x": rows}, {"y": magnitudes})
    graph.insert_after(producer, node)
    graph.outputs.extend([rows, magnitudes])
