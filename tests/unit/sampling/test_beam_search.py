"""Beam search against transformers' generate on tiny random models: same tokens, same scores."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trtllm_lite.errors import LimitError

VOCAB = 60
MAX_TOKENS = 14
SETTINGS = [
    {"num_beams": 2},
    {"num_beams": 4},
    {"num_beams": 7, "length_penalty": 2.0},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty": -1.0},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 3, "early_stopping": True, "length_penalty": 1.5},
    {"num_beams": 4, "early_stopping": "never"},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": -0.5},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.7},
]


@pytest.fixture(scope="module")
def models():
    """Random Llamas with sharpened logits, so that sequences differ in likelihood and end at different lengths."""

    def make(seed: int) -> LlamaForCausalLM:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        return LlamaForCausalLM(config).eval()

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small cost more to split than to multiply
    yield [make(seed) for seed in range(3)]
    torch.set_num_threads(num_threads)


def prompt_of(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCAB, 3 + seed % 4).tolist()


def expected_hypotheses(model, prompt, num_beams, end_ids, **settings) -> list[tuple[list[int], float]]:
    """transformers' sequences, each cut after its first end token, with their scores."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=num_beams,
        num_return_sequences=num_beams,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        eos_token_id=end_ids or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )
    generated = output.sequences[:, len(prompt) :].tolist()
    result = []
    for tokens, score in zip(generated, output.sequences_scores.tolist(), strict=True):
        ends = [i for i, token in enumerate(tokens) if token in end_ids]
        result.append((tokens[: ends[0] + 1] if ends else tokens, score))
    return result


def make_beams(core, num_beams, length_penalty=1.0, early_stopping=False):
    kinds = core.EarlyStopping
    beams = core.BeamSearchParams()
    beams.num_beams, beams.length_penalty = num_beams, length_penalty
    beams.early_stopping = {False: kinds.FALSE, True: kinds.TRUE, "never": kinds.NEVER}[early_stopping]
    return beams


def run_search(core, make_params, model, prompt, end_ids, settings, **fields):
    """Beam search with the model's logits computed from scratch for each beam, which also checks the moves of beams."""
    beams = make_beams(core, **settings)
    params = make_params(max_tokens=MAX_TOKENS, end_ids=end_ids, **fields)
    search = core.BeamSearch(beams, params, prompt, VOCAB)
    sequences = [list(prompt)]
    while not search.done:
        with torch.no_grad():
            logits = model(torch.tensor(sequences)).logits[:, -1].float().contiguous().numpy()
        moves = search.step(logits)
        sequences = [sequences[parent] + [token] for parent, token in moves]
    return search.hypotheses()


def assert_same(actual, expected):
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([score for _, score in actual], [score for _, score in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("end_ids", [[], [7], [5, 11, 23, 30, 41]], ids=len)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_transformers(core, make_params, models, settings, end_ids):
    lengths = set()
    for seed, model in enumerate(models * 2):
        expected = expected_hypotheses(model, prompt_of(seed), end_ids=end_ids, **settings)
        assert_same(run_search(core, make_params, model, prompt_of(seed), end_ids, settings), expected)
        lengths |= {len(tokens) for tokens, _ in expected}
    if len(end_ids) > 1 and settings.get("length_penalty", 1.0) <= 1.0:
        assert len(lengths) > 1, "sequences that end early are part of the test"


@pytest.mark.parametrize("settings", [SETTINGS[1], SETTINGS[5], SETTINGS[7]], ids=str)
def test_equals_transformers_with_processors(core, make_params, models, settings):
    """Each beam has its own history: penalties and bad words follow the beams as they fork."""
    end_ids = [5, 11, 23]
    for seed, model in enumerate(models * 2):
        bad_words = [[14], [20, 21], [8, 9]] + [[i, (i * 7) % VOCAB] for i in range(30)]
        expected = expected_hypotheses(
            model,
            prompt_of(seed),
            end_ids=end_ids,
            repetition_penalty=1.4,
            bad_words_ids=bad_words,
            min_new_tokens=4,
            **settings,
        )
        fields = {"repetition_penalty": 1.4, "bad_words": bad_words, "min_tokens": 4}
        assert_same(run_search(core, make_params, model, prompt_of(seed), end_ids, settings, **fields), expected)


def test_beams_run_on_when_end_tokens_are_the_likeliest(core, make_params):
    row = np.zeros((1, VOCAB), dtype=np.float32)
    row[0, [5, 11, 23]] = 9, 8, 7
    row[0, [40, 41]] = 3, 2
    search = core.BeamSearch(make_beams(core, 2, early_stopping="never"), make_params(end_ids=[5, 11, 23]), [1], VOCAB)
    assert search.step(row) == [(0, 40), (0, 41)]


def test_one_beam_is_greedy(core, make_params, models):
    for seed, model in enumerate(models):
        prompt = prompt_of(seed)
        output = model.generate(torch.tensor([prompt]), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0)
        [(tokens, _)] = run_search(core, make_params, model, prompt, [], {"num_beams": 1})
        assert tokens == output[0, len(prompt) :].tolist()


def test_few_possible_sequences_give_few_hypotheses(core, make_params, models):
    fields = {"allowed_token_ids": [3]}
    [(tokens, _)] = run_search(core, make_params, models[0], prompt_of(0), [], {"num_beams": 4}, **fields)
    assert tokens == [3] * MAX_TOKENS


def test_a_broken_row_is_an_error(core, make_params):
    search = core.BeamSearch(core.BeamSearchParams(), make_params(), [1], VOCAB)
    with pytest.raises(LimitError, match="finite"):
        search.step(np.full((1, VOCAB), np.nan, dtype=np.float32))


@pytest.mark.parametrize(
    ("beam_fields", "fields", "message"),
    [
        ({"num_beams": 0}, {}, "num_beams must be from 1 to 64, not 0"),
        ({"num_beams": 65}, {}, "num_beams must be from 1 to 64, not 65"),
        ({"length_penalty": float("nan")}, {}, "length_penalty must be"),
        ({}, {"temperature": 0.5}, "temperature must be 0 or 1 with beam search"),
        ({}, {"top_n_sigma": 1.0}, "top_n_sigma must be off with beam search, not 1"),
        ({}, {"top_k": 5}, "top_k must be off with beam search, not 5"),
        ({}, {"logprobs": 1}, "logprobs must not be set"),
    ],
)
def test_violations(core, make_params, beam_fields, fields, message):
    beams = core.BeamSearchParams()
    for name, value in beam_fields.items():
        setattr(beams, name, value)
    with pytest.raises(LimitError, match=message):
        core.BeamSearch(beams, make_params(**fields), [1], VOCAB)
