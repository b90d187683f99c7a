import onnx_ir as ir

from tests.unit.builder.networks import VARIANTS, Shape, network
from tests.unit.builder.structure import find, operators, run_until
from trtllm_lite.builder.graph import dims, fused_node, value_of
from trtllm_lite.builder.passes.last_token_gather import LAST_TOKEN_GATHER


def test_rows_are_chosen_right_behind_the_last_attention() -> None:
    model, decisions = run_until("last_token_gather")
    names = [node.name for node in model.graph]
    behind = names[names.index("layers.1.attention") + 1 :]
    rows = {node.name: dims(node.outputs[0])[0] for node in model.graph if node.name in behind}
    assert set(rows.values()) == {"num_logits"}
    assert [node.op_type for node in model.graph][-8:] == [
        "GatherRows",
        "Linear",
        "GatherRows",
        "RmsNorm",
        "GatedLinear",
        "Linear",
        "RmsNorm",
        "Linear",
    ]
    assert [decision.site for decision in decisions] == ["layers.1.attention", "layers.1.input_norm"]


def test_earlier_layers_keep_every_token() -> None:
    model, _ = run_until("last_token_gather", "mixed_windows")
    for name in ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj", "layers.2.attention"):
        assert dims(find(model, name).outputs[0])[0] == "num_tokens"
    assert operators(model)["GatherRows"] == 2


def test_without_row_wise_operators_the_logits_are_gathered() -> None:
    tokens = value_of("token_ids", ir.DataType.INT32, ["num_tokens"])
    table = value_of("table", ir.DataType.FLOAT, [7, 3])
    logits = value_of("logits", ir.DataType.FLOAT, ["num_tokens", 3])
    node = fused_node("Embedding", "embed", {"token_ids": tokens, "weight": table}, {"y": logits}, {"scale": 1.0})
    graph = ir.Graph([tokens, table], [logits], nodes=[node], opset_imports={"": 24, "trtllm_lite": 1})
    result = ir.Model(graph, ir_version=11)
    LAST_TOKEN_GATHER(graph)
    assert operators(result) == {"Embedding": 1, "GatherRows": 1}
    assert (result.graph.outputs[0].name, dims(result.graph.outputs[0])) == ("logits", ("num_logits", 3))


def test_a_whole_layer_is_seven_operators() -> None:
    shape = Shape(layers=4, windows=(0,) * 4)
    more, less = (operators(run_until("last_token_gather", s)[0]) for s in (shape, VARIANTS["llama"]))
    assert more - less == {"Linear": 6, "RmsNorm": 4, "PagedAttention": 2, "GatedLinear": 2}
    assert network("llama").graph.num_nodes() > 2 * sum(less.values())
