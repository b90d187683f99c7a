"""SamplingParams: what the constructor refuses, and what the sampler gets for a given model."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import SamplingParams

from .doubles import END_ID, VOCAB_SIZE, fake_manifest
from .texts import TOKENIZERS, byte_level_tokenizer


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


@pytest.mark.parametrize("given", [1e-8, 0.005, np.float32(0.009)])
def test_temperatures_near_0_are_greedy(given):
    assert draw(temperature=given) == (0, 0, 1, 0)
    assert draw({"do_sample": True, "temperature": float(given)}) == (0, 0, 1, 0)
    assert draw(temperature=0.01)[0] == 0.01


def test_values_that_mean_the_same_are_the_same():
    assert draw(top_k=-1) == draw(top_k=0) == draw({"do_sample": True, "top_k": -1}) == (1, 0, 1, 0)
    assert draw(top_k=50.0) == draw({"do_sample": True, "top_k": 50.0}) == (1, 50, 1, 0)


def test_seeds_are_fresh_unless_given():
    assert native().seed != native().seed
    assert native(seed=-1).seed != native(seed=-1).seed
    assert native(seed=2**64 - 1).seed == 2**64 - 1
    assert native(seed=-2).seed == 2**64 - 2


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
    with pytest.raises(ArgumentError, match="end_ids"):
        native(end_id=397)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["fox", "o", "qu", "foxes are", "🙂"])
def test_text_is_banned_in_every_token_that_holds_it_and_every_way_it_is_written(name, text):
    tokenizer = TOKENIZERS[name]()
    words = native(tokenizer=tokenizer, bad=[text, [5, 6]], bad_token_ids=[9]).bad_words
    assert words[:2] == [[5, 6], [9]]
    single = {word[0] for word in words[2:] if len(word) == 1}
    size = tokenizer._backend.get_vocab_size()
    assert single == {token for token in range(size) if text in tokenizer.decode([token])}
    for before in ("", " ", "\n"):
        ids = tokenizer.encode(before + text, add_special_tokens=False)
        pieces = [ids[start:end] for start in range(len(ids)) for end in range(start + 1, len(ids) + 1)]
        assert any(piece in words for piece in pieces)


def test_text_that_more_tokens_hold_than_can_be_listed_leaves_the_others(monkeypatch):
    monkeypatch.setattr("trtllm_lite._core.sampling.MAX_BAD_WORDS", 4)
    tokenizer = byte_level_tokenizer()
    params = native(tokenizer=tokenizer, bad=["o", [5, 6]])
    assert params.bad_words == [[5, 6]]
    others = [token for token in range(VOCAB_SIZE) if "o" not in tokenizer.decode([token])]
    assert params.allowed_token_ids == others
    holding = next(token for token in range(VOCAB_SIZE) if token not in others)
    few = native(tokenizer=tokenizer, bad="o", allowed_token_ids=[others[3], holding])
    assert few.allowed_token_ids == [others[3]]
    with pytest.raises(ArgumentError, match="every allowed token contains"):
        native(tokenizer=tokenizer, bad="o", allowed_token_ids=[holding])


def test_text_to_ban_needs_a_tokenizer():
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
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", 2**31),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("seed", -(2**63) - 1),
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
        ("bad_token_ids", 5),
        ("bad_token_ids", iter([5])),
        ("stop_token_ids", iter([5])),
        ("allowed_token_ids", np.array(5)),
        ("allowed_token_ids", "5"),
        ("logit_bias", [(3, 1.0)]),
        ("logit_bias", {"x": 1.0}),
        pytest.param("presence_penalty", 10**400, id="penalty-huge"),
        pytest.param("max_tokens", 1 << 20_000, id="max_tokens-huge"),
        ("end_id", 1.5),
        ("end_id", -2),
        ("end_id", 2**31),
        ("n", 0),
        ("n", None),
        pytest.param("n", 1 << 20_000, id="n-huge"),
        pytest.param("best_of", 1 << 20_000, id="best_of-huge"),
        ("early_stopping", []),
        ("early_stopping", 2),
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
    with pytest.raises(ArgumentError, match="bad" if name == "bad_token_ids" else name) as raised:
        SamplingParams(**{name: value})
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["x"] * 65),
        ("stop", "x" * 257),
        ("bad", "x" * 10_000_000),
        ("bad", [[5]] * 1025),
        ("bad_token_ids", range(10**9)),
        ("stop_token_ids", range(10**9)),
        ("allowed_token_ids", range(10**9)),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ],
)
def test_long_lists_and_strings_are_refused_before_they_are_read(name, value):
    with pytest.raises(LimitError, match=rf"{name} has [\d,]+ \w+.*, which exceeds [\d,]+: pass") as raised:
        SamplingParams(**{name: value})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.7}, "temperature must be 0 or 1"),
        ({"top_k": 3}, "top_k must be off with beam search, not 3"),
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("timeout", value) for value in (0, -1.0, float("nan"), True, "1", 10**400)),
        *(("cache_salt", value) for value in (None, b"x", "\udcff")),
        *(("priority", value) for value in (101, 1.0, None)),
    ],
)
def test_what_no_request_can_have(name, value):
    with pytest.raises(ArgumentError, match=name):
        Request(np.array([3], np.int32), **{name: value})
