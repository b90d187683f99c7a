"""RaggedAttention and Pooling, the operators that only encoders have."""

from itertools import pairwise

import numpy as np
import pytest

from tests.plugins.harness import assert_close, assert_same_bits, reference, run


def _ends(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _attention_inputs(
    lengths: list[int], heads: int, head_dim: int, half_dim: int = 0, most_distance: int = 0
) -> list[np.ndarray | None]:
    """The inputs of RaggedAttention: qkv, cos, sin, cu_seqlens, distance_bias."""
    generator = np.random.default_rng(half_dim)
    angles = generator.uniform(0, 7, (sum(lengths), half_dim)).astype(np.float32)
    tables = [np.cos(angles), np.sin(angles)] if half_dim else [None, None]
    bias = generator.standard_normal((heads, 2 * most_distance + 1), np.float32) if most_distance else None
    return [_qkv(sum(lengths), heads, head_dim), *tables, _ends(lengths), bias]


def _attributes(heads: int, head_dim: int, scale: float, window: int = 0) -> dict[str, float]:
    return {"num_heads": heads, "head_dim": head_dim, "scale": scale, "window": window}


def _qkv(num_tokens: int, heads: int, head_dim: int) -> np.ndarray:
    generator = np.random.default_rng([num_tokens, heads, head_dim])
    return generator.standard_normal((num_tokens, 3 * heads * head_dim), np.float32)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (6, 10), (12, 32), (3, 64), (2, 130), (1, 256)])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 20], [64, 65, 33], [129, 7]])
def test_ragged_attention(isa: str, heads: int, head_dim: int, lengths: list[int]) -> None:
    inputs, attributes = _attention_inputs(lengths, heads, head_dim), _attributes(heads, head_dim, head_dim**-0.5)
    actual = run("RaggedAttention", inputs, attributes, isa=isa)["y"]
    assert_close(actual, reference("RaggedAttention", inputs, attributes)["y"])


@pytest.mark.parametrize("lengths", [[1], [3, 1, 20], [64, 65, 33], [250, 7]])
@pytest.mark.parametrize(
    ("half_dim", "window", "most_distance"),
    [(4, 0, 0), (6, 5, 0), (0, 1, 0), (0, 40, 0), (0, 0, 3), (0, 0, 128), (5, 70, 9)],
)
def test_rope_windows_and_biases(isa: str, half_dim: int, window: int, most_distance: int, lengths: list[int]) -> None:
    heads, head_dim = 3, 12
    inputs = _attention_inputs(lengths, heads, head_dim, half_dim, most_distance)
    attributes = _attributes(heads, head_dim, 0.3, window)
    actual = run("RaggedAttention", inputs, attributes, isa=isa)["y"]
    assert_close(actual, reference("RaggedAttention", inputs, attributes)["y"])


def test_large_scores(isa: str) -> None:
    """The largest score comes in the last chunk, so that earlier partial sums are scaled down."""
    qkv = np.zeros((130, 3), np.float32)
    qkv[:, 0], qkv[:, 1], qkv[:, 2] = 1, np.linspace(-300, 300, 130), np.arange(130)
    attributes = _attributes(1, 1, 1.0)
    inputs = [qkv, None, None, _ends([130]), None]
    assert_close(
        run("RaggedAttention", inputs, attributes, isa=isa)["y"], reference("RaggedAttention", inputs, attributes)["y"]
    )


def test_a_text_is_computed_the_same_alone_and_in_a_batch(isa: str) -> None:
    lengths, heads, head_dim = [70, 5, 100], 4, 24
    inputs = _attention_inputs(lengths, heads, head_dim, half_dim=7, most_distance=20)
    qkv, cos, sin, ends, bias = inputs
    assert qkv is not None
    assert cos is not None
    assert sin is not None
    assert ends is not None
    attributes = _attributes(heads, head_dim, 0.2, window=33)
    whole = run("RaggedAttention", inputs, attributes, isa=isa, num_threads=3)["y"]
    pooled = run("Pooling", [whole, ends], {"mode": "mean", "normalization": "l2"}, isa=isa, num_threads=3)["y"]
    for text, (first, end) in enumerate(pairwise(ends)):
        own = _ends([end - first])
        alone = [qkv[first:end], cos[first:end], sin[first:end], own, bias]
        part = run("RaggedAttention", alone, attributes, isa=isa, num_threads=1)["y"]
        assert_same_bits(part, whole[first:end])
        row = run("Pooling", [part, own], {"mode": "mean", "normalization": "l2"}, isa=isa, num_threads=1)["y"]
        assert_same_bits(row, pooled[text : text + 1])


@pytest.mark.parametrize("mode", ["mean", "first"])
@pytest.mark.parametrize("normalization", ["none", "l2"])
@pytest.mark.parametrize("hidden", [1, 37, 384])
def test_pooling(isa: str, mode: str, normalization: str, hidden: int) -> None:
    lengths = [1, 70, 3]
    x = 1 + np.random.default_rng(hidden).standard_normal((sum(lengths), hidden), np.float32)
    inputs, attributes = [x, _ends(lengths)], {"mode": mode, "normalization": normalization}
    actual = run("Pooling", inputs, attributes, isa=isa)["y"]
    assert_close(actual, reference("Pooling", inputs, attributes)["y"])


def test_a_row_of_zeros_stays(isa: str) -> None:
    inputs = [np.zeros((2, 5), np.float32), _ends([2])]
    assert not run("Pooling", inputs, {"mode": "mean", "normalization": "l2"}, isa=isa)["y"].any()
