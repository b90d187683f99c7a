"""SamplingParams: what is refused on construction, and what becomes of the rest for a model."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import SamplingParams

from .doubles import END_ID, fake_manifest
from .texts import byte_level_tokenizer


def native(defaults=None, tokenizer=None, **given):
    return SamplingParams(**given).to_native(fake_manifest(generation=defaults or {}), tokenizer, 32)


def draw(*arguments, **given):
    params = native(*arguments, **given)
    return tuple(round(value, 6) for value in (params.temperature, params.top_k, params.top_p, params.min_p))


def test_greedy_unless_asked():
    assert draw() == (0, 0, 1, 0)
    assert draw({"temperature": 0.6, "top_p": 0.9}) == (0, 0, 1, 0)


def test_generation_defaults_of_the_model_apply():
    defaults = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert draw(defaults) == (0.6, 20, 0.9, 0)
    assert draw(defaults, temperature=1.5) == (1.5, 20, 0.9, 0)
    assert draw(defaults, temperature=0)[0] == 0
    assert native({"repetition_penalty": 1.25}).repetition_penalty == 1.25
    assert native({"repetition_penalty": 1.25}, repetition_penalty=1.0).repetition_penalty == 1.0


def test_any_sampling_argument_samples():
    assert draw(top_k=5) == (1, 5, 1, 0)
    assert draw(min_p=0.125, top_p=np.float32(0.5)) == (1, 0, 0.5, 0.125)


def test_seeds_are_fresh_unless_given():
    assert native().seed != native().seed
    assert native(seed=2**64 - 1).seed == 2**64 - 1


def test_sequences_share_a_seed_and_only_the_first_reports_on_the_prompt():
    params = SamplingParams(n=2, best_of=3, prompt_logprobs=1, return_context_logits=True)
    sequences = Request(np.array([3], np.int32), params).sequences()
    assert [entry.sequence_index for entry in sequences] == [0, 1, 2]
    assert len({entry.params.seed for entry in sequences}) == 1
    assert [entry.params.prompt_logprobs for entry in sequences] == [1, None, None]
    assert [entry.params.return_context_logits for entry in sequences] == [True, False, False]


def test_end_ids():
    assert native().end_ids == [END_ID]
    assert native(end_id=7).end_ids == [7]
    assert native(end_id=-1).end_ids == []
    assert native(ignore_eos=True).end_ids == []
    for bad in (-2, 397):
        with pytest.raises(ArgumentError, match="end_ids"):
            native(end_id=bad)


def test_bad_words_are_banned_with_and_without_a_space_before():
    tokenizer = byte_level_tokenizer()
    words = native(tokenizer=tokenizer, bad=["fox", [5, 6]], bad_token_ids=[9]).bad_words
    assert words[:1] == [[5, 6]]
    assert words[-1:] == [[9]]
    assert [tokenizer.decode(word) for word in words[1:-1]] == ["fox", " fox"]
    with pytest.raises(ArgumentError, match="no tokenizer"):
        native(bad="fox")


def test_lists_and_biases_reach_the_sampler():
    params = native(logit_bias={5: -1.5, 6: 2}, allowed_token_ids=range(3, 9), stop_token_ids=np.array([4]), logprobs=3)
    assert params.logit_bias == [(5, -1.5), (6, 2.0)]
    assert params.allowed_token_ids == [3, 4, 5, 6, 7, 8]
    assert params.stop_token_ids == [4]
    assert params.logprobs == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("max_tokens", 0),
        ("max_tokens", 2**25),
        ("min_tokens", 33),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("logit_bias", {3: 101.0}),
        ("logit_bias", [3]),
        ("allowed_token_ids", []),
        ("stop_token_ids", ["x"]),
        ("stop", [""]),
        ("stop", 7),
        ("bad", [[]]),
        ("bad_token_ids", [-1]),
        ("end_id", 1.5),
        ("n", 0),
        ("n", 129),
        ("best_of", True),
        ("truncate_prompt_tokens", 0),
        ("ignore_eos", 1),
        ("detokenize", None),
        ("use_beam_search", 1),
        ("early_stopping", "soon"),
        ("guided_decoding", "json"),
    ],
)
def test_values_outside_the_domain_are_refused(name, value):
    with pytest.raises(ArgumentError, match="bad" if name == "bad_token_ids" else name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.7}, "temperature must be 0 or 1"),
        ({"top_k": 3}, "top_k, top_p and min_p must be off"),
        ({"logprobs": 1}, "logprobs must not be set"),
        ({"best_of": 65}, "num_beams must be from 1 to 64"),
        ({"length_penalty": 101}, "length_penalty must be"),
        ({"length_penalty": "long"}, "length_penalty is 'long'"),
        ({"stop": "x"}, "leave them out"),
    ],
)
def test_what_a_beam_search_cannot_do(given, message):
    with pytest.raises(ArgumentError, match=message):
        SamplingParams(use_beam_search=True, **given)


def test_a_beam_search_draws_nothing():
    defaults = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    assert draw(defaults, use_beam_search=True, n=2)[0] == 0
    beams = SamplingParams(use_beam_search=True, n=2, best_of=3, early_stopping="never").to_native_beams()
    assert (beams.num_beams, beams.length_penalty, beams.early_stopping.name) == (3, 1.0, "NEVER")
    assert SamplingParams(n=3).to_native_beams() is None


def test_a_least_length_without_a_greatest():
    assert SamplingParams(max_tokens=None, min_tokens=100).min_tokens == 100


def test_n_above_best_of():
    with pytest.raises(ArgumentError, match="n not above best_of"):
        SamplingParams(n=3, best_of=2)
