import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.structure import find, insert_after, operators, run_until, set_attribute, set_input
from trtllm_lite.builder.graph import dims, operands
from trtllm_lite.quantize.calibration.statistics import placeholder
from trtllm_lite.quantize.kv_cache import find_attentions
from trtllm_lite.quantize.network import Recipe, quantize_network

PADDED_ONLY = {"Attention", "TensorScatter", "RotaryEmbedding", "Split", "Reshape", "Flatten", "Gather", "Greater"}
PADDED_ONLY |= {"Pad", "Where"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_padded_is_left(variant: str) -> None:
    model, decisions = run_until("paged_attention", variant)
    layers = VARIANTS[variant].layers
    assert [(d.site, d.fused) for d in decisions] == [(f"layers.{i}.attention", True) for i in range(layers)]
    counts = operators(model)
    assert counts["PagedAttention"] == layers
    assert not PADDED_ONLY & set(counts)
    fused = [node.attributes for node in model.graph if node.op_type == "PagedAttention"]
    assert [attributes["window"].value for attributes in fused] == list(VARIANTS[variant].windows)
    assert [attributes["softcap"].value for attributes in fused] == [VARIANTS[variant].softcap] * layers


def test_sinks_are_an_input() -> None:
    model, _ = run_until("paged_attention", "sinks")
    for layer in range(2):
        node = find(model, f"layers.{layer}.attention")
        sinks = operands(node)["sinks"]
        assert sinks.name == f"model.layers.{layer}.self_attn.sinks"
        assert dims(sinks) == (6,)


@pytest.mark.parametrize(
    ("name", "position", "by", "reason"),
    [
        ("layers.0.attention", 2, "present_value.0", "one of its caches begins with a token of zeros"),
        ("layers.0.attention", 6, "total_lens_out", "its key lengths do not count the token of zeros"),
        ("layers.0.attention", 3, "layers.0.attention.sink_scores_out", "the scores of its token of zeros are not"),
        ("layers.1.attention.sink_mask", 2, "layers.1.attention.sink_column_out", "its mask hides the token of zeros"),
    ],
)
def test_other_tokens_of_zeros_stay(name: str, position: int, by: str, reason: str) -> None:
    assert reason in _reason(set_input(network("sinks"), name, position, by))


def test_inputs_and_outputs_become_paged() -> None:
    model, _ = run_until("paged_attention")
    shapes = {value.name: dims(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    del shapes["logits"]
    cache = {"key": ("num_blocks", 2, 10, "tokens_per_block"), "value": ("num_blocks", 2, "tokens_per_block", 10)}
    assert shapes == {
        "token_ids": ("num_tokens",),
        "position_ids": ("num_tokens",),
        "cu_seqlens": ("num_seqs_plus_1",),
        "past_lens": ("num_seqs",),
        "block_tables": ("num_tables", "max_blocks_per_seq"),
        **{f"{kind}_cache{out}.{i}": cache[kind] for kind in cache for out in ("", "_out") for i in range(2)},
    }


def test_scale_cap_norms_and_epsilon_come_from_the_graph() -> None:
    model = set_attribute(network("qwen3"), "layers.1.attention", scale=0.5, softcap=30.0)
    model = set_attribute(model, "layers.1.attention.q.norm", epsilon=0.25)
    model = set_attribute(model, "layers.1.attention.k.norm", epsilon=0.25)
    node = find(run_until("paged_attention", model)[0], "layers.1.attention")
    assert {key: attribute.value for key, attribute in node.attributes.items()} == {
        "num_heads": 6,
        "scale": 0.5,
        "window": 0,
        "chunked": 0,
        "floor_scale": 0,
        "floor_offset": 0,
        "attn_scale": 0.0,
        "first_position": 0,
        "cache_group": 0,
        "softcap": 30.0,
        "norm_epsilon": 0.25,
        "norm_after_rope": 0,
        "appends": 1,
        "key_scale": 1.0,
        "value_scale": 1.0,
    }
    assert [value.name for value in node.inputs[8:]] == [
        f"model.layers.1.self_attn.{kind}_norm.weight" for kind in "qk"
    ]


@pytest.mark.parametrize(("name", "dtype"), [("fp8", ir.DataType.FLOAT8E4M3FN), ("int8", ir.DataType.INT8)])
def test_rounded_keys_and_values_are_a_cache_with_scales(name: str, dtype: ir.DataType) -> None:
    model, _ = quantize_network(network("qwen3"), Recipe(kv_cache_dtype=name), placeholder)
    scales = {"layers.0.attention": (0.25, 0.5), "layers.1.attention": (2.0, 4.0)}
    for attention in find_attentions(model.graph):
        for new, scale in zip(attention.appended, scales[attention.name], strict=True):
            new.producer().inputs[1].const_value = ir.tensor(np.array(scale, np.float32))
    fused, decisions = run_until("paged_attention", model)
    assert all(decision.fused for decision in decisions)
    for path, expected in scales.items():
        node = find(fused, path)
        assert (node.attributes["key_scale"].value, node.attributes["value_scale"].value) == expected
        assert {value.dtype for value in (*node.inputs[3:5], *node.outputs[1:3])} == {dtype}


def test_keys_and_values_that_are_stored_unlike_stay() -> None:
    model, _ = quantize_network(network("llama"), Recipe(kv_cache_dtype="fp8"), placeholder)
    (_, scatter) = find_attentions(model.graph)[0].scatters
    scatter.replace_input_with(1, find_attentions(model.graph)[0].roundings[1].source)
    assert _reason(model) == "its keys are stored as float8_e4m3fn, values as they are"


def test_a_missing_scale_is_the_standard_one() -> None:
    model = network("llama")
    del find(model, "layers.0.attention").attributes["scale"]
    node = find(run_until("paged_attention", model)[0], "layers.0.attention")
    assert node.attributes["scale"].value == pytest.approx(10**-0.5)


def _reason(model: ir.Model) -> str:
    result, decisions = run_until("paged_attention", model)
    assert operators(result)["Attention"] == 1
    return next(decision.reason for decision in decisions if not decision.fused)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"is_causal": 0}, "it is not causal"),
        ({"softcap": -30.0}, "its softcap is -30.0, expected a cap, or 0 for none"),
        ({"softmax_precision": 16}, "it asks for a softmax in type"),
    ],
)
def test_other_kinds_of_attention_stay(attributes: dict[str, int | float], reason: str) -> None:
    assert reason in _reason(set_attribute(network("llama"), "layers.0.attention", **attributes))


