"""Fuses products of the same rows into one Linear where all their readers can read columns of wider rows in place.

Those are the operators of recurrent layers (``columns`` in schemas): a convolution, the decays and the gate of a layer
come from one product. Products whose weights are stored in different forms stay apart. The widest result comes first,
so that wide ones begin at columns to which kernels can align their accesses. Networks that adapters may change keep
their products apart (builder/pipeline.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, features_of, nodes_of, operands, site
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.joined_linear import insert_joined
from trtllm_lite.plugins.schema import DOMAIN, Argument, all_schemas
from trtllm_lite.quantize.formats import matrix_of


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for linears in _candidates(graph):
        by_form = defaultdict(list)
        for linear in linears:
            by_form[matrix_of(operands(linear)).form].append(linear)
        for group in by_form.values():
            if len(group) > 1:
                _merge(graph, sorted(group, key=lambda linear: -features_of(linear.outputs[0])))
                yield Decision(site(*group), True)
            else:
                yield Decision(site(*group), False, "other products of its input store their weights in another form")


def _candidates(graph: ir.Graph) -> list[list[ir.Node]]:
    """Products of the same rows, two or more, whose results are read in place."""
    by_input = defaultdict(list)
    for linear in nodes_of(graph, "Linear", DOMAIN):
        if attribute(linear, "activation") == "none" and _is_read_in_place(linear.outputs[0]):
            by_input[operands(linear)["x"]].append(linear)
    return [linears for linears in by_input.values() if len(linears) > 1]


def _is_read_in_place(rows: ir.Value) -> bool:
    """Whether all readers could read ``rows`` as columns of wider ones."""
    readers = [_argument(use.node, use.idx) for use in rows.uses()]
    return bool(readers) and not rows.is_graph_output() and all(one is not None and one.columns for one in readers)


def _argument(node: ir.Node, position: int) -> Argument | None:
    """What a fused node's input is to it."""
    return all_schemas()[node.op_type].inputs[position] if node.domain == DOMAIN else None


def _merge(graph: ir.Graph, linears: Sequence[ir.Node]) -> None:
    names = [str(linear.name).rpartition(".")[2].removesuffix("_proj") for linear in linears]
    joined = insert_joined(graph, linears, f"{site(*linears)}.{'_'.join(names)}_proj")
    first = 0
    for linear in linears:
        rows = linear.outputs[0]
        for use in list(rows.uses()):
            argument = _argument(use.node, use.idx)
            assert argument is not None
            use.node.replace_input_with(use.idx, joined)
            use.node.attributes[argument.first] = ir.AttrInt64(argument.first, first)
        first += features_of(rows)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for linears in _candidates(graph):
        if len({matrix_of(operands(linear)).form for linear in linears}) < len(linears):
            yield f"products in {site(*linears)}, which read the same rows, were not merged"


MERGE_PROJECTIONS = GraphPass("merge_projections", _rewrite, _requires, _ensures)
