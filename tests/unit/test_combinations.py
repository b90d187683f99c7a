"""The rule by which tests try all pairs of parameters."""

import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.combinations import covering

ROOT = Path(__file__).parents[2]
PRODUCTS = [(2, 2, 2), (5, 6, 5, 2), (1, 3, 1, 4), (3, 3, 3, 3, 3)]


def pairs(rows: list[tuple[int, ...]]) -> set[tuple]:
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize("extents", PRODUCTS)
def test_all_pairs_are_covered_by_few_rows(extents: tuple[int, ...]) -> None:
    rows = list(product(*map(range, extents)))
    taken = [rows[number] for number in covering(rows)]
    assert pairs(taken) == pairs(rows)
    least = max(a * b for a, b in combinations(extents, 2))
    assert least <= len(taken) <= 2 * least


def test_rows_that_are_no_product_are_covered() -> None:
    rows = [(0, 0, 0), (0, 0, 1), (1, 2, 0), (1, 2, 0), (2, 0, 1)]
    assert covering(rows) == [0, 1, 2, 4]
    assert covering(rows, strength=1) == [0, 2, 4]


def test_values_are_taken_in_turn() -> None:
    rows = list(product(range(6), range(3)))
    assert [rows[number] for number in covering(rows, strength=1)] == [(i, i % 3) for i in range(6)]


TESTS = """
import pytest

@pytest.fixture(params=["u", "v"])
def unit(request):
    return request.param

@pytest.mark.parametrize("a", [[1], [2], [3]])
@pytest.mark.parametrize(("b", "c"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("d", [1, 2])
def test_three(unit, a, b, c, d):
    assert sum(a) + b + c + d

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
def test_two(a, b):
    assert a + b

@pytest.mark.each_value
@pytest.mark.parametrize("a", [1, 2, 3, 4])
@pytest.mark.parametrize("b", [1, 2])
def test_each(a, b):
    assert a + b

@pytest.mark.each_value
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_each_of_fixtures(unit, a):
    assert unit * a
"""


@pytest.mark.parametrize(
    ("options", "num_three", "num_each"), [([], 2 * 6, 4 + 4), (["--all-combinations"], 2 * 12, 8 + 8)]
)
def test_products_of_three_and_more_are_tried_pairwise(
    tmp_path: Path, options: list[str], num_three: int, num_each: int
) -> None:
    (tmp_path / "test_products.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = each_value\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", tmp_path, tmp_path, *options]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert f" {num_three + 9 + num_each} passed" in run.stdout
