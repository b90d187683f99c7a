"""Logit processors against transformers', alone and in sequence."""

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from trtllm_lite.errors import LimitError

VOCAB = 331  # two whole scan blocks and a part
SEEDS = range(40)


class Case:
    """A random history and row of logits; tokens come from few ids, so that sequences repeat."""

    def __init__(self, seed: int, num_ids: int = 12):
        self.random = np.random.default_rng(seed)
        self.logits = (4 * self.random.standard_normal(VOCAB)).astype(np.float32)
        self.ids = self.random.choice(VOCAB, num_ids, replace=False).tolist()
        self.prompt = self.tokens(1 + int(self.random.integers(30)))
        self.generated = self.tokens(int(self.random.integers(20)))

    def tokens(self, count: int) -> list[int]:
        return self.random.choice(self.ids, count).tolist()

    def expected(self, *processors) -> np.ndarray:
        history = torch.tensor([self.prompt + self.generated])
        return LogitsProcessorList(processors)(history, torch.tensor(self.logits)[None].clone())[0].numpy()

    def words(self, end_id: int) -> list[list[int]]:
        """Bad words, most of them completed by the next token."""
        history = self.prompt + self.generated
        lengths = self.random.integers(0, 4, 8)
        words = [history[len(history) - n :] + self.tokens(1) for n in lengths if n <= len(history)] + [self.tokens(3)]
        return [word for word in words if word != [end_id]]


def assert_same(actual, expected):
    actual = np.array(actual, dtype=np.float32)
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("penalty", [0.5, 1.1, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_repetition_penalty(core, make_params, seed, penalty):
    case = Case(seed)
    params = make_params(repetition_penalty=penalty)
    actual = core.processed(params, case.prompt, case.generated, case.logits)
    assert_same(actual, case.expected(RepetitionPenaltyLogitsProcessor(penalty)))


@pytest.mark.parametrize("seed", SEEDS)
def test_presence_and_frequency_penalties_follow_openai(core, make_params, seed):
    case = Case(seed)
    presence, frequency = case.random.uniform(-2, 2, 2)
    counts = np.bincount(case.generated, minlength=VOCAB)  # the prompt does not count
    expected = case.logits - counts * frequency - (counts > 0) * presence
    params = make_params(presence_penalty=presence, frequency_penalty=frequency)
    actual = core.processed(params, case.prompt, case.generated, case.logits)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_bad_words(core, make_params, seed):
    case = Case(seed)
    words = case.words(end_id=-1)
    actual = core.processed(make_params(bad_words=words), case.prompt, case.generated, case.logits)
    assert_same(actual, case.expected(NoBadWordsLogitsProcessor(words)))
    assert np.isneginf(actual).any()


@pytest.mark.parametrize("num_generated", [0, 3, 4, 5])
def test_min_tokens_suppresses_end_and_stop_tokens(core, make_params, num_generated):
    case = Case(seed=1)
    case.generated = case.tokens(num_generated)
    params = make_params(min_tokens=4, end_ids=[5, 6], stop_token_ids=[7])
    actual = core.processed(params, case.prompt, case.generated, case.logits)
    assert_same(actual, case.expected(MinNewTokensLengthLogitsProcessor(len(case.prompt), 4, [5, 6, 7])))


def test_ignored_end_tokens_are_not_suppressed(core, make_params):
    case = Case(seed=1)
    params = make_params(min_tokens=4, end_ids=[5], stop_token_ids=[7], ignore_eos=True)
    actual = core.processed(params, case.prompt, [], case.logits)
    assert np.flatnonzero(np.isneginf(actual)).tolist() == [7]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_in_transformers_order(core, make_params, seed):
    case = Case(seed, num_ids=40)
    biased = case.random.choice(VOCAB, 20, replace=False).tolist()
    biases = case.random.uniform(-10, 10, 20).astype(np.float32)
    allowed = case.random.choice(VOCAB, 100, replace=False).tolist()
    end_id = case.ids[0]
    words = case.words(end_id)
    params = make_params(
        logit_bias=list(zip(biased, biases.tolist(), strict=True)),
        repetition_penalty=1.3,
        bad_words=words,
        min_tokens=10,
        end_ids=[end_id],
        allowed_token_ids=allowed,
    )
    expected = case.expected(
        SequenceBiasLogitsProcessor({(token,): float(bias) for token, bias in zip(biased, biases, strict=True)}),
        RepetitionPenaltyLogitsProcessor(1.3),
        NoBadWordsLogitsProcessor(words, [end_id]),
        MinNewTokensLengthLogitsProcessor(len(case.prompt), 10, [end_id]),
        PrefixConstrainedLogitsProcessor(lambda _batch, _ids: allowed, 1),
    )
    assert_same(core.processed(params, case.prompt, case.generated, case.logits), expected)


def test_without_processors_the_row_is_untouched(core, make_params):
    case = Case(seed=3)
    params = make_params(bad_words=[[1, 2, 3, 4, 5]], min_tokens=2, logprobs=3)  # none has an effect
    assert core.processed(params, case.prompt, case.generated, case.logits) == case.logits.tolist()


def test_tokens_outside_the_vocabulary_are_refused(core, make_params):
    case = Case(seed=4)
    with pytest.raises(LimitError, match=rf"from 0 to {VOCAB - 1}, not {VOCAB} "):
        core.processed(make_params(), [1, VOCAB], [], case.logits)
