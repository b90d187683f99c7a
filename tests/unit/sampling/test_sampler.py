"""The sampler on rows and slots: distributions, greedy, isolation, determinism, ends, errors."""

import numpy as np
import pytest

from trtllm_lite.errors import LimitError

VOCAB = 300


def make_row(seed: int, vocab_size: int = VOCAB, scale: float = 2.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(vocab_size)).astype(np.float32)


def sample_one(core, params, row, prompt=(1, 2, 3), **slot_fields):
    sampler = core.Sampler(1, row.size)
    sampler.set_slot(0, params, list(prompt), **slot_fields)
    return sampler.sample_rows([0], row[None])[0]


def chain(core, params, rows, prompt=(1, 2, 3), **slot_fields) -> list[int]:
    """The tokens of one sequence that samples from the rows in turn."""
    sampler = core.Sampler(1, rows.shape[1])
    sampler.set_slot(0, params, list(prompt), **slot_fields)
    return [sampler.sample_rows([0], row[None])[0].token for row in rows]


@pytest.mark.parametrize(
    "setting",
    [{}, {"top_k": 8}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_n_sigma": 1.2}, {"top_k": 30, "top_p": 0.9}],
    ids=str,
)
def test_draws_follow_the_distribution(core, make_params, setting):
    row = make_row(seed=0)
    ids, weights = core.truncated(row, temperature=0.9, **setting)
    expected = np.zeros(VOCAB)
    expected[ids] = np.array(weights) / np.sum(weights)
    num_draws = 20000
    params = make_params(temperature=0.9, seed=11, max_tokens=num_draws, **setting)
    tokens = chain(core, params, np.broadcast_to(row, (num_draws, VOCAB)))
    counts = np.bincount(tokens, minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    frequent = expected * num_draws >= 5
    observed = np.append(counts[frequent], counts[~frequent].sum())
    wanted = np.append(expected[frequent], max(expected[~frequent].sum(), 1e-12)) * num_draws
    degrees = int(frequent.sum())
    chi_square = ((observed - wanted) ** 2 / np.maximum(wanted, 1)).sum()
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees) + 10


@pytest.mark.parametrize("vocab_size", [1, 5, 128, 129, 1000])
def test_greedy_takes_the_largest_and_of_ties_the_lowest(core, make_params, vocab_size):
    row = np.round(make_row(seed=vocab_size, vocab_size=vocab_size))
    token = sample_one(core, make_params(temperature=0.0), row, prompt=[0]).token
    assert token == int(np.argmax(row))  # numpy, too, takes the first of equal logits


def test_draws_over_the_whole_vocabulary_are_inverse_transform(core, make_params):
    """Token i is drawn when the uniform number falls in its part of the cumulative distribution."""
    row = make_row(seed=3, vocab_size=1000)
    cumulative = np.cumsum(np.exp(row.astype(np.float64)))
    params = make_params(temperature=1.0, seed=99, max_tokens=500)
    tokens = chain(core, params, np.broadcast_to(row, (500, 1000)))
    uniforms = np.array([core.token_uniform(99, i) for i in range(500)])
    expected = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    assert (tokens == expected).mean() > 0.99  # rounding at the borders


SETTINGS = [
    {"temperature": 0.0, "bad_words": [[4], [1, 5]], "logprobs": 3},
    {"temperature": 0.8, "top_k": 5, "repetition_penalty": 1.5, "seed": 3},
    {"temperature": 1.0, "logit_bias": [(7, 50.0)], "seed": 4},
    {"temperature": 1.2, "presence_penalty": 1.0, "frequency_penalty": 0.5, "top_p": 0.9, "seed": 5, "logprobs": 0},
    {"temperature": 0.0, "allowed_token_ids": [1, 2], "min_tokens": 5, "end_ids": [1]},
    {"temperature": 1.0, "min_p": 0.05, "seed": 6},
]


def outcome(sampled):
    own = sampled.logprobs
    return sampled.error, sampled.token, own and (own.logprob, own.rank, own.top)


@pytest.mark.parametrize("seed", range(10))
def test_each_row_is_what_it_is_alone(core, make_params, seed):
    """Results of rows in any batch and order, also beside invalid rows, are bitwise those of one row at a time."""
    random = np.random.default_rng(seed)
    together, alone = core.Sampler(12, VOCAB), [core.Sampler(1, VOCAB) for _ in range(12)]
    for slot in range(12):
        params = make_params(**SETTINGS[slot % len(SETTINGS)])
        prompt = random.integers(VOCAB, size=5).tolist()
        together.set_slot(slot, params, prompt)
        alone[slot].set_slot(0, params, prompt)
    for _step in range(8):
        slots = random.permutation(12)[: random.integers(1, 13)].tolist()
        rows = np.round(random.standard_normal((len(slots), VOCAB)) * 4).astype(np.float32) / 2
        rows[random.random(len(slots)) < 0.2, random.integers(VOCAB)] = random.choice([np.nan, np.inf])
        before = rows.copy()
        results = together.sample_rows(slots, rows)
        np.testing.assert_array_equal(rows, before)
        for slot, row, result in zip(slots, rows, results, strict=True):
            assert outcome(result) == outcome(alone[slot].sample_rows([0], row[None])[0])


def test_a_broken_row_fails_alone_and_leaves_its_slot_as_it_was(core, make_params):
    rows = np.stack([make_row(seed) for seed in range(3)])
    sampler = core.Sampler(3, VOCAB)
    for slot in range(3):
        sampler.set_slot(slot, make_params(temperature=1.0, seed=slot), [1])
    broken = rows.copy()
    broken[1, 17] = np.nan
    first = sampler.sample_rows([0, 1, 2], broken)
    assert [bool(result.error) for result in first] == [False, True, False]
    assert "finite" in first[1].error
    assert first[1].token == -1
    first_of_its_own = sample_one(core, make_params(temperature=1.0, seed=1), rows[1], prompt=[1])
    assert sampler.sample_rows([1], rows[1:2])[0].token == first_of_its_own.token


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, 127, 128, 299])
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"top_k": 3}, {"allowed_token_ids": [50]}], ids=str)
def test_nan_and_infinity_are_found_anywhere(core, make_params, value, position, fields):
    row = make_row(seed=1)
    row[position] = value
    assert "must be finite" in sample_one(core, make_params(**fields), row).error


