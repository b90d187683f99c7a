"""top_k, top_p and min_p against transformers' warpers: the same tokens stay, with the same probabilities."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

SETTINGS = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 700},
    {"top_p": 0.0},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.7},
    {"top_k": 500, "top_p": 0.95, "min_p": 0.01},
    {"top_p": 0.95, "min_p": 0.2},
]


def make_rows(vocab_size: int, seed: int) -> dict[str, np.ndarray]:
    """Rows of the shapes that matter: flat, peaked, full of ties, mostly masked."""
    random = np.random.default_rng(seed)
    flat = random.standard_normal(vocab_size).astype(np.float32)
    peaked = flat + 0
    peaked[random.integers(vocab_size, size=20)] += np.linspace(14, 4, 20, dtype=np.float32)
    masked = flat + 0
    masked[random.random(vocab_size) < 0.98] = -np.inf
    masked[random.integers(vocab_size)] = 1
    return {"flat": flat, "peaked": peaked, "tied": np.round(2 * flat) / 2, "masked": masked}


def transformers_probabilities(row, temperature, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    scores = TemperatureLogitsWarper(temperature)(None, torch.tensor(row)[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return scores.double().softmax(-1)[0].numpy()


def border_is_within_rounding(row, temperature, difference, setting) -> bool:
    """Whether float32 sums of transformers can have put these tokens on the other side of a border."""
    top_p, min_p = setting.get("top_p", 1.0), setting.get("min_p", 0.0)
    probabilities = torch.tensor(transformers_probabilities(row, temperature, top_k=setting.get("top_k", 0)))
    tokens = torch.tensor(sorted(difference))
    tail = torch.stack([probabilities[probabilities <= probabilities[t]].sum() for t in tokens])
    ratios = probabilities[tokens] / probabilities.max()
    near_top_p = (tail - (1 - top_p)).abs() < 2e-5
    near_min_p = (ratios / max(min_p, 1e-30) - 1).abs() < 1e-5
    return bool((near_top_p | near_min_p).all())


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab_size", [100, 1000, 20011])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.9])
def test_same_support_and_probabilities(core, vocab_size, temperature, setting):
    num_at_the_border = 0
    for seed in range(4):
        for name, row in make_rows(vocab_size, seed).items():
            expected = transformers_probabilities(row, temperature, **setting)
            ids, weights = core.truncated(row, temperature=temperature, **setting)
            expected_ids = np.flatnonzero(expected)
            if name == "tied":  # transformers may keep other tied tokens, but their probabilities have the same sum
                full = transformers_probabilities(row, temperature, top_k=setting.get("top_k", 0))
                assert abs(full[ids].sum() - full[expected_ids].sum()) < 2e-5, seed
                continue
            if ids != expected_ids.tolist():
                difference = set(ids) ^ set(expected_ids.tolist())
                assert border_is_within_rounding(row, temperature, difference, setting), (name, seed, difference)
                num_at_the_border += 1
                continue
            actual = np.array(weights, dtype=np.float64) / np.sum(weights, dtype=np.float64)
            np.testing.assert_allclose(actual, expected[ids], rtol=2e-5, atol=1e-12)
    assert num_at_the_border <= 4  # of 16 rows


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.5, 0.8, 0.97])
def test_nucleus_with_ties_is_exact(core, top_p):
    """The reference sorts in float64: of equal logits at the border, those of lower id stay."""
    for seed in range(20):
        for row in make_rows(3000, seed).values():
            order = np.argsort(-row, kind="stable")  # equal logits: lower id first
            weights = np.exp(row[order].astype(np.float64) - row.max())
            above = np.cumsum(weights) - weights
            margin = np.abs(above - top_p * weights.sum()).min() / weights.sum()
            expected = order[(above < top_p * weights.sum()) & (weights > 0)]
            ids, _ = core.truncated(row, top_p=top_p)
            assert ids == sorted(expected.tolist()) or margin < 1e-6


def test_top_k_keeps_ties_with_the_kth(core):
    row = np.zeros(1000, dtype=np.float32)
    row[[3, 500, 999]] = 2
    row[[4, 600, 700, 800]] = 1
    assert core.truncated(row, top_k=2)[0] == [3, 500, 999]
    assert core.truncated(row, top_k=4)[0] == [3, 4, 500, 600, 700, 800, 999]


@pytest.mark.parametrize("temperature", [0.7, 1.3, 3.0])
def test_top_k_keeps_logits_that_the_division_makes_equal(core, temperature):
    """Ties are judged after the division by the temperature, as in transformers."""
    grid = np.float32(1.5) + np.arange(200, dtype=np.float32) * np.float32(2**-23)
    quotients = grid / np.float32(temperature)
    pairs = np.flatnonzero(quotients[1:] == quotients[:-1])
    for lower in pairs[:20]:
        row = np.zeros(1000, dtype=np.float32)
        row[[700, 100]] = grid[lower], grid[lower + 1]
        expected = np.flatnonzero(transformers_probabilities(row, temperature, top_k=1)).tolist()
        assert core.truncated(row, temperature=temperature, top_k=1)[0] == expected == [100, 700]
    assert pairs.size > 0 or temperature < 1  # division by less than 1 may leave no two equal


def test_top_p_zero_keeps_one_token(core):
    row = np.zeros(1000, dtype=np.float32)
    assert core.truncated(row, top_p=0.0)[0] == [0]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_one_possible_token_stays(core, setting):
    row = np.full(5000, -np.inf, dtype=np.float32)
    row[4321] = -3
    assert core.truncated(row, **setting)[0] == [4321]


def test_weights_are_accurate(core):
    """The exponential is within 2 units in the last place, and 0 where float32 would be denormal."""
    row = np.linspace(-95, 0, 200001, dtype=np.float32)
    ids, weights = core.truncated(row, top_p=1 - 1e-7, top_k=row.size - 1)
    exact = np.exp(row[ids].astype(np.float64))
    weights = np.array(weights, dtype=np.float32)
    normal = row[ids] >= -87
    assert (np.abs(weights - exact) <= 2 * np.spacing(exact.astype(np.float32)))[normal].all()
    assert not weights[~normal].any()


def within_sigma(row, n) -> tuple[np.ndarray, float]:
    """Which tokens are within ``n`` standard deviations of the largest logit, and how near the border a logit comes."""
    wide = row[np.isfinite(row)].astype(np.float64)
    least = wide.max() - n * np.std(wide)
    return row >= least, float(np.abs(wide - least).min() / (1 + abs(least)))


@pytest.mark.parametrize("n", [0.01, 0.5, 1.0, 2.5, 50.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("vocab_size", [1, 100, 20011])
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(core, vocab_size, temperature, n):
    num_compared = 0
    for seed in range(4):
        for name, row in make_rows(vocab_size, seed).items():
            kept, distance = within_sigma(row, n)
            if distance < 1e-7:
                continue
            ids, _ = core.truncated(row, temperature=temperature, top_n_sigma=n)
            assert ids == np.flatnonzero(kept & np.isfinite(row)).tolist(), name
            num_compared += 1
    assert num_compared >= 8 or vocab_size == 1


@pytest.mark.parametrize(
    "rest", [{"top_k": 3}, {"top_k": 5000}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 40, "top_p": 0.5}]
)
def test_top_n_sigma_comes_before_the_other_cuts(core, rest):
    """transformers' warpers get the tokens that top_n_sigma keeps."""
    for seed in range(4):
        row = make_rows(20011, seed)["peaked"]
        kept, distance = within_sigma(row, 3.5)
        assert distance > 1e-7
        expected = transformers_probabilities(np.where(kept, row, -np.inf), 1.3, **rest)
        ids, weights = core.truncated(row, temperature=1.3, top_n_sigma=3.5, **rest)
        assert ids == np.flatnonzero(expected).tolist()
        np.testing.assert_allclose(np.array(weights) / np.sum(weights), expected[ids], rtol=2e-5)


def test_top_n_sigma_of_equal_logits_keeps_all(core):
    assert len(core.truncated(np.full(500, 2.5, np.float32), top_n_sigma=0.1)[0]) == 500


def test_top_n_sigma_counts_no_banned_token(core):
    row = np.array([3, 2, 1, -np.inf, -np.inf], np.float32)  # without the banned tokens the standard deviation is 0.816
    assert core.truncated(row, top_n_sigma=1.3)[0] == [0, 1]
    assert core.truncated(row, top_n_sigma=1.2)[0] == [0]
