"""Figures of a run, against values worked out by hand and percentiles against their definition."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.bench.figures import (
    RequestRecord,
    cost_figures,
    goodput_figures,
    parse_objectives,
    priority_figures,
    serving_figures,
    summary,
)
from trtllm_lite.bench.metrics import METRICS, flatten
from trtllm_lite.errors import ArgumentError

# Due at 1 and held back until 2; three tokens. Due and sent at 0; one token.
RECORDS = [
    RequestRecord(1.0, 2.0, [2.5, 3.0, 4.5], 10, queue_s=0.25, num_cached_tokens=4, num_preemptions=1),
    RequestRecord(0.0, 0.0, [1.0], 6),
]


def percentile(values, rank):
    """Linear interpolation between the two nearest ranks of the sorted values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * rank / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_follow_their_definition(values):
    found = summary(values)
    assert found["mean"] == pytest.approx(math.fsum(values) / len(values))
    for rank in (50, 95, 99):
        assert found[f"p{rank}"] == pytest.approx(percentile(values, rank))


def test_nothing_has_no_percentiles():
    assert summary([]) == {}


def test_latencies_count_from_sending():
    figures = serving_figures(RECORDS, 5.0)
    assert figures["time_to_first_token_s"]["mean"] == pytest.approx((0.5 + 1.0) / 2)
    assert figures["end_to_end_latency_s"]["p50"] == pytest.approx((2.5 + 1.0) / 2)
    assert figures["held_back_s"]["p99"] == pytest.approx(0.99)
    assert figures["queue_s"]["mean"] == pytest.approx(0.125)


def test_time_per_token_is_of_requests_and_latency_between_tokens_of_gaps():
    figures = serving_figures(RECORDS, 5.0)
    assert figures["time_per_output_token_s"]["p99"] == pytest.approx(1.0)
    assert figures["inter_token_latency_s"]["p50"] == pytest.approx((0.5 + 1.5) / 2)
    assert figures["inter_token_latency_s"]["p99"] == pytest.approx(1.49)


def test_rates_and_counts():
    figures = serving_figures(RECORDS, 5.0)
    assert (figures["requests_per_s"], figures["output_tokens_per_s"], figures["total_tokens_per_s"]) == (0.4, 0.8, 4.0)
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["preemptions"]) == (16, 4, 1)
    assert figures["cached_prompt_share"] == 0.25


def test_each_priority_has_latencies_of_its_own():
    assert priority_figures(RECORDS) == {}
    urgent = [dataclasses.replace(RECORDS[1], priority=9), dataclasses.replace(RECORDS[1], sent_s=0.5, priority=9)]
    figures = priority_figures([*RECORDS, *urgent])
    assert list(figures) == ["9", "0"]
    assert figures["9"]["time_to_first_token_s"]["mean"] == pytest.approx(0.75)
    assert figures["0"]["end_to_end_latency_s"]["p50"] == pytest.approx((2.5 + 1.0) / 2)


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({"ttft": 1.0}, 2),
        ({"ttft": 0.999}, 1),
        ({"tpot": 0.999}, 1),
        ({"e2el": 2.5}, 2),
        ({"ttft": 0.6, "tpot": 0.5}, 0),
    ],
)
def test_goodput_counts_requests_that_meet_all(objectives, good):
    figures = goodput_figures(RECORDS, 5.0, objectives)
    assert figures == {"goodput_share": good / 2, "goodput_requests_per_s": good / 5}


def test_without_objectives_there_is_no_goodput():
    assert goodput_figures(RECORDS, 5.0, {}) == {}


def test_objectives_are_in_milliseconds():
    assert parse_objectives(["ttft:500", "tpot:50.5"]) == {"ttft": 0.5, "tpot": pytest.approx(0.0505)}


@pytest.mark.parametrize("texts", [["ttft"], ["itl:5"], ["ttft:-1"], ["ttft:inf"], ["ttft:1", "ttft:2"], ["tpot:fast"]])
def test_objectives_of_another_form_are_errors(texts):
    with pytest.raises(ArgumentError, match="expected NAME:MILLISECONDS, each name once"):
        parse_objectives(texts)


def test_price_of_a_million_tokens():
    # 0.8 and 4 tokens a second are 2880 and 14400 an hour.
    costs = cost_figures(serving_figures(RECORDS, 5.0), 3.6)
    assert costs["cost_per_million_output_tokens"] == pytest.approx(3.6 / 2880 * 1e6)
    assert costs["cost_per_million_total_tokens"] == pytest.approx(3.6 / 14400 * 1e6)
    assert cost_figures({}, None) == {}


def test_every_figure_is_declared_and_prints():
    figures = serving_figures(RECORDS, 5.0) | goodput_figures(RECORDS, 5.0, {"ttft": 1.0})
    figures |= cost_figures(figures, 1.0)
    for name, _, number in flatten(figures):
        assert METRICS[name].text(number)
