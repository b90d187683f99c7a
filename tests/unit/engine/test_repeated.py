"""Repeated runs in a sequence, and names without layer numbers."""

import pytest

from trtllm_lite.engine.repeated import Run, joined, pattern, runs, unfolded


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ("", []),
        ("abc", [(0, 3, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("xababaqq", [(0, 1, 1), (1, 2, 2), (5, 1, 1), (6, 1, 2)]),
        ("eabbabbabbz", [(0, 1, 1), (1, 3, 3), (10, 1, 1)]),  # the two b's are no run of their own
        ("abab" * 2, [(0, 2, 4)]),  # the shortest period
    ],
)
def test_runs(items: str, found: list[tuple[int, int, int]]) -> None:
    assert runs(items) == [Run(*run) for run in found]
    assert "".join(items[run.start : run.start + run.period] * run.repeats for run in runs(items)) == items


def test_an_unfolded_run_joins_its_neighbours() -> None:
    assert joined([Run(0, 1, 1), unfolded(Run(1, 2, 3)), Run(7, 1, 2), Run(9, 1, 1)]) == [
        Run(0, 7, 1),
        Run(7, 1, 2),
        Run(9, 1, 1),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.12.mlp.weight", "layers.*.mlp.weight"),
        ("key_cache.3", "key_cache.*"),
        ("layers.1.experts.7.w1", "layers.*.experts.*.w1"),
        ("int4.x8.v2", "int4.x8.v2"),
    ],
)
def test_numbers_between_dots_are_stars(name: str, expected: str) -> None:
    assert pattern(name) == expected
