"""The operators without a product: norms, embeddings, cache rows, GatherRows, GatherColumns, MergeRows, RotaryTable."""

from typing import Any

import numpy as np
import pytest

from tests.plugins.harness import WEIGHT_DTYPES, assert_close, assert_same_bits, reference, run


@pytest.mark.parametrize("rows", [1, 3, 17, 65, 129])
@pytest.mark.parametrize("hidden", [1, 7, 64, 576, 1023])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("op", ["RmsNorm", "LayerNorm"])
def test_norms(isa: str, op: str, rows: int, hidden: int, with_residual: bool, with_sum: bool) -> None:
    rng = np.random.default_rng([rows, hidden])
    x, residual = 3 + rng.standard_normal((2, rows, hidden), np.float32)
    weight, bias = rng.standard_normal((2, hidden), np.float32)
    inputs = [x, weight, residual if with_residual else None]
    if op == "LayerNorm":
        inputs.append(bias if with_sum or hidden == 1 else None)
    attributes = {"epsilon": 1e-5}
    actual = run(op, inputs, attributes, isa=isa, without=() if with_sum else ("sum",))
    expected = reference(op, inputs, attributes)
    assert_close(actual["y"], expected["y"])
    if with_sum:
        assert_same_bits(actual["sum"], expected["sum"])


@pytest.mark.parametrize("op", ["RmsNorm", "LayerNorm"])
def test_a_normalised_row_does_not_depend_on_batch_or_threads(isa: str, op: str) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((129, 577), np.float32), rng.standard_normal(577, np.float32)
    rest = [weight, None] if op == "RmsNorm" else [weight, None, weight]
    whole = run(op, [x, *rest], {"epsilon": 1e-5}, isa=isa, num_threads=3)["y"]
    for row in (0, 64, 128):
        part = run(op, [x[row : row + 1], *rest], {"epsilon": 1e-5}, isa=isa, num_threads=1)["y"]
        assert_same_bits(part, whole[row : row + 1])


@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize(("queries", "keys", "values"), [(1, 1, 0), (33, 7, 7), (576, 192, 192)])
def test_query_key_norm(isa: str, rows: int, queries: int, keys: int, values: int) -> None:
    rng = np.random.default_rng([rows, queries])
    x = 3 + rng.standard_normal((rows, queries + keys + values), np.float32)
    inputs = [x, rng.standard_normal(queries, np.float32), rng.standard_normal(keys, np.float32)]
    actual = run("QueryKeyNorm", inputs, {"epsilon": 1e-5}, isa=isa, num_threads=3)["y"]
    assert_close(actual, reference("QueryKeyNorm", inputs, {"epsilon": 1e-5})["y"])
    assert_same_bits(actual[:, queries + keys :], x[:, queries + keys :])
    last = run("QueryKeyNorm", [x[-1:], *inputs[1:]], {"epsilon": 1e-5}, isa=isa, num_threads=1)["y"]
    assert_same_bits(last, actual[-1:])


@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize(("heads", "head_dim", "others"), [(1, 3, 0), (5, 7, 14), (12, 80, 160)])
def test_head_layer_norm(isa: str, rows: int, heads: int, head_dim: int, others: int) -> None:
    rng = np.random.default_rng([rows, heads])
    x = 3 + rng.standard_normal((rows, heads * head_dim + others), np.float32)
    inputs = [x, rng.standard_normal((heads, head_dim), np.float32)]
    actual = run("HeadLayerNorm", inputs, {"epsilon": 1e-5}, isa=isa, num_threads=3)["y"]
    assert_close(actual, reference("HeadLayerNorm", inputs, {"epsilon": 1e-5})["y"])
    assert_same_bits(actual[:, heads * head_dim :], x[:, heads * head_dim :])
    last = run("HeadLayerNorm", [x[-1:], inputs[1]], {"epsilon": 1e-5}, isa=isa, num_threads=1)["y"]
    assert_same_bits(last, actual[-1:])


@pytest.mark.parametrize(("rows", "merged", "features"), [(1, 1, 7), (5, 4, 72), (3, 16, 33)])
def test_merge_rows(isa: str, rows: int, merged: int, features: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows * merged, features), np.float32)
    actual = run("MergeRows", [x], {"merged": merged}, isa=isa, num_threads=3)["y"]
    assert_same_bits(actual, reference("MergeRows", [x], {"merged": merged})["y"])


