"""PagedAttention against its reference, and its independence from chunking, batch, blocks and threads."""

from functools import cache as computed_once

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.plugins.harness import assert_close, assert_same_bits, reference, run
from tests.plugins.paged_batch import AttentionShape, PagedCache, Tokens, step
from trtllm_lite.errors import EngineError

# Relative rounding error of a cache's element: half a step of its type.
ROUNDING = {"float32": 1e-5, "float16": 2.0**-11, "bfloat16": 2.0**-8}
EIGHT_BITS = [np.int8, ml_dtypes.float8_e4m3fn]
SHAPES = {
    "gqa3": AttentionShape(num_heads=9, num_kv_heads=3),
    "mha": AttentionShape(num_heads=2, num_kv_heads=2, head_dim=32, tokens_per_block=16),
    "gqa4": AttentionShape(num_heads=8, num_kv_heads=2, head_dim=128, tokens_per_block=128),
    "gqa8": AttentionShape(num_heads=8, num_kv_heads=1, head_dim=80, tokens_per_block=48),
    "mqa64": AttentionShape(num_heads=64, num_kv_heads=1, head_dim=16, tokens_per_block=16),
    "tail": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=8, tokens_per_block=16),
    "tail10": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=10, tokens_per_block=32),
    "tail24": AttentionShape(num_heads=3, num_kv_heads=3, head_dim=24, tokens_per_block=32),
    "widest": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=256, tokens_per_block=64),
    "widest_of_all": AttentionShape(num_heads=8, num_kv_heads=1, head_dim=512, tokens_per_block=128),
    "norm": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=40, with_norm=True),
    "norm_after_rope": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=40, with_norm=True, norm_after_rope=1),
    "value_norm": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=40, with_norm=True, with_value_norm=True),
    "window": AttentionShape(num_heads=4, num_kv_heads=2, tokens_per_block=16, window=37),
    "second_group": AttentionShape(num_heads=4, num_kv_heads=2, num_groups=2, cache_group=1),
    "windowed_group": AttentionShape(tokens_per_block=16, window=37, num_groups=3, cache_group=1),
    "softcap": AttentionShape(num_heads=6, num_kv_heads=2, softcap=1.5),
    "softcap_window": AttentionShape(num_heads=4, num_kv_heads=1, tokens_per_block=16, window=37, softcap=50.0),
    "saturated": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=24, softcap=0.1),
    "partial": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=40, with_norm=True, rotary_dim=12),
    "partial96": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=96, rotary_dim=72),
    "no_rope": AttentionShape(num_heads=4, num_kv_heads=4, head_dim=24, rotary_dim=0),
    "from_position_1": AttentionShape(num_heads=4, num_kv_heads=2, tokens_per_block=16, first_position=1),
    "from_position_20": AttentionShape(tokens_per_block=16, first_position=20),
    "sinks": AttentionShape(num_heads=6, num_kv_heads=2, with_sinks=True),
    "sinks_window": AttentionShape(num_heads=9, num_kv_heads=3, tokens_per_block=16, window=37, with_sinks=True),
    "sinks_softcap": AttentionShape(num_heads=4, num_kv_heads=1, softcap=2.0, with_sinks=True),
    "chunks": AttentionShape(num_heads=4, num_kv_heads=2, tokens_per_block=16, window=37, chunked=True),
    "chunks_of_blocks": AttentionShape(num_heads=2, num_kv_heads=1, tokens_per_block=16, window=16, chunked=True),
    "temperature": AttentionShape(
        num_heads=6, num_kv_heads=2, rotary_dim=0, floor_scale=7, floor_offset=1, attn_scale=0.3
    ),
    "temperature_from_0": AttentionShape(num_heads=6, num_kv_heads=2, floor_scale=7, attn_scale=0.3),
    "window1": AttentionShape(num_heads=2, num_kv_heads=2, tokens_per_block=16, window=1),
}


