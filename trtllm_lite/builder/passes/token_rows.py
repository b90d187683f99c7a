"""Lets rows of a prompt's own embeddings take the place of tokens: Embedding also reads the input ``token_rows``."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, nodes_of, results, site, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.common.vocabulary import TOKEN_ROWS
from trtllm_lite.plugins.schema import DOMAIN, all_schemas


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    nodes = list(nodes_of(graph, "Embedding", DOMAIN))
    if not nodes:
        return
    hidden = (dims(results(nodes[0])["y"]) or (None,))[-1]
    rows = value_of(TOKEN_ROWS, ir.DataType.FLOAT, ["num_token_rows", hidden])
    graph.inputs.append(rows)
    names = [argument.name for argument in all_schemas()["Embedding"].inputs]
    for node in nodes:
        node.resize_inputs(len(names))
        node.replace_input_with(names.index(TOKEN_ROWS), rows)
        yield Decision(site(node), True)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if not any(True for _ in nodes_of(graph, "Embedding", DOMAIN)):
        yield "the network looks up no embeddings"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in nodes_of(graph, "Embedding", DOMAIN):
        if all(value is None or value.name != TOKEN_ROWS for value in node.inputs):
            yield f"{node.name} does not read {TOKEN_ROWS}"


TAKE_TOKEN_ROWS = GraphPass("token_rows", _rewrite, _requires, _ensures)
