"""Generated workloads: lengths within their bounds and of the right distribution, arrivals at the right rate."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.bench.arrivals import ARRIVALS, arrival_times
from trtllm_lite.bench.lengths import LogNormal, parse_lengths
from trtllm_lite.bench.workload import AdaptedWorkload, Workload
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.limits import RunnerLimits

VOCAB_SIZE = 397
COUNT = 20_000


def limits(max_input_len=1024, max_seq_len=2048, **changes):
    values = {"max_batch_size": 8, "max_num_tokens": 512, "max_output_len": max_seq_len, "num_blocks": 1000}
    return RunnerLimits(
        max_input_len=max_input_len,
        max_seq_len=max_seq_len,
        max_beam_width=8,
        num_host_blocks=0,
        tokens_per_block=16,
        **{**values, **changes},
    )


def make(engine_limits=None, **fields):
    return Workload(**fields).requests(VOCAB_SIZE, engine_limits or limits())


LENGTHS = st.one_of(
    st.just("sharegpt"),
    st.integers(1, 100).map(str),
    st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda pair: f"{pair[0]}:{pair[0] + pair[1]}"),
    st.tuples(st.integers(1, 500), st.integers(1, 4000)).map(lambda pair: f"lognormal:{pair[0]}:{pair[0] + pair[1]}"),
)


@given(
    input_len=LENGTHS,
    output_len=LENGTHS,
    prefix_len=st.integers(0, 50),
    prefix_share=st.floats(0, 1),
    max_input_len=st.integers(150, 400),
    spare=st.integers(100, 400),
    seed=st.integers(0, 2**32),
)
def test_every_request_fits_the_engine(input_len, output_len, prefix_len, prefix_share, max_input_len, spare, seed):
    bounds = limits(max_input_len, max_input_len + spare)
    workload = Workload(
        num_requests=20,
        input_len=input_len,
        output_len=output_len,
        prefix_len=prefix_len,
        prefix_share=prefix_share,
        seed=seed,
    )
    for request in workload.requests(VOCAB_SIZE, bounds):
        assert 1 <= request.prompt_len <= bounds.max_input_len
        assert request.output_len >= 1
        assert request.prompt_len + request.output_len <= bounds.max_seq_len
        assert request.prompt_ids.dtype == np.int32
        assert request.prompt_ids.min() >= 0
        assert request.prompt_ids.max() < VOCAB_SIZE


@pytest.mark.parametrize(("input_len", "output_len"), [("7", "5"), ("30:90", "1:4"), ("64:64", "100:200")])
def test_uniform_lengths_reach_both_ends_and_all_between(input_len, output_len):
    requests = make(num_requests=4000, input_len=input_len, output_len=output_len)
    for text, found in (
        (input_len, [request.prompt_len for request in requests]),
        (output_len, [request.output_len for request in requests]),
    ):
        ends = [int(part) for part in text.split(":")]
        assert set(found) == set(range(ends[0], ends[-1] + 1))


@pytest.mark.parametrize(("median", "p95"), [(74, 1484), (487, 988), (100, 101)])
def test_log_normal_lengths_have_the_quantiles_asked_for(median, p95):
    generator = np.random.default_rng(0)
    drawn = [LogNormal(median, p95).draw(generator, 10**9) for _ in range(COUNT)]
    # Standard error of a quantile of the logarithms; the one of the 95th percentile exceeds that of the median.
    error = 4 * LogNormal(median, p95).sigma * math.sqrt(0.95 * 0.05 / COUNT) / 0.103
    assert np.median(drawn) == pytest.approx(median, rel=math.expm1(error), abs=1)
    assert np.percentile(drawn, 95) == pytest.approx(p95, rel=math.expm1(error), abs=1)


def test_a_bound_cuts_the_tail_and_changes_nothing_below():
    bound = 300
    free = np.array([LogNormal(74, 1484).draw(generator, 10**9) for generator in [np.random.default_rng(1)] * COUNT])
    cut = np.array([LogNormal(74, 1484).draw(generator, bound) for generator in [np.random.default_rng(2)] * COUNT])
    kept = free[free <= bound]
    assert cut.max() == bound
    for rank in (10, 25, 50, 75, 90):
        assert np.percentile(cut, rank) == pytest.approx(np.percentile(kept, rank), rel=0.06)


def test_sharegpt_is_the_log_normal_of_its_published_quantiles():
    assert parse_lengths("input_len", "sharegpt") == parse_lengths("input_len", "lognormal:74:1484")
    assert parse_lengths("output_len", "sharegpt") == parse_lengths("output_len", "lognormal:487:988")


@pytest.mark.parametrize(
    ("arrival", "burstiness", "variation"), [("poisson", None, 1.0), ("burst", 0.25, 4.0), ("burst", 4.0, 0.25)]
)
def test_gaps_have_the_rate_and_variation_asked_for(arrival, burstiness, variation):
    times = arrival_times(arrival, 20.0, burstiness, COUNT, np.random.default_rng(3))
    gaps = np.diff(times)
    assert times[0] == 0
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.06)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(variation, rel=0.1)


def test_all_arrive_at_once_without_a_rate():
    assert {request.arrival_s for request in make(num_requests=9, arrival="all")} == {0.0}


def test_equal_seeds_give_equal_requests_and_aspects_do_not_disturb_each_other():
    fields = {
        "num_requests": 12,
        "input_len": "5:40",
        "output_len": "2:9",
        "priorities": "0:1,7:1",
        "prefix_share": 0.5,
    }
    plain = make(**fields)
    again = make(**fields)
    assert [dataclasses.astuple(a)[2:] for a in plain] == [dataclasses.astuple(b)[2:] for b in again]
    for request, same in zip(plain, again, strict=True):
        np.testing.assert_array_equal(request.prompt_ids, same.prompt_ids)
    arriving = make(**fields, arrival="poisson", request_rate=3.0)
    prefixed = make(**fields, prefix_len=8)
    for request, other, longer in zip(plain, arriving, prefixed, strict=True):
        np.testing.assert_array_equal(request.prompt_ids, other.prompt_ids)
        np.testing.assert_array_equal(request.prompt_ids, longer.prompt_ids[-request.prompt_len :])
        assert (request.output_len, request.priority) == (other.output_len, other.priority)
    assert any((a.prompt_ids[:2] != b.prompt_ids[:2]).any() for a, b in zip(plain, make(**fields, seed=1), strict=True))


def test_a_share_of_the_prompts_begins_with_the_prefix():
    requests = make(num_requests=2000, input_len="4", prefix_len=6, prefix_share=0.3)
    shared = [request.prompt_ids for request in requests if request.prompt_len == 10]
    assert {request.prompt_len for request in requests} == {4, 10}
    assert len(shared) / 2000 == pytest.approx(0.3, abs=0.04)
    assert len({tuple(prompt[:6]) for prompt in shared}) == 1
    assert len({tuple(prompt[6:]) for prompt in shared}) > 100


def test_priorities_have_their_weights():
    priorities = [request.priority for request in make(num_requests=4000, priorities="0:9,50:1,-3:2")]
    assert set(priorities) == {0, 50, -3}
    assert priorities.count(50) / 4000 == pytest.approx(1 / 12, abs=0.02)
    assert priorities.count(0) / 4000 == pytest.approx(9 / 12, abs=0.03)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_requests": 0}, "num_requests is 0: expected at least 1"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"prefix_share": 1.5}, "prefix_share is 1.5: expected 0 to 1"),
        ({"input_len": "0"}, "input_len is '0': expected N, LEAST:MOST"),
        ({"input_len": "9:3"}, "the smaller one first"),
        ({"output_len": "lognormal:9:9"}, "output_len is 'lognormal:9:9'"),
        ({"output_len": "1:2:3"}, "output_len"),
        ({"output_len": "many"}, "output_len"),
        ({"arrival": "poisson"}, "arrival poisson needs a request_rate"),
        ({"arrival": "all", "request_rate": 2.0}, "arrival all has no request_rate"),
        ({"arrival": "poisson", "request_rate": 2.0, "burstiness": 1.0}, "poisson has no burstiness"),
        (
            {"arrival": "burst", "request_rate": 2.0, "burstiness": 0.0},
            "burstiness is 0.0: expected a finite number above 0",
        ),
        ({"arrival": "poisson", "request_rate": float("nan")}, "request_rate is nan"),
        ({"arrival": "sometimes"}, f"expected {', '.join(ARRIVALS)}"),
        ({"priorities": "0:1,200:1"}, "priorities is '0:1,200:1'"),
        ({"priorities": "0:0"}, "priorities"),
        ({"priorities": ""}, "priorities"),
    ],
)
def test_workloads_that_make_no_sense_are_errors(fields, message):
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        Workload(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_len": "1025"}, r"^input_len takes 1025 tokens, above max_input_len 1024: lower it, or build the en"),
        ({"input_len": "1000", "prefix_len": 25}, r"^prefix_len \+ input_len take 1025 .*, above max_input_len"),
        ({"input_len": "1024", "output_len": "1025"}, r"^input_len \+ output_len take 2049 .*, above max_seq_len 20"),
        ({"input_len": "sharegpt", "output_len": "2048"}, r"take 2049 tokens \(1 \+ 2048\), .* a larger max_seq_len$"),
        ({"input_len": "1", "output_len": "sharegpt", "prefix_len": 1024}, r"take 1025 tokens .* above max_input_len"),
    ],
)
def test_lengths_beyond_the_engine_are_errors_and_nothing_is_cut(fields, message):
    with pytest.raises(LimitError, match=message):
        make(num_requests=4, **fields)


def test_a_small_cache_bounds_lengths_too():
    small = limits(num_blocks=10)  # 160 tokens
    assert max(r.prompt_len + r.output_len for r in make(small, num_requests=200, output_len="sharegpt")) <= 160
    with pytest.raises(LimitError, match=r"161 tokens .*the 160 tokens of a sequence that the KV cache holds: "):
        make(small, input_len="100", output_len="61")


def test_requests_have_made_up_adapters_in_turn_and_are_else_as_without():
    fields = {"num_requests": 7, "seed": 3}
    adapted = AdaptedWorkload(**fields, num_loras=3, lora_rank=8).requests(VOCAB_SIZE, limits())
    assert [request.lora.lora_int_id for request in adapted] == [1, 2, 3, 1, 2, 3, 1]
    for request, plain in zip(adapted, make(**fields), strict=True):
        assert plain.lora is None
        assert np.array_equal(request.prompt_ids, plain.prompt_ids)
        assert request.output_len == plain.output_len
    with pytest.raises(ArgumentError, match="lora_rank is 0"):
        AdaptedWorkload(num_loras=1, lora_rank=0)