def assert_step(y: list[np.ndarray], cache: PagedCache, expected: dict[str, np.ndarray]) -> None:
    """Check one step: y, the appended tokens, and every other cache slot untouched, NaN included."""
    assert_close(np.concatenate(y), expected["y"])
    for actual, name in ((cache.keys, "key_cache_out"), (cache.values, "value_cache_out")):
        wide, wanted = actual.astype(np.float32), expected[name].astype(np.float32)
        np.testing.assert_array_equal(np.isnan(wide), np.isnan(wanted))
        np.testing.assert_allclose(wide, wanted, rtol=ROUNDING[actual.dtype.name], atol=1e-6)


def test_what_is_stored_is_shown(isa: str) -> None:
    """The outputs are keys after their norm and RoPE, and values, before the cache rounds them."""
    shape = SHAPES["partial"]
    tokens, cache = Tokens(shape, [30]), PagedCache(shape, num_blocks=2, dtype=np.int8)
    inputs = tokens.inputs(cache, [(0, 30)])
    found = run("PagedAttention", inputs, shape.attributes, isa=isa)["stored"]
    assert_close(found, reference("PagedAttention", inputs, shape.attributes)["stored"])


def ragged(name: str) -> tuple[Tokens, PagedCache, list[list[tuple[int, int]]]]:
    """Ragged prompts, then chunks that cross block boundaries mixed with single tokens, then decode."""
    shape = SHAPES[name]
    third = shape.tokens_per_block if shape.tokens_per_block < 20 else 17
    steps = [[(0, 70), (1, 1), (2, third)], [(1, 65), (0, 1), (3, 129)], [(s, 1) for s in range(4)], [(3, 1)]]
    return Tokens(shape, [150, 90, 20, 200]), PagedCache(shape, num_blocks=24), steps


@computed_once
def expected_of_ragged(name: str) -> list[dict[str, np.ndarray]]:
    """The reference's result for each step, for all instruction sets and numbers of threads."""
    tokens, cache, steps = ragged(name)
    expected = []
    for new_tokens in steps:
        expected.append(reference("PagedAttention", tokens.inputs(cache, new_tokens), cache.shape.attributes))
        cache.append(new_tokens, expected[-1])
    return expected


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_matches_reference(isa: str, name: str, num_threads: int) -> None:
    tokens, cache, steps = ragged(name)
    for new_tokens, expected in zip(steps, expected_of_ragged(name), strict=True):
        assert_step(step(tokens, cache, new_tokens, isa, num_threads), cache, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["gqa3", "gqa4", "tail10", "widest_of_all", "window"])
def test_caches_of_16_bits_match_the_reference(isa: str, name: str, dtype: type) -> None:
    """Keys and values are rounded once, when appended; y may differ where one is rounded to its other neighbour."""
    shape = SHAPES[name]
    tokens, cache = Tokens(shape, [150, 90]), PagedCache(shape, num_blocks=32, dtype=dtype)
    for new_tokens in ([(0, 70), (1, 1)], [(1, 65), (0, 1)], [(0, 1), (1, 1)]):
        inputs = tokens.inputs(cache, new_tokens)
        expected = reference("PagedAttention", inputs, shape.attributes)
        y = np.concatenate(step(tokens, cache, new_tokens, isa))
        np.testing.assert_allclose(y, expected["y"], atol=2 * ROUNDING[np.dtype(dtype).name])
        for actual, wanted in ((cache.keys, "key_cache_out"), (cache.values, "value_cache_out")):
            wide, exact = actual.astype(np.float32), expected[wanted].astype(np.float32)
            np.testing.assert_array_equal(np.isnan(wide), np.isnan(exact))
            np.testing.assert_allclose(wide, exact, rtol=2 * ROUNDING[np.dtype(dtype).name], atol=1e-6)


