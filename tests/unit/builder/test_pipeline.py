import onnx_ir as ir
import pytest

from tests.unit.builder.networks import network
from tests.unit.builder.structure import find, insert_after, set_attribute
from trtllm_lite.builder.passes import PIPELINE, Decision, GraphPass
from trtllm_lite.builder.passes.embedding import EMBEDDING
from trtllm_lite.builder.passes.remove_padding import REMOVE_PADDING
from trtllm_lite.builder.pipeline import check_all_fused, run_passes
from trtllm_lite.errors import BuildError


def test_every_pass_has_its_own_name_and_decisions_follow_the_order_of_passes() -> None:
    names = [graph_pass.name for graph_pass in PIPELINE]
    assert len(set(names)) == len(names) == 27
    _, fusions = run_passes(network("qwen3"))
    seen = list(dict.fromkeys(fusion.pass_name for fusion in fusions))
    # These passes find no candidates in this network.
    others = ("remove_padding", "position_embedding", "gather_columns", "linear_activation", "quantize_rows", "rowwise")
    others += ("features", "query_key_norm", "moe", "shared_experts", "sigmoid_gate", "causal_conv", "gated_delta_net")
    others += ("streams", "head_layer_norm", "mamba2", "grouped_norm", "latent_attention", "merge_projections")
    assert seen == [name for name in names if name not in others]


def test_the_network_is_left_as_it_is() -> None:
    model = network("llama")
    before = str(model)
    run_passes(model)
    assert str(model) == before


def test_a_pass_that_breaks_the_graph_is_named_with_those_since_it_was_sound() -> None:
    def sabotage(graph: ir.Graph) -> list[Decision]:
        next(iter(graph)).op_type = "Nonsense"
        return []

    passes = [REMOVE_PADDING, EMBEDDING, GraphPass("lazy", lambda _: []), GraphPass("saboteur", sabotage)]
    with pytest.raises(BuildError, match=r"pass lazy or saboteur broke the graph: .*Nonsense.* \(after .*embedding\)"):
        run_passes(network(), passes)


def test_a_pass_that_breaks_its_promise_is_named() -> None:
    lazy = GraphPass("lazy", lambda _: [], ensures=lambda graph: [f"{graph.num_nodes()} nodes are left"])
    with pytest.raises(BuildError, match=r"postcondition of lazy violated: \d+ nodes are left \(as the first pass\)"):
        run_passes(network(), [lazy])


def test_a_malformed_network_is_the_users_not_a_passs() -> None:
    model = network()
    find(model, "lm_head").op_type = "Nonsense"
    with pytest.raises(BuildError, match=r"network\.onnx is not a valid network: lm_head: Nonsense is not an operator"):
        run_passes(model)


def test_leftovers_are_listed_in_one_error_with_sites_reasons_and_what_is_supported() -> None:
    model = insert_after(network(), "layers.1.mlp.up_proj_out", "Erf")
    model = set_attribute(model, "layers.0.attention", is_causal=0)
    with pytest.raises(BuildError) as caught:
        check_all_fused(*run_passes(model))
    message = str(caught.value)
    for part in (
        "Erf at layers.1.mlp.up_proj_out.inserted",
        "Attention at layers.0.attention",
        "layers.0.attention: it is not causal (paged_attention)",
        "layers.1.mlp: the up factor does not come straight from a Linear (merge_gate_up)",
        "Supported are models whose layers fuse into ",
    ):
        assert part in message
    assert "residual" not in message


def test_a_fused_network_has_no_leftovers() -> None:
    check_all_fused(*run_passes(network("qwen2")))
