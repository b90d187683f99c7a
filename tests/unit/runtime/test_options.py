"""Arguments of generate: scalars and lists, defaults, domains."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.options import end_ids, per_request, samplings
from trtllm_lite.runtime.request import Sampling

NOTHING = {"temperature": None, "top_k": None, "top_p": None, "min_p": None, "random_seed": None}


def sampling(defaults=None, **given):
    return samplings({**NOTHING, "random_seed": 7, **given}, 1, defaults or {})[0]


def test_one_value_or_one_for_each():
    assert per_request("top_k", 3, 2) == [3, 3]
    assert per_request("top_k", [3, 4], 2) == [3, 4]
    assert per_request("top_k", np.array([3, 4]), 2) == [3, 4]
    with pytest.raises(ArgumentError, match="top_k has 3 values for 2 prompts"):
        per_request("top_k", [1, 2, 3], 2)


def test_greedy_unless_asked():
    assert sampling() == Sampling(seed=7)
    assert sampling({"temperature": 0.6, "top_p": 0.9}) == Sampling(seed=7)


def test_generation_defaults_of_the_model_apply():
    defaults = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert sampling(defaults) == Sampling(0.6, 20, 0.9, 0.0, 7)
    assert sampling(defaults, temperature=1.5) == Sampling(1.5, 20, 0.9, 0.0, 7)
    assert sampling(defaults, temperature=0).temperature == 0


def test_any_sampling_argument_samples():
    assert sampling(top_k=5) == Sampling(1.0, 5, 1.0, 0.0, 7)
    assert sampling(min_p=0.1, top_p=np.float32(0.5)) == Sampling(1.0, 0, 0.5, 0.1, 7)


def test_seeds_are_fresh_unless_given():
    first, second = samplings({**NOTHING, "temperature": 1.0}, 2, {})
    assert first.seed != second.seed
    assert samplings({**NOTHING, "random_seed": [1, 2]}, 2, {}) == [Sampling(seed=1), Sampling(seed=2)]


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
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("random_seed", -1),
        ("random_seed", 2**64),
        ("random_seed", 1.0),
    ],
)
def test_values_outside_the_domain_are_refused(name, value):
    with pytest.raises(ArgumentError, match=f"{name} is"):
        sampling(**{name: value})


def test_end_ids():
    assert end_ids(None, 2, [5, 6], 10) == [frozenset((5, 6))] * 2
    assert end_ids([-1, 3], 2, [5], 10) == [frozenset(), frozenset((3,))]
    for bad in (-2, 10, 1.5, True):
        with pytest.raises(ArgumentError, match="end_id"):
            end_ids(bad, 1, [5], 10)
