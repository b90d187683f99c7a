"""The median of the values that a session counted between two readings of its counts."""

import pytest

from trtllm_lite.bench.serving import median_between


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, None),
        ({1.0: 3}, {1.0: 3}, None),
        ({}, {2.0: 1}, 2.0),
        ({1.0: 9}, {3.0: 1, 1.0: 9, 2.0: 2}, 2.0),
        ({1.0: 9, 3.0: 1}, {1.0: 10, 3.0: 3}, 3.0),
        ({1.0: 9}, {1.0: 11, 5.0: 2}, 1.0),
    ],
)
def test_only_what_came_since_counts(before: dict[float, int], after: dict[float, int], expected: float | None) -> None:
    assert median_between(before, after) == expected