def test_interleaved_rope_stays() -> None:
    model = set_attribute(network("llama"), "layers.0.attention.k_rope", interleaved=1)
    assert _reason(model) == "RoPE of the key is not the rotate-half form with a table of packed rows"


def test_a_table_of_another_width_stays() -> None:
    model = set_attribute(network("phi3"), "layers.0.attention.k_rope", rotary_embedding_dim=4)
    assert _reason(model) == "the RoPE table of the key heads does not have a column for two rotated elements"


def test_partial_rope_and_none() -> None:
    partial, _ = run_until("paged_attention", "phi3")
    assert dims(find(partial, "layers.0.attention").inputs[1]) == ("num_tokens", 3)
    without, _ = run_until("paged_attention", "gpt2")
    assert list(find(without, "layers.0.attention").inputs[1:3]) == [None, None]


def test_a_cache_written_elsewhere_stays() -> None:
    model = set_input(network("llama"), "layers.0.attention.key_cache", 2, "total_lens_out")
    assert _reason(model) == "the key cache is not updated at past_lens"


def test_lengths_of_another_kind_stay() -> None:
    model = set_input(network("llama"), "layers.0.attention", 6, "past_lens")
    assert _reason(model) == "its key lengths are not past_lens plus the length of this step"


def test_an_operator_in_the_middle_stays() -> None:
    model = insert_after(network("llama"), "layers.0.attention.v.swap_out", "Relu")
    assert _reason(model) == "the value does not come from a Transpose"


def test_norms_with_different_epsilons_stay() -> None:
    model = set_attribute(network("qwen3"), "layers.0.attention.q.norm", epsilon=0.25)
    assert _reason(model) == "the norms of query, key and value differ in epsilon"