def test_queries_alone_attend_to_what_an_earlier_layer_appended(isa: str) -> None:
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=40, with_norm=True, with_value_norm=True)
    tokens, cache = Tokens(shape, [150, 90]), PagedCache(shape, num_blocks=32)
    alone = {**shape.attributes, "appends": 0}
    for new_tokens in ([(0, 70), (1, 1)], [(1, 65), (0, 1)]):
        inputs = tokens.inputs(cache, new_tokens)
        expected = run("PagedAttention", inputs, shape.attributes, isa=isa)
        qkv, *others = inputs
        others[2:4] = expected["key_cache_out"], expected["value_cache_out"]
        queries = [np.ascontiguousarray(qkv[:, : shape.num_heads * shape.head_dim]), *others]
        outputs = run("PagedAttention", queries, alone, isa=isa)
        for name in ("y", "key_cache_out", "value_cache_out"):
            assert_same_bits(outputs[name], expected[name])
        cache.append(new_tokens, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_values_are_rounded_to_the_nearest(isa: str, dtype: type) -> None:
    """Values of every size, halfway cases, infinities and NaN, exactly as numpy rounds them."""
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=256, tokens_per_block=64)
    tokens, cache = Tokens(shape, [40]), PagedCache(shape, num_blocks=2, dtype=dtype)
    bits = np.random.default_rng(0).integers(0, 2**32, (40, 256), np.uint32)
    bits[::2] &= np.uint32(0xFFFFF000 if dtype == np.float16 else 0xFFFF8000)  # halfway between two neighbours, often
    values = bits.view(np.float32)
    values[::3] = (np.random.default_rng(1).standard_normal((14, 256)) * 10.0 ** np.arange(-9, 5)[:, None]).astype("f4")
    tokens.qkv[0][:, -256:] = values
    step(tokens, cache, [(0, 40)], isa)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype)
    found = cache.tokens_of(0)[1][0]
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), np.isnan(values))
    is_number = ~np.isnan(values)
    np.testing.assert_array_equal(found.view(np.uint16)[is_number], expected.view(np.uint16)[is_number])


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("name", ["gqa3", "gqa4", "tail10", "widest_of_all", "window"])
def test_caches_of_eight_bits_match_the_reference(isa: str, name: str, dtype: type) -> None:
    """Keys rotate in float32 in the kernel and in float64 in the reference, so a few are rounded to a neighbour."""
    shape = SHAPES[name]
    tokens, cache = Tokens(shape, [150, 90]), PagedCache(shape, num_blocks=32, dtype=dtype)
    step_size = {"int8": shape.key_scale, "float8_e4m3fn": 2.0**-3}[np.dtype(dtype).name]
    for new_tokens in ([(0, 70), (1, 1)], [(1, 65), (0, 1)], [(0, 1), (1, 1)]):
        expected = reference("PagedAttention", tokens.inputs(cache, new_tokens), shape.attributes)
        y = np.concatenate(step(tokens, cache, new_tokens, isa))
        values, keys = (cache.values, cache.keys)
        np.testing.assert_array_equal(values.view(np.uint8), expected["value_cache_out"].view(np.uint8))
        different = keys.view(np.uint8) != expected["key_cache_out"].view(np.uint8)
        assert different.mean() < 1e-3
        np.testing.assert_allclose(y, expected["y"], atol=step_size if different.any() else 1e-5)


