"""How a network is split into stages: the layers of each, the values sent between them, and their balance."""

from collections import Counter
from dataclasses import replace

import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, Shape, network
from trtllm_lite.builder.graph import features_of, nodes_of, weight_tensor
from trtllm_lite.builder.job import Fused
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.stages import decode_bytes, received, split
from trtllm_lite.builder.verifier import violations
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import DOMAIN

LIMITS = BuildLimits(max_batch_size=2, max_input_len=8, max_seq_len=24, tokens_per_block=16)
SEVERAL = [name for name, shape in VARIANTS.items() if shape.layers > 1]


def fused(shape: Shape) -> Fused:
    return fuse_into_plugins(network(shape), "auto", LIMITS)


def products(graph: ir.Graph) -> Counter[str]:
    """The operators with weights except norms, which several stages may compute."""
    with_weights = (node for node in graph if any(weight_tensor(value) is not None for value in node.inputs))
    return Counter(
        str(node.name) for node in with_weights if node.op_type not in ("RmsNorm", "LayerNorm", "RotaryTable")
    )


@pytest.mark.each_value
@pytest.mark.parametrize("variant", SEVERAL)
@pytest.mark.parametrize("pp_size", [1, 2, 3])
def test_every_product_is_in_one_stage(variant: str, pp_size: int) -> None:
    shape = VARIANTS[variant]
    whole = fused(replace(shape, layers=4, windows=(shape.windows * 4)[:4]))
    before = [str(node.name) for node in whole.graph]
    stages = split(whole.graph, whole.cache_groups, pp_size)
    assert [str(node.name) for node in whole.graph] == before
    assert sum((products(stage.graph) for stage in stages), Counter()) == products(whole.graph)
    for number, stage in enumerate(stages):
        assert not list(violations(ir.Model(stage.graph, ir_version=10)))
        assert [features_of(value) for value in received(stage.graph)] == ([shape.hidden] if number else [])
    made = [[value.name for value in stage.graph.outputs if "cache" not in str(value.name)] for stage in stages]
    assert made[-1] == ["logits"]
    assert made[:-1] == [[value.name for value in received(stage.graph)] for stage in stages[1:]]


@pytest.mark.parametrize("windows", [(0,) * 6, (5, 5, 0) * 2, (5, 5, 5, 5, 5, 0)])
def test_each_layer_has_its_place_in_one_stage(windows: tuple[int, ...]) -> None:
    whole = fused(Shape(layers=6, windows=windows))
    stages = split(whole.graph, whole.cache_groups, 3)
    for number, group in enumerate(whole.cache_groups):
        of_stages = [stage.cache_groups[number] for stage in stages]
        assert sorted(layer for found in of_stages for layer in found.layers) == sorted(group.layers)
        assert {(found.name, found.window) for found in of_stages} == {(group.name, group.window)}
    for stage in stages:
        layers = nodes_of(stage.graph, "PagedAttention", DOMAIN)
        assert sum(len(group.layers) for group in stage.cache_groups) == len(layers)
        caches = [value for value in stage.graph.inputs if str(value.name).startswith("key_cache.")]
        assert len(caches) == len(layers)


def test_the_largest_stage_is_as_small_as_can_be() -> None:
    whole = fused(Shape(layers=8, windows=(0,) * 8, hidden=60, vocab=4000, tied=False))
    stages = split(whole.graph, whole.cache_groups, 2)
    costs = [sum(map(decode_bytes, stage.graph)) for stage in stages]
    layer = sum(decode_bytes(node) for node in whole.graph if str(node.name).startswith("layers.0."))
    head = next(decode_bytes(node) for node in whole.graph if node.name == "lm_head")
    assert head > 4 * layer  # so that stages of equally many layers would be unbalanced
    total = sum(map(decode_bytes, whole.graph))
    assert max(costs) <= max(total / 2 + layer, total - 7 * layer + layer)
    assert max(costs) <= head + 2 * layer
    embedding = next(node for node in whole.graph if node.op_type == "Embedding")
    assert decode_bytes(embedding) == 60 * 4


def test_tied_embeddings_are_in_the_first_and_in_the_last_stage() -> None:
    whole = fused(Shape(layers=3, windows=(0,) * 3, tied=True))
    embedding = next(node for node in whole.graph if node.op_type == "Embedding")
    name = embedding.inputs[1].name
    stages = split(whole.graph, whole.cache_groups, 3)
    assert [name in stage.graph.initializers for stage in stages] == [True, False, True]


def test_too_many_stages_are_refused_with_the_places() -> None:
    whole = fused(Shape(layers=2))
    with pytest.raises(BuildError, match=r"at most 2 stages with attention, behind layers\.0\.post_norm, layers\.1"):
        split(whole.graph, whole.cache_groups, 3)
    one = fused(Shape(layers=1, windows=(0,)))
    with pytest.raises(BuildError, match="at most 1 stages with attention, behind no operator"):
        split(one.graph, one.cache_groups, 2)
