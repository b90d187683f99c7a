"""sample: which tokens stay (against numpy), how often each is drawn, and that a row is nobody else's business."""

import numpy as np
import pytest

from trtllm_lite._core import sample
from trtllm_lite.errors import ArgumentError, EngineError


def draw(logits: np.ndarray, offsets: np.ndarray | None = None, seed: int = 7, **params: float) -> np.ndarray:
    """One token for each row of ``logits`` [rows, vocab] or, for a single row, for each of ``offsets``."""
    if offsets is not None:
        logits = np.broadcast_to(logits, (len(offsets), logits.shape[-1]))
    rows = len(logits)

    def column(name: str, default: float, dtype: type) -> np.ndarray:
        return np.full(rows, params.get(name, default), dtype)

    return sample(
        np.ascontiguousarray(logits, np.float32),
        column("temperature", 1.0, np.float32),
        column("top_k", 0, np.int32),
        column("top_p", 1.0, np.float32),
        column("min_p", 0.0, np.float32),
        np.full(rows, seed, np.uint64),
        np.arange(rows, dtype=np.uint64) if offsets is None else offsets.astype(np.uint64),
    )


def kept_probabilities(row: np.ndarray, temperature: float = 1, top_k: int = 0, top_p: float = 1, min_p: float = 0):
    """The distribution to draw from, in float64: temperature, then top_k, top_p and min_p, each renormalised."""
    scaled = row.astype(np.float64) / temperature
    if top_k:
        scaled[scaled < np.sort(scaled)[-min(top_k, len(row))]] = -np.inf
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    p[order[(before >= top_p) & (np.arange(len(p)) > 0)]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 1},
    {"top_p": 1e-6},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_distribution(settings: dict[str, float]) -> None:
    row = np.random.default_rng(3).standard_normal(40).astype(np.float32) * 2
    draws = 40_000
    counts = np.bincount(draw(row, np.arange(draws), **settings), minlength=len(row))
    expected = kept_probabilities(row, **settings) * draws
    assert not counts[expected == 0].any()
    likely = expected > 5
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    degrees = max(1, likely.sum() - 1)
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees) + 1


def test_nucleus_of_thousands() -> None:
    """More tokens than are sorted at first."""
    row = np.linspace(0, 1, 5000, dtype=np.float32)
    tokens = draw(row, np.arange(20_000), top_p=0.6)
    kept = np.flatnonzero(kept_probabilities(row, top_p=0.6))
    assert tokens.min() >= kept.min()
    assert len(np.unique(tokens)) > 0.95 * len(kept)


def test_top_k_keeps_ties_and_top_p_prefers_lower_ids() -> None:
    row = np.array([1, 3, 3, 3, 0], np.float32)
    assert set(draw(row, np.arange(500), top_k=1)) == {1, 2, 3}
    assert set(draw(np.zeros(4, np.float32), np.arange(500), top_p=0.5)) == {0, 1}


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.array([[0, 2, 2, 1], [5, 5, 5, 5], [-np.inf, -1, -np.inf, -1]], np.float32)
    assert draw(logits, temperature=0).tolist() == [1, 0, 1]


def test_a_row_depends_on_nothing_else() -> None:
    logits = np.random.default_rng(0).standard_normal((50, 300)).astype(np.float32)
    together = draw(logits, top_p=0.9)
    alone = [draw(logits[i], np.array([i]), top_p=0.9)[0] for i in range(50)]
    assert together.tolist() == alone
    assert draw(logits, top_p=0.9).tolist() == alone
    assert draw(logits, top_p=0.9, seed=8).tolist() != alone


def test_tiny_temperature_is_greedy_and_masked_tokens_never_come() -> None:
    row = np.array([1e30, -1e30, 9e29, -np.inf], np.float32)
    assert set(draw(row, np.arange(100), temperature=1e-30)) == {0}
    assert set(draw(np.array([-np.inf, 0, -np.inf], np.float32), np.arange(100))) == {1}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_names_the_row_that_is_not_finite(bad: float, temperature: float) -> None:
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = bad
    with pytest.raises(EngineError, match="logits of row 1: expected finite numbers"):
        draw(logits, temperature=temperature)
    with pytest.raises(EngineError, match="logits of row 0"):
        draw(np.full((1, 4), -np.inf, np.float32))


@pytest.mark.parametrize(
    "params",
    [{"temperature": -1}, {"temperature": np.nan}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}, {"min_p": -0.1}],
)
def test_refuses_parameters_outside_their_domain(params: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=f"row 0: expected .*{next(iter(params))}"):
        draw(np.zeros((1, 4), np.float32), **params)


def test_refuses_columns_of_other_length() -> None:
    one = np.zeros(1, np.float32)
    counters = np.zeros(2, np.uint64)
    with pytest.raises(ArgumentError, match="temperature: expected one value for each of 2 rows"):
        sample(np.zeros((2, 4), np.float32), one, np.zeros(2, np.int32), one, one, counters, counters)
