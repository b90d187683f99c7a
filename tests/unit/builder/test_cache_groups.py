"""What cache groups say of a layer's caches, and networks whose layers keep different things."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, Shape, network
from trtllm_lite.builder.cache_groups import as_stored, assign_cache_groups, block_layout
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.engine.format import align
from trtllm_lite.engine.manifest import Cache, CacheGroup
from trtllm_lite.plugins.schema import all_schemas

MAX_SEQ_LEN, TOKENS = 48, 16


def fused(shape: Shape) -> ir.Graph:
    model, _ = run_passes(network(shape), PIPELINE)
    return model.graph


def _fused(variant: str = "llama") -> ir.Graph:
    return fused(replace(VARIANTS[variant], layers=3, windows=(5, 0, 5)))


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


def test_small_layers_are_more_in_a_group() -> None:
    """As in Gemma 4 E2B, the layers without a window have heads of twice the size, and each block is full."""
    graph = fused(Shape(layers=10, windows=(5, 5, 5, 5, 0) * 2, layer_head_dims=(2, 2, 2, 2, 4)))
    groups = assign_cache_groups(graph, MAX_SEQ_LEN)
    assert [len(group.layers) for group in groups] == [2, 4, 4]
    assert len({group.num_bytes for group in groups}) == 1
    assert block_layout(groups, TOKENS).num_bytes == TOKENS * groups[0].num_bytes


def test_large_layers_come_first() -> None:
    """Heads of 4 layers with a window and of 2 without have 8, 2, 8, 2 and 8, 2 elements."""
    graph = fused(Shape(layers=6, windows=(5, 5, 5, 5, 0, 0), layer_head_dims=(8, 2)))
    groups = assign_cache_groups(graph, MAX_SEQ_LEN)
    assert [group.layers for group in groups] == [(4, 5), (0, 1), (2, 3)]
    of_token = 2 * 4 * Shape().kv_heads  # bytes of keys and values, per element of a head
    layout = block_layout(groups, TOKENS)
    assert {layout.offsets[f"key_cache.{layer}"] for layer in (0, 2, 4)} == {0}
    assert {layout.offsets[f"key_cache.{layer}"] for layer in (1, 3, 5)} == {8 * of_token * TOKENS}
    assert layout.num_bytes == 10 * of_token * TOKENS


def test_as_few_bytes_are_idle_as_can_be() -> None:
    """Heads of one layer are 8 times as large as those of the others: blocks of one layer would waste the most."""
    graph = fused(Shape(layers=6, windows=(5, 5, 5, 5, 0, 0), layer_head_dims=(2, 2, 2, 2, 16, 2)))
    groups = assign_cache_groups(graph, MAX_SEQ_LEN)
    assert [group.layers for group in groups] == [(4, 5), (0, 1, 2, 3)]
    full, windowed = (group.num_bytes for group in groups)
    assert windowed == full * 4 // 9
    assert block_layout(groups, TOKENS).num_bytes == TOKENS * full


@pytest.mark.parametrize("seed", range(20))
def test_tensors_of_a_group_lie_apart(seed: int) -> None:
    random = np.random.default_rng(seed)
    layers = int(random.integers(1, 9))
    shape = Shape(
        layers=layers,
        windows=tuple(random.choice([0, 5, 7], layers).tolist()),
        layer_kv_heads=tuple(random.choice([1, 2, 3, 6], layers).tolist()),
        layer_head_dims=tuple(random.choice([2, 4, 10], layers).tolist()),
    )
    groups = assign_cache_groups(fused(shape), MAX_SEQ_LEN)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(layers))
    layout = block_layout(groups, TOKENS)
    ends = []
    for group in groups:
        assert {shape.windows[layer] for layer in group.layers} == {group.window}
        end = 0
        for cache in sorted(group.caches, key=lambda cache: layout.offsets[cache.tensor]):
            assert cache.shape == (shape.kv_heads_of(cache.layer), shape.head_dim_of(cache.layer))
            assert layout.offsets[cache.tensor] >= end
            end = layout.offsets[cache.tensor] + TOKENS * cache.num_bytes
        ends.append(end)
    assert max(ends) == layout.num_bytes


def test_kinds_and_types_lie_in_one_block() -> None:
    latents = (Cache(1, "key_cache", "float16", (1, 8)), Cache(1, "value_cache", "float16", (1, 20)))
    keys = (Cache(0, "key_cache", "int8", (2, 16)), Cache(0, "value_cache", "float32", (2, 4)))
    states = tuple(Cache(layer, "conv_state", "float32", (3, size)) for layer, size in ((2, 90), (3, 110)))
    groups = (
        *(CacheGroup("full", "full", 0, keys), CacheGroup("full.1", "latent", 0, latents)),
        CacheGroup("state", "state", 0, states),
    )
    layout = block_layout(groups, TOKENS)
    assert layout.num_bytes == TOKENS * 64
    assert layout.offsets == {
        **{"key_cache.0": 0, "value_cache.0": TOKENS * 32, "key_cache.1": 0, "value_cache.1": TOKENS * 16},
        **{"conv_state.2": 0, "conv_state.3": 3 * 90 * 4},
    }
    assert [group.blocks for group in as_stored(groups, TOKENS, str)] == [1, 1, 3]  # for 2400 bytes
    half = as_stored(groups, TOKENS, lambda _: "float16")
    assert [group.blocks for group in half] == [1, 1, 2]
    assert {cache.dtype for group in half[:2] for cache in group.caches} == {"float16"}


def test_states_take_as_many_blocks_as_the_stage_needs_that_needs_most() -> None:
    def stage(attention: int, *states: int) -> tuple[CacheGroup, ...]:
        kept = tuple(Cache(layer, "key_cache", "float32", (1, 8)) for layer in range(attention))
        own = tuple(Cache(number, "conv_state", "float32", (size,)) for number, size in enumerate(states))
        return CacheGroup("full", "full", 0, kept), CacheGroup("state", "state", 0, own)

    stages = (stage(1, 300), stage(2, 700), stage(0, 300, 1000), stage(3))
    of_block = TOKENS * 8 * 4
    blocks = {as_stored(groups, TOKENS, str, stages)[1].blocks for groups in stages}
    assert blocks == {4}  # for 5200 bytes of the third, in blocks as large as the fourth's
    layouts = [block_layout(as_stored(groups, TOKENS, str, stages), TOKENS) for groups in stages]
    assert [layout.num_bytes for layout in layouts] == [of_block, 2 * of_block, align(-(-5200 // 4)), 3 * of_block]
    assert layouts[2].offsets == {"conv_state.0": 4000, "conv_state.1": 0}
    assert as_stored((), TOKENS, str, ((),)) == ()


def test_states_that_gpus_read_in_vectors_begin_at_multiples_of_32_bytes() -> None:
    sizes = {"conv_state": (5, 182), "recurrent_state": (3, 328)}  # 8 bytes more than a multiple, and a multiple
    states = tuple(Cache(layer, name, "float32", shape) for layer in range(3) for name, shape in sizes.items())
    keys = (Cache(3, "key_cache", "float32", (1, 8)),)
    layout = block_layout((CacheGroup("full", "full", 0, keys), CacheGroup("state", "state", 0, states)), TOKENS)
    places = sorted((layout.offsets[cache.tensor], cache) for cache in states)
    assert all(offset % 32 == 0 for offset, cache in places if cache.name == "recurrent_state")
    ends = [offset + cache.num_bytes for offset, cache in places]
    assert [offset for offset, _ in places] == [0, *ends[:-1]]


def test_schemas_mark_all_inputs_in_blocks() -> None:
    for schema in all_schemas().values():
        in_blocks = [argument.name for argument in schema.inputs if "num_blocks" in argument.shape]
        assert [cache.name for cache in schema.caches] == in_blocks
