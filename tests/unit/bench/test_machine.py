"""The probe of the memory's bandwidth."""

import pytest

from trtllm_lite.bench.machine import read_bandwidth
from trtllm_lite.errors import LimitError


@pytest.mark.parametrize("num_bytes", [8, 64, 1 << 20, (1 << 20) + 8])
def test_any_number_of_bytes_is_read_by_any_number_of_threads(num_bytes: int) -> None:
    assert all(0 < read_bandwidth(num_threads, num_bytes) < float("inf") for num_threads in (1, 3))


def test_memory_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LimitError, match="probe of the bandwidth"):
        read_bandwidth(1, 1 << 60)