@pytest.mark.parametrize("keys", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("values", EIGHT_BITS)
@pytest.mark.parametrize("name", ["gqa3", "gqa4", "tail10", "widest_of_all", "window"])
def test_values_of_eight_bits_beside_plain_keys(isa: str, name: str, keys: type, values: type) -> None:
    """Keys have no scale, and a few of 16 bits are rounded to the other neighbour."""
    shape = SHAPES[name]
    tokens, cache = Tokens(shape, [150, 90]), PagedCache(shape, num_blocks=32, dtype=keys, value_dtype=values)
    of_keys = ROUNDING[np.dtype(keys).name]
    for new_tokens in ([(0, 70), (1, 1)], [(1, 65), (0, 1)], [(0, 1), (1, 1)]):
        expected = reference("PagedAttention", tokens.inputs(cache, new_tokens), shape.attributes)
        y = np.concatenate(step(tokens, cache, new_tokens, isa))
        np.testing.assert_array_equal(cache.values.view(np.uint8), expected["value_cache_out"].view(np.uint8))
        wide, exact = cache.keys.astype(np.float32), expected["key_cache_out"].astype(np.float32)
        np.testing.assert_array_equal(np.isnan(wide), np.isnan(exact))
        np.testing.assert_allclose(wide, exact, rtol=2 * of_keys, atol=1e-6)
        np.testing.assert_allclose(y, expected["y"], atol=2 * of_keys)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bits_are_rounded_as_onnxruntime_does(isa: str, dtype: type) -> None:
    """All magnitudes, midpoints, infinities and NaN are rounded like QuantizeLinear does, and then read again."""
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=256, tokens_per_block=64, value_scale=0.3)
    tokens, cache = Tokens(shape, [60]), PagedCache(shape, num_blocks=2, dtype=dtype)
    random = np.random.default_rng(0)
    values = (random.standard_normal((60, 256)) * 10.0 ** np.arange(-5, 5, 1 / 6)[:60, None]).astype(np.float32)
    halves = np.arange(-256, 0) + np.float32(0.5) if dtype is np.int8 else halfway_between_e4m3()
    values[::3] = random.choice(halves, values[::3].shape).astype(np.float32) * np.float32(0.3)
    values[1, :3] = np.inf, -np.inf, 0
    if dtype is not np.int8:
        values[1, 3] = np.nan
    tokens.qkv[0][:, -256:] = values
    step(tokens, cache, [(0, 60)], isa)
    np.testing.assert_array_equal(cache.tokens_of(0)[1][0].view(np.uint8), quantize_linear(values, 0.3, dtype))


