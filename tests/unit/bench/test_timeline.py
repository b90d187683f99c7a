"""A run over time, against counts made by hand for each interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.bench.figures import RequestRecord
from trtllm_lite.bench.timeline import timeline

RECORDS = st.lists(
    st.tuples(st.floats(0, 10), st.lists(st.floats(1e-3, 5), min_size=1, max_size=9), st.integers(1, 40) | st.none()),
    min_size=1,
    max_size=6,
)


@given(RECORDS)
def test_intervals_have_the_tokens_and_the_requests_of_their_time(drawn: list[tuple]) -> None:
    records = []
    for sent, gaps, num_tokens in drawn:
        times = [sent + sum(gaps[: place + 1]) for place in range(len(gaps))]
        records.append(RequestRecord(sent, sent, times, 1, num_tokens=num_tokens))
    found = timeline(records)
    width, rates, running = found["interval_s"], found["output_tokens_per_s"], found["running"]
    assert sum(rates) * width == pytest.approx(sum(record.output_len for record in records))
    assert len(rates) == len(running)
    for place, number in enumerate(running):
        middle = (place + 0.5) * width
        assert number == sum(one.sent_s <= middle < one.token_times_s[-1] for one in records)