@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize("hidden", [3, 64, 129])
@pytest.mark.parametrize("inputs", [4, 5])
def test_mix_streams(isa: str, rows: int, hidden: int, inputs: int) -> None:
    rng = np.random.default_rng([rows, hidden])
    streams: list[Any] = [rng.standard_normal((rows, hidden), np.float32) for _ in range(inputs)]
    streams[0] *= 20
    streams += [None] * (5 - inputs)
    router, weights, residual, scale = (
        rng.standard_normal(shape, np.float32) for shape in ((4, hidden), (5, 4, 5), (rows, hidden), (hidden,))
    )
    router /= hidden**0.5
    factors = [router, weights, *([residual, scale] if inputs == 5 else [])]
    left_out = [] if inputs == 5 else ["scaled"]
    actual = run("MixStreams", [*streams, *factors], {"epsilon": 1e-5}, isa=isa, num_threads=3, without=left_out)
    expected = reference("MixStreams", [*streams, *factors], {"epsilon": 1e-5})
    last_row = [stream if stream is None else stream[-1:] for stream in streams]
    last_row += [router, weights, *([residual[-1:], scale] if inputs == 5 else [])]
    last = run("MixStreams", last_row, {"epsilon": 1e-5}, isa=isa, num_threads=1, without=left_out)
    assert sorted(actual) == [*(["scaled"] if inputs == 5 else []), "y0", "y1", "y2", "y3"]
    for name, mix in actual.items():
        assert_close(mix, expected[name])
        assert_same_bits(last[name], mix[-1:])


@pytest.mark.parametrize("rows", [2, 17, 129])
@pytest.mark.parametrize("features", [3, 64, 129])
def test_rescale_rows(isa: str, rows: int, features: int) -> None:
    rng = np.random.default_rng([rows, features])
    x, like = (rng.standard_normal((rows, features), np.float32) * np.float32(scale) for scale in (1, 7))
    x[-1] *= 1e-3  # less than the least mean square
    actual = run("RescaleRows", [x, like], {"least": 1e-5}, isa=isa, num_threads=3)["y"]
    assert_close(actual, reference("RescaleRows", [x, like], {"least": 1e-5})["y"])
    assert_same_bits(run("RescaleRows", [x[-1:], like[-1:]], {"least": 1e-5}, isa=isa, num_threads=1)["y"], actual[-1:])


@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize("features", [3, 64, 129])
@pytest.mark.parametrize("factor", [-0.5, 0.8])
def test_cut_rows(isa: str, rows: int, features: int, factor: float) -> None:
    x = 0.5 + np.random.default_rng([rows, features]).standard_normal((rows, features), np.float32)
    actual = run("CutRows", [x], {"factor": factor}, isa=isa, num_threads=3)["y"]
    assert_close(actual, reference("CutRows", [x], {"factor": factor})["y"])
    assert_same_bits(run("CutRows", [x[-1:]], {"factor": factor}, isa=isa, num_threads=1)["y"], actual[-1:])


