"""Validation: every violation is named with its limit, its value and a remedy, and nothing valid is refused."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rounds import rounds

VOCAB = 100
TOKEN = st.integers(0, VOCAB - 1)

VALID = {
    "temperature": st.just(0.0) | st.floats(0.015625, 100, width=32),
    "top_k": st.integers(0, 2**31 - 1),
    "top_p": st.floats(0, 1, width=32),
    "top_n_sigma": st.just(-1.0) | st.floats(0, 100, width=32),
    "min_p": st.floats(0, 1, width=32),
    "repetition_penalty": st.floats(0.015625, 100, width=32),
    "presence_penalty": st.floats(-2, 2, width=32),
    "frequency_penalty": st.floats(-2, 2, width=32),
    "seed": st.integers(0, 2**64 - 1),
    "max_tokens": st.integers(50, 2**24),
    "min_tokens": st.integers(0, 50),
    "ignore_eos": st.booleans(),
    "end_ids": st.lists(st.integers(0, 9), max_size=10),
    "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=10),
    "bad_words": st.lists(st.lists(st.integers(10, VOCAB - 1), min_size=1, max_size=64), max_size=5),
    "logit_bias": st.lists(st.tuples(TOKEN, st.floats(-100, 100, width=32)), unique_by=lambda entry: entry[0]),
    "allowed_token_ids": st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=VOCAB),
    "logprobs": st.none() | st.integers(0, 20),
    "prompt_logprobs": st.none() | st.integers(0, 20),
}

OUTSIDE = st.integers(VOCAB, 2**31 - 1) | st.integers(-(2**31), -1)
INVALID = {
    "temperature": st.sampled_from([-1.0, -1e-4, 101.0, math.nan, math.inf, -math.inf]),
    "top_k": st.integers(-(2**31), -2),
    "top_p": st.sampled_from([-0.1, 1.1, math.nan, math.inf]),
    "min_p": st.sampled_from([-0.1, 1.1, math.nan, math.inf]),
    "top_n_sigma": st.sampled_from([-0.1, -2.0, 100.5, math.nan, math.inf]),
    "repetition_penalty": st.sampled_from([0.0, -1.0, 1e-9, 101.0, math.nan, math.inf]),
    "presence_penalty": st.sampled_from([-2.1, 2.1, math.nan, -math.inf]),
    "frequency_penalty": st.sampled_from([-2.1, 2.1, math.nan, math.inf]),
    "max_tokens": st.integers(-(2**31), 0) | st.integers(2**24 + 1, 2**31 - 1),
    "min_tokens": st.integers(-(2**31), -1) | st.integers(2**24 + 1, 2**31 - 1),
    "end_ids": OUTSIDE.map(lambda t: [1, t]) | st.just([1] * 257),
    "stop_token_ids": OUTSIDE.map(lambda t: [1, t]) | st.just([1] * 257),
    "bad_words": OUTSIDE.map(lambda t: [[1, 2], [3, t]]) | st.sampled_from([[[]], [[11] * 65], [[11]] * 1025]),
    "logit_bias": OUTSIDE.map(lambda t: [(t, 1.0)]) | st.sampled_from([[(1, math.nan)], [(1, 101.0)], [(1, 1.0)] * 2]),
    "allowed_token_ids": OUTSIDE.map(lambda t: [t]) | st.sampled_from([[], [1] * (VOCAB + 1)]),
    "logprobs": st.integers(21, 2**31 - 1) | st.integers(-(2**31), -1),
    "prompt_logprobs": st.integers(21, 2**31 - 1) | st.integers(-(2**31), -1),
}

any_fixture = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=rounds(200)
)


@any_fixture
@given(fields=st.fixed_dictionaries({}, optional=VALID))
def test_valid_parameters_pass_and_sample(core, make_params, fields):
    params = make_params(**fields)
    if fields.get("max_tokens", 16) >= fields.get("min_tokens", 0):
        assert params.violations(VOCAB) == []
        sampler = core.Sampler(1, VOCAB)
        sampler.set_slot(0, params, [10, 11], generated=[12, 13])
        row = np.random.default_rng(0).standard_normal(VOCAB).astype(np.float32)
        result = sampler.sample_rows([0], row[None])[0]
        assert 0 <= result.token < VOCAB or "ban all" in result.error


@any_fixture
@given(data=st.data(), names=st.sets(st.sampled_from(sorted(INVALID)), min_size=1))
def test_every_violation_is_listed(make_params, data, names):
    params = make_params(**{name: data.draw(INVALID[name], label=name) for name in sorted(names)})
    messages = params.violations(VOCAB)
    for name in names:
        own = [message for message in messages if message.startswith((name + " ", name + "["))]
        assert own, name
        assert all(";" in message for message in own), "a remedy follows the semicolon"
    # A bad max_tokens also makes the limit of min_tokens wrong; all other messages name only the bad fields.
    blamed = {message.split(" ")[0].split("[")[0] for message in messages}
    assert blamed - names <= {"min_tokens"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature must be from 0.01 to 100, not -1; use 0 for greedy decoding"),
        ({"top_k": -2}, "top_k must be 0 or more, not -2; use 0 to turn it off"),
        ({"logprobs": 21}, "logprobs must be from 0 to 20, not 21; ask for fewer, or leave it out to report none"),
        ({"min_tokens": 17}, "min_tokens must be from 0 to 16, not 17; lower it or raise max_tokens"),
        (
            {"stop_token_ids": [5, 100, -1]},
            "stop_token_ids must hold token ids from 0 to 99, not 100 (entry 1; 2 outside in all); "
            "use this model's tokenizer",
        ),
        (
            {"bad_words": [[1], [7]], "end_ids": [7]},
            "bad_words[1] must not be an end token of the model, and 7 is one; use ignore_eos or min_tokens",
        ),
    ],
)
def test_messages(make_params, fields, message):
    assert make_params(**fields).violations(VOCAB) == [message]
