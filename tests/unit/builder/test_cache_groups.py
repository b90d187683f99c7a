"""What cache groups say of a layer's caches, and networks whose layers keep different things."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, network
from trtllm_lite.builder.cache_groups import assign_cache_groups, layers_of
from trtllm_lite.builder.graph import operands
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import all_schemas

MAX_SEQ_LEN = 48


def _fused(variant: str = "llama") -> ir.Graph:
    shape = VARIANTS[variant]
    model, _ = run_passes(network(replace(shape, layers=3, windows=(5, 0, 5))), PIPELINE)
    return model.graph


def test_groups_say_what_a_layer_keeps_of_a_token() -> None:
    shape = VARIANTS["llama"]
    full, *windowed = assign_cache_groups(_fused(), MAX_SEQ_LEN)
    assert (full.name, full.kind, full.window, full.layers) == ("full", "full", 0, (1,))
    assert {(group.kind, group.window) for group in windowed} == {("window", 5)}
    assert [layer for group in windowed for layer in group.layers] == [0, 2]
    for group in (full, *windowed):
        assert [(cache.name, cache.dtype, cache.shape) for cache in group.caches] == [
            (name, "float32", (shape.kv_heads, shape.head_dim)) for name in ("key_cache", "value_cache")
        ]


def test_windows_as_long_as_the_longest_sequence_are_none() -> None:
    (group,) = assign_cache_groups(_fused(), 5)
    assert (group.kind, group.window, group.layers) == ("full", 0, (0, 1, 2))


def test_layers_that_keep_different_things_are_refused() -> None:
    graph = _fused()
    (last,) = layers_of(graph)[-1]
    keys = operands(last)["key_cache"]
    shape = VARIANTS["llama"]
    keys.shape = ir.Shape(["num_blocks", 2 * shape.kv_heads, shape.head_dim, "tokens_per_block"])
    message = rf"keeps key_cache \[{shape.kv_heads}, .*; {last.name} keeps key_cache \[{2 * shape.kv_heads}, "
    with pytest.raises(BuildError, match=message):
        assign_cache_groups(graph, MAX_SEQ_LEN)


def test_schemas_mark_all_inputs_in_blocks() -> None:
    for schema in all_schemas().values():
        in_blocks = [argument.name for argument in schema.inputs if "num_blocks" in argument.shape]
        assert [cache.name for cache in schema.caches] == in_blocks