def halfway_between_e4m3() -> np.ndarray:
    """The means of neighbours among all finite numbers of E4M3."""
    numbers = np.unique(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    return (numbers[1:] + numbers[:-1]) / 2


def quantize_linear(values: np.ndarray, scale: float, dtype: type) -> np.ndarray:
    """The bytes that onnxruntime's QuantizeLinear gives."""
    to = onnx.TensorProto.INT8 if dtype is np.int8 else onnx.TensorProto.FLOAT8E4M3FN
    node = helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=to)
    types = {"x": onnx.TensorProto.FLOAT, "q": to}
    x, q = (helper.make_tensor_value_info(name, kind, values.shape) for name, kind in types.items())
    constant = numpy_helper.from_array(np.array(scale, np.float32), "scale")
    graph = helper.make_graph([node], "quantize", [x], [q], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run_with_ort_values(["q"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(values)})
    return np.frombuffer(found.numpy().tobytes(), np.uint8).reshape(values.shape)


def results(
    shape: AttentionShape,
    schedule: list[list[tuple[int, int]]],
    isa: str,
    num_threads: int,
    seed: int,
    dtype: type = np.float32,
) -> list:
    """y, keys and values of each sequence after a schedule of steps."""
    lengths: dict[int, int] = {}
    for new_tokens in schedule:
        for sequence, count in new_tokens:
            lengths[sequence] = lengths.get(sequence, 0) + count
    tokens = Tokens(shape, [lengths[s] for s in sorted(lengths)])
    num_blocks = sum(-(-length // shape.tokens_per_block) for length in lengths.values()) + 2
    cache = PagedCache(shape, num_blocks, seed=seed, dtype=dtype)
    y: dict[int, list[np.ndarray]] = {s: [] for s in lengths}
    for new_tokens in schedule:
        for (sequence, _), rows in zip(new_tokens, step(tokens, cache, new_tokens, isa, num_threads), strict=True):
            y[sequence].append(rows)
    return [(np.concatenate(y[s]), *cache.tokens_of(s)) for s in sorted(lengths)]


def assert_same_results(actual: list, expected: list) -> None:
    """Compare sequence by sequence, bit for bit."""
    for sequence in zip(actual, expected, strict=True):
        for a, b in zip(*sequence, strict=True):
            np.testing.assert_array_equal(
                np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8)
            )


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_same_bits_with_caches_of_eight_bits(isa: str, dtype: type) -> None:
    """A prompt reads its own keys and values as stored, whether it is chunked or not."""
    shape = SHAPES["gqa3"]
    at_once = results(shape, [[(0, 100)], [(1, 75)]], isa, num_threads=1, seed=1, dtype=dtype)
    together = [[(0, 1), (1, 15)], [(1, 33), (0, 16)], [(0, 82)], [(1, 26), (0, 1)], [(1, 1)]]
    assert_same_results(results(shape, together, isa, num_threads=3, seed=3, dtype=dtype), at_once)


@pytest.mark.parametrize("name", SHAPES)
def test_same_bits_however_prompts_are_cut(isa: str, name: str) -> None:
    shape = SHAPES[name]
    at_once = results(shape, [[(0, 100)], [(1, 75)]], isa, num_threads=1, seed=1)
    one_by_one = [[(0, 1)] for _ in range(100)] + [[(1, 1)] for _ in range(75)]
    together = [[(0, 1), (1, 15)], [(1, 33), (0, 16)], [(0, 82)], [(1, 26), (0, 1)], [(1, 1)]]
    assert_same_results(results(shape, one_by_one, isa, num_threads=2, seed=2), at_once)
    assert_same_results(results(shape, together, isa, num_threads=3, seed=3), at_once)


@pytest.mark.parametrize("window", [0, 700])
def test_same_bits_with_long_context_on_any_number_of_threads(isa: str, window: int) -> None:
    """With four threads there are more threads than tiles, so the sequence is split; one thread never splits it."""
    how = {"tokens_per_block": 48, "window": window, "with_sinks": window > 0}
    shape = AttentionShape(num_heads=4, num_kv_heads=1, head_dim=24, **how)
    schedule = [[(0, 1300), (1, 5)], [(0, 1)], [(0, 1), (1, 1)], [(0, 7)]]
    alone = results(shape, schedule, isa, num_threads=1, seed=1)
    assert_same_results(results(shape, schedule, isa, num_threads=4, seed=2), alone)
    assert_same_results(results(shape, [[(0, 1309)], [(1, 6)]], isa, num_threads=1, seed=3), alone)


def test_long_context_matches_reference(isa: str) -> None:
    shape = AttentionShape(num_heads=3, num_kv_heads=1, head_dim=64, tokens_per_block=32, with_sinks=True)
    tokens, cache = Tokens(shape, [1200]), PagedCache(shape, num_blocks=40)
    for new_tokens, num_threads in (([(0, 1199)], 2), ([(0, 1)], 4)):
        expected = reference("PagedAttention", tokens.inputs(cache, new_tokens), shape.attributes)
        assert_step(step(tokens, cache, new_tokens, isa, num_threads), cache, expected)


def test_non_finite_sequence_stays_in_its_rows(isa: str) -> None:
    shape = SHAPES["gqa3"]
    clean = results(shape, [[(0, 40), (1, 40)], [(0, 1), (1, 1)]], isa, num_threads=2, seed=0)
    tokens, cache = Tokens(shape, [41, 41]), PagedCache(shape, num_blocks=160)
    tokens.qkv[0][:] = np.nan
    first = step(tokens, cache, [(0, 40), (1, 40)], isa)
    second = step(tokens, cache, [(0, 1), (1, 1)], isa)
    assert_same_bits(np.concatenate([first[1], second[1]]), clean[1][0])


def test_a_table_of_more_than_a_head_is_refused() -> None:
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=16, rotary_dim=40)
    tokens, cache = Tokens(shape, [5]), PagedCache(shape, num_blocks=2)
    with pytest.raises(EngineError, match=r"expected half_dim \* 2 <= head_dim"):
        step(tokens, cache, [(0, 5)], "portable")
