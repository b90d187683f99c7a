"""Log-probabilities against torch's log_softmax of the raw logits."""

import numpy as np
import pytest
import torch


def make_row(seed: int, vocab_size: int) -> np.ndarray:
    return (6 * np.random.default_rng(seed).standard_normal(vocab_size)).astype(np.float32)


@pytest.mark.parametrize("vocab_size", [20, 128, 500, 49152])
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_generated_tokens_logprobs_are_of_raw_logits(core, make_params, vocab_size, num_top):
    """A request's logit processors and random draws do not change its log-probabilities."""
    for seed in range(5):
        row = make_row(seed, vocab_size)
        sampler = core.Sampler(1, vocab_size)
        biased = int(np.argsort(row)[-2])
        params = make_params(logprobs=num_top, temperature=0.3, top_k=2, logit_bias=[(biased, 30.0)], seed=seed)
        sampler.set_slot(0, params, [1, 2])
        result = sampler.sample_rows([0], row[None])[0]
        expected = torch.tensor(row).double().log_softmax(-1)
        assert result.token == biased
        assert result.logprobs.rank == 2
        np.testing.assert_allclose(result.logprobs.logprob, expected[result.token], atol=2e-6)
        values, ids = torch.topk(expected, num_top)
        assert [token for token, _ in result.logprobs.top] == ids.tolist()
        np.testing.assert_allclose([logprob for _, logprob in result.logprobs.top], values, atol=2e-6)


def test_float32_reference(core, make_params):
    """transformers computes in float32: the log-probabilities are equal up to rounding."""
    row = make_row(7, 151936)
    sampler = core.Sampler(1, row.size)
    sampler.set_slot(0, make_params(logprobs=20, temperature=0.0), [1])
    top = sampler.sample_rows([0], row[None])[0].logprobs.top
    expected = torch.tensor(row).log_softmax(-1)
    np.testing.assert_allclose([logprob for _, logprob in top], expected[[token for token, _ in top]], atol=1e-5)


def test_ties_come_in_order_of_id(core, make_params):
    row = np.round(make_row(1, 1000) / 6)
    sampler = core.Sampler(1, row.size)
    sampler.set_slot(0, make_params(logprobs=20, temperature=0.0), [1])
    top = sampler.sample_rows([0], row[None])[0].logprobs.top
    assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:20].tolist()


def test_no_logprobs_unless_asked(core, make_params):
    row = make_row(1, 100)
    sampler = core.Sampler(1, row.size)
    sampler.set_slot(0, make_params(), [1])
    assert sampler.sample_rows([0], row[None])[0].logprobs is None


@pytest.mark.parametrize("chunks", [[12], [1, 11], [5, 4, 3], [1] * 12])
def test_prompt_logprobs_at_any_chunking(core, chunks):
    vocab_size = 777
    logits = np.stack([make_row(seed, vocab_size) for seed in range(12)])
    next_tokens = np.random.default_rng(0).integers(vocab_size, size=12).tolist()
    sampler = core.Sampler(1, vocab_size)
    results, begin = [], 0
    for length in chunks:
        end = begin + length
        results += sampler.prompt_logprobs(logits[begin:end], next_tokens[begin:end], num_top=5)
        begin = end
    expected = torch.tensor(logits).double().log_softmax(-1)
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.logprob, expected[i, next_tokens[i]], atol=2e-6)
        assert result.rank == 1 + int((expected[i] > expected[i, next_tokens[i]]).sum())
        assert [token for token, _ in result.top] == torch.topk(expected[i], 5)[1].tolist()