def test_layer_norm_of_a_large_mean(isa: str) -> None:
    """The variance is computed from centred rows: the mean of squares minus the squared mean would be noise."""
    x = 1000 + np.random.default_rng(0).standard_normal((3, 129), np.float32)
    inputs = [x, np.ones(129, np.float32), None, None]
    actual = run("LayerNorm", inputs, {"epsilon": 1e-5}, isa=isa)["y"]
    np.testing.assert_allclose(actual, reference("LayerNorm", inputs, {"epsilon": 1e-5})["y"], atol=2e-4)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_position_embedding(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((9, 33), np.float32).astype(WEIGHT_DTYPES[dtype])
    inputs = [rng.standard_normal((4, 33), np.float32), np.array([8, 0, 3, 3], np.int32), table]
    actual = run("PositionEmbedding", inputs, isa=isa)["y"]
    assert_same_bits(actual, reference("PositionEmbedding", inputs)["y"])


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("layout", ["row_major", "panel64"])
@pytest.mark.parametrize(("vocab", "hidden", "scale"), [(64, 64, 1.0), (131, 33, 45.25), (1, 1, 0.1)])
def test_embedding(isa: str, dtype: str, layout: str, vocab: int, hidden: int, scale: float) -> None:
    rng = np.random.default_rng([vocab, hidden])
    weight = rng.standard_normal((vocab, hidden), np.float32).astype(WEIGHT_DTYPES[dtype])
    token_ids = np.concatenate([[0, vocab - 1], rng.integers(0, vocab, 15)]).astype(np.int32)
    attributes = {"scale": float(np.float32(scale))}
    actual = run("Embedding", [token_ids, weight], attributes, isa=isa, layout=layout)
    assert_same_bits(actual["y"], reference("Embedding", [token_ids, weight], attributes)["y"])


def test_rows_take_the_place_of_tokens(isa: str) -> None:
    rng = np.random.default_rng(3)
    weight, rows = rng.standard_normal((9, 33), np.float32), rng.standard_normal((4, 33), np.float32)
    token_ids = np.array([3, ~2, ~0, 8, ~3, ~2, 0], np.int32)
    inputs = [token_ids, weight, None, None, rows]
    actual = run("Embedding", inputs, {"scale": 3.0}, isa=isa)["y"]
    assert_same_bits(actual, reference("Embedding", inputs, {"scale": 3.0})["y"])
    np.testing.assert_array_equal(actual[[1, 2, 4, 5]], rows[[2, 0, 3, 2]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_converted_exactly(isa: str, dtype: str) -> None:
    """All 65,536 bit patterns are tested, including subnormals and infinities; NaN stays NaN."""
    weight = np.arange(1 << 16, dtype=np.uint16).view(WEIGHT_DTYPES[dtype]).reshape(256, 256)
    token_ids = np.arange(256, dtype=np.int32)
    y = run("Embedding", [token_ids, weight], {"scale": 1.0}, isa=isa)["y"]
    np.testing.assert_array_equal(y, weight.astype(np.float32))


@pytest.mark.parametrize("indices", [[0], [4, 0, 4], list(range(5))])
def test_gather_rows(isa: str, indices: list[int]) -> None:
    inputs = [np.random.default_rng(0).standard_normal((5, 37), np.float32), np.array(indices, np.int32)]
    assert_same_bits(run("GatherRows", inputs, isa=isa)["y"], reference("GatherRows", inputs)["y"])


@pytest.mark.parametrize(("rows", "features"), [(1, 1), (5, 37), (70, 576)])
def test_gather_columns(isa: str, rows: int, features: int) -> None:
    rng = np.random.default_rng(features)
    x = rng.standard_normal((rows, features), np.float32)
    for order in (rng.permutation(features), rng.integers(0, features, 3 * features + 1)):
        inputs = [x, order.astype(np.int32)]
        assert_same_bits(run("GatherColumns", inputs, isa=isa)["y"], reference("GatherColumns", inputs)["y"])


@pytest.mark.parametrize(("rows", "features"), [(0, 5), (1, 1), (5, 37), (70, 576)])
def test_channel_magnitudes(isa: str, rows: int, features: int) -> None:
    x = np.random.default_rng(features).standard_normal((rows, features), np.float32)
    actual = run("ChannelMagnitudes", [x], isa=isa)["y"]
    np.testing.assert_allclose(actual, reference("ChannelMagnitudes", [x])["y"], rtol=1e-7)


def test_channel_magnitudes_that_are_not_finite(isa: str) -> None:
    x = np.array([[1, np.nan, -np.inf], [2, 3, 4]], np.float32)
    assert np.isfinite(run("ChannelMagnitudes", [x], isa=isa)["y"]).tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("half", [4, 32, 64])
@pytest.mark.parametrize("scale", [1.0, 1.2079441541679836])
def test_rotary_table(isa: str, half: int, scale: float) -> None:
    inv_freq = (1e4 ** -(np.arange(half) / half)).astype(np.float32)
    position_ids = np.array([0, 1, 2, 127, 4095, 131071, 999_999, 1_000_000], np.int32)
    actual = run("RotaryTable", [position_ids, inv_freq], {"scale": scale}, isa=isa)
    expected = reference("RotaryTable", [position_ids, inv_freq], {"scale": scale})
    for name in ("cos", "sin"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=2e-7, atol=1e-12)


def paged_rows(features: int, num_groups: int = 1) -> tuple[np.ndarray, list[np.ndarray]]:
    """A cache of random rows, and the places of packed tokens: sequences of 3, 1 and 20 tokens, in shuffled blocks.

    Block tables of other groups than the first name other blocks.
    """
    rng = np.random.default_rng(features)
    lengths, past_lens = np.array([3, 1, 20]), np.array([15, 0, 30])
    positions = np.concatenate([past + np.arange(n) for n, past in zip(lengths, past_lens, strict=True)])
    tables = np.stack([rng.permutation(12).reshape(3, 4) for _ in range(num_groups)], axis=1)
    starts = np.cumsum([0, *lengths])
    places = [positions.astype(np.int32), starts.astype(np.int32), tables.reshape(-1, 4).astype(np.int32)]
    return rng.standard_normal((12, 16, features), np.float32), places


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("features", [1, 37, 1024])
def test_rows_of_a_paged_cache(isa: str, features: int, num_groups: int) -> None:
    cache, places = paged_rows(features, num_groups)
    x = np.random.default_rng(0).standard_normal((24, features), np.float32)
    some = np.array([23, 0, 3], np.int32)
    for inputs in ([x, cache, *places, None], [x[:3], cache, *places, some]):
        assert_same_bits(run("PagedStore", inputs, isa=isa)["cache_out"], reference("PagedStore", inputs)["cache_out"])
    inputs = [cache, *places]
    loaded = run("PagedLoad", inputs, isa=isa)["y"]
    assert_same_bits(loaded, reference("PagedLoad", inputs)["y"])
    assert not loaded[3].any()


def test_a_row_is_loaded_behind_the_token_that_it_was_stored_for(isa: str) -> None:
    cache, places = paged_rows(5)
    x = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    stored = run("PagedStore", [x, cache, *places, None], isa=isa)["cache_out"]
    loaded = run("PagedLoad", [stored, *places], isa=isa)["y"]
    assert_same_bits(loaded[[1, 2]], x[[0, 1]])
    assert_same_bits(loaded[5:], x[4:-1])