def test_minus_infinity_masks_a_token(core, make_params):
    row = np.full(VOCAB, -np.inf, dtype=np.float32)
    assert "at least one token" in sample_one(core, make_params(), row).error
    row[250] = -5
    for fields in ({"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}):
        assert sample_one(core, make_params(**fields), row).token == 250


def test_contradicting_constraints_are_an_error(core, make_params):
    params = make_params(allowed_token_ids=[4, 5], bad_words=[[4]], end_ids=[5], min_tokens=1)
    assert "ban all" in sample_one(core, params, make_row(seed=1)).error


def test_logits_beyond_float32_after_division_are_an_error(core, make_params):
    row = make_row(seed=1)
    row[3] = 3e38
    assert "raise temperature" in sample_one(core, make_params(temperature=0.5), row).error


def test_same_seed_same_tokens_other_seed_others(core, make_params):
    rows = np.stack([make_row(seed) for seed in range(30)])
    first = chain(core, make_params(seed=1, max_tokens=99), rows)
    assert first == chain(core, make_params(seed=1, max_tokens=99), rows)
    assert first != chain(core, make_params(seed=2, max_tokens=99), rows)
    assert first != chain(core, make_params(seed=1, max_tokens=99), rows, sequence_index=1)


def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(core, make_params):
    rows = np.stack([make_row(seed) for seed in range(30)])
    params = make_params(seed=1, max_tokens=99, repetition_penalty=1.2, frequency_penalty=0.3, bad_words=[[5, 6]])
    whole = chain(core, params, rows)
    assert chain(core, params, rows[12:], generated=whole[:12]) == whole[12:]


def test_min_tokens_delays_the_end(core, make_params):
    row = make_row(seed=1)
    row[9] = 100
    sampler = core.Sampler(1, VOCAB)
    sampler.set_slot(0, make_params(temperature=0.0, end_ids=[9], min_tokens=4), [1])
    results = [sampler.sample_rows([0], row[None])[0] for _ in range(5)]
    assert [result.token == 9 for result in results] == [False] * 4 + [True]


def test_a_refused_request_leaves_the_slot_as_it_was(core, make_params):
    sampler = core.Sampler(1, VOCAB)
    sampler.set_slot(0, make_params(temperature=0.0), [1])
    with pytest.raises(LimitError, match="top_p"):
        sampler.set_slot(0, make_params(top_p=2.0), [1])
    with pytest.raises(LimitError, match="prompt must hold token ids"):
        sampler.set_slot(0, make_params(), [-1])
    assert sampler.sample_rows([0], make_row(seed=2)[None])[0].token == int(np.argmax(make_row(seed=2)))
