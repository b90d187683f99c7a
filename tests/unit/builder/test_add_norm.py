from tests.unit.builder.networks import network, with_shapes
from tests.unit.builder.structure import find, operators, run_until, set_input


def test_norms_take_the_residual_add_in() -> None:
    model, decisions = run_until("add_norm")
    counts = operators(model)
    assert counts["RmsNorm"] == 5
    assert counts["Add"] == counts["RMSNormalization"] == 0
    node = find(model, "layers.0.post_norm")
    assert [value.name for value in node.inputs] == [
        "layers.0.attention.o_proj.linear",
        "model.layers.0.post_attention_layernorm.weight",
        "embed_tokens.embedding",
    ]
    assert [(d.site, d.reason) for d in decisions if not d.fused] == [
        ("layers.0.input_norm", "the norm reads Embedding embed_tokens, there is no residual add before it")
    ]


def test_the_stream_goes_on_from_the_sum() -> None:
    model, _ = run_until("add_norm")
    residual = find(model, "layers.1.input_norm").inputs[2]
    assert residual is find(model, "layers.0.post_norm").outputs[1]


def test_a_sum_that_nobody_reads_is_not_an_output() -> None:
    model, _ = run_until("add_norm")
    assert len(find(model, "final_norm").outputs) == 1
    assert len(find(model, "layers.0.input_norm").outputs) == 1


def test_two_norms_of_one_sum_share_it() -> None:
    """In parallel-attention models, two norms read one sum: the second norm reuses the sum of the first."""
    model = set_input(network("llama"), "layers.1.input_norm", 0, "layers.0.attention.add_out")
    result, decisions = run_until("add_norm", model)
    # The rewiring leaves one add of layer 0 without a norm after it.
    assert operators(result)["Add"] == 1
    assert find(result, "layers.1.input_norm").inputs[0] is find(result, "layers.0.post_norm").outputs[1]
    reason = "the norm reads RmsNorm layers.0.post_norm, there is no residual add before it"
    assert ("layers.1.input_norm", reason) in [(decision.site, decision.reason) for decision in decisions]


def test_layer_norms_take_the_add_and_the_bias_in() -> None:
    model, _ = run_until("add_norm", "gpt2")
    assert operators(model)["LayerNorm"] == 5
    assert operators(model)["LayerNormalization"] == operators(model)["Add"] == 0
    node = find(model, "layers.0.post_norm")
    assert [value.name for value in node.inputs] == [
        "layers.0.attention.o_proj.linear",
        "model.layers.0.post_attention_layernorm.weight",
        "embed_positions.position_embedding",
        "model.layers.0.post_attention_layernorm.bias",
    ]
    assert find(model, "layers.0.input_norm").inputs[2] is None


def test_a_norm_whose_deviation_is_read_stays() -> None:
    model = network("gpt2")
    node = find(model, "final_norm")
    node.resize_outputs(3)
    node.outputs[1].name, node.outputs[2].name = "mean", "deviation"
    model.graph.outputs.append(node.outputs[2])
    result, decisions = run_until("add_norm", with_shapes(model))
    assert operators(result)["LayerNormalization"] == 1
    assert ("final_norm", "its means or deviations are read") in [(d.site, d.reason) for d in decisions]
