"""A build asks a GPU, here a fake one, for the right measurements, and turns its answers into timings."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trtllm_lite.builder.cuda.products import measure
from trtllm_lite.builder.cuda.products.measure import FAST, THOROUGH, measure_algorithms, measure_tuning_tasks
from trtllm_lite.builder.cuda.products.timing_cache import (
    CUBLASLT,
    FORMAT_VERSION,
    Product,
    ProductTiming,
    TimingCache,
)
from trtllm_lite.builder.cuda.products.tuning_tasks import TuningTask
from trtllm_lite.errors import BuildError

PRODUCT = Product("bfloat16", "bfloat16", "bfloat16", 64, 96, gated=False, residual=True, bias=False)
HERE = TimingCache(FORMAT_VERSION, "Test GPU", "sm_90a", 130100, (), ())


class _Executor:
    """Reports fixed microseconds for a product, for any number of rows."""

    device_name, cublaslt_version = HERE.device, HERE.cublaslt_version

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def time_products(self, **how: Any) -> list[dict[str, Any]]:
        self.asked.append(how)
        rows = how["num_tokens"]
        return [vars(PRODUCT) | {"rows": rows, "algo": "0" * 128, "microseconds": rows, "heuristic_microseconds": rows}]

    def time_programs(self, names: list[str], **how: Any) -> list[float | None]:
        self.asked.append(how | {"names": names})
        return [None if name == "slow" else how["num_tokens"] for name in names]


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> _Executor:
    """The fake executor, which builds measure with."""
    double = _Executor()
    monkeypatch.setattr(measure, "_executor", lambda _: double)
    return double


def _measured(known: TimingCache | None, effort: measure.Effort = FAST) -> TimingCache:
    return measure_algorithms(Path("rank0.engine"), HERE.arch, 300, effort, known, lambda *_: None)


def _timing(rows: int, microseconds: float) -> ProductTiming:
    return ProductTiming(PRODUCT, rows, "1" * 128, microseconds, microseconds)


def test_every_number_of_rows_is_of_one_measurement(executor: _Executor) -> None:
    timings = _measured(None, THOROUGH).timings(PRODUCT)
    asked = [(how["above"], how["num_tokens"]) for how in executor.asked]
    assert asked[0] == (0, 1)
    assert asked[-1] == (256, 300)
    assert all(smaller[1] == larger[0] for smaller, larger in pairwise(asked))
    assert [timing.rows for timing in timings] == [rows for _, rows in asked]
    assert {how["candidates"] for how in executor.asked} == {THOROUGH.max_algorithms}
    assert [how["num_tokens"] for how in executor.asked if how["sustained"]] == [256, 300]


def test_what_was_known_of_the_card_is_kept(executor: _Executor) -> None:
    known = HERE.merged([_timing(64, 1.0), _timing(4096, 2.0)])
    found = {timing.rows: timing.microseconds for timing in _measured(known).timings(PRODUCT)}
    assert found == {how["num_tokens"]: how["num_tokens"] for how in executor.asked} | {4096: 2.0}


@pytest.mark.parametrize("first", [CUBLASLT, "a tile"])
def test_candidates_are_timed_at_the_rows_of_their_task(executor: _Executor, first: str) -> None:
    tasks = [
        TuningTask(PRODUCT, above, most, 2, {first: f"{first} {most}", "slow": "slow", "other": f"other {most}"})
        for above, most in ((0, 64), (128, 300))
    ]
    timings = measure_tuning_tasks(Path("rank0.engine"), tasks, THOROUGH, lambda *_: None)
    rows_of = {64: [32, 64], 300: [192, 256]}
    asked = [(how["names"], how["num_tokens"], how["sustained"]) for how in executor.asked]
    assert asked == [
        ([f"{first} {most}", "slow", f"other {most}"], rows, rows >= 256) for most in rows_of for rows in rows_of[most]
    ]
    # A run of the fake takes one microsecond per row, and computes two layers; a timing is that of one layer.
    expected = {(rows, name): rows / 2 for rows in (32, 64, 192, 256) for name in (first, "other")}
    assert {(timing.rows, timing.kernel): timing.microseconds for timing in timings} == expected
    assert {timing.product for timing in timings} == {PRODUCT}


@pytest.mark.parametrize(
    ("device", "arch", "version", "machine"),
    [
        ("Other GPU", "sm_90a", 130100, r"Other GPU \(sm_90a\) with cuBLAS 13\.1\.0"),
        ("Test GPU", "sm_90a", 120904, r"Test GPU \(sm_90a\) with cuBLAS 12\.9\.4"),
        ("Test GPU", "sm_80", 130100, r"Test GPU \(sm_80\) with cuBLAS 13\.1\.0"),
    ],
)
def test_what_was_known_of_another_machine_is_an_error(
    executor: _Executor, device: str, arch: str, version: int, machine: str
) -> None:
    known = TimingCache(FORMAT_VERSION, device, arch, version, (_timing(64, 1.0),), ())
    here = r"Test GPU \(sm_90a\) with cuBLAS 13\.1\.0"
    with pytest.raises(BuildError, match=f"measured on {machine}, and .* {here}: .* so leave input_timing_cache out"):
        _measured(known)
    assert not executor.asked
