"""Matrix products through a fake cuBLASLt whose algorithms refuse some numbers of rows (fake_libcublaslt.cc)."""

import ctypes
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.toy_engine import INDEX, MAX_NUM_TOKENS, extent, make_toy_engine, pointer, successor, to_bytes
from trtllm_lite import _core
from trtllm_lite._core import CudaExecutor, Engine
from trtllm_lite.builder.cuda.products.timing_cache import Product, ProductTiming
from trtllm_lite.errors import ArgumentError, DeviceError, EngineError, LimitError

EVEN, ODD, HUNGRY, ANY = 1, 2, 3, 4
# Outputs of the first width have an algorithm for any number of rows; outputs of the second width have none.
WIDE, NARROW = 50, 40
HALVES_COLUMNS = 64


@pytest.fixture(scope="module")
def fake_library() -> ctypes.CDLL:
    """The library, which this process finds as libcublasLt.so.13."""
    library = ctypes.CDLL("libcublasLt.so.13")
    library.fake_runs.restype = ctypes.c_int64
    library.fake_runs.argtypes = [ctypes.c_int64, ctypes.c_int64]
    library.fake_deviation.restype = ctypes.c_double
    return library


def algorithm(max_rows: int, number: int) -> dict[str, Any]:
    return {"max_rows": max_rows, "algo": number.to_bytes(64, "little").hex()}


def product(width: int, *algorithms: dict[str, Any], rows: Any = None) -> dict[str, Any]:
    """A product of all tokens, or of ``rows`` rows."""
    return {
        "kind": "matmul",
        **{name: pointer("halves") for name in ("x", "weight")},
        **{"y": pointer("logits"), "bias": None, "residual": None},
        **{"rows": rows or extent("num_tokens"), "out_features": width, "in_features": 16},
        **{"dtype": "bfloat16", "out_dtype": "float32", "algorithms": list(algorithms)},
    }


def make_executor(path: Path, width: int, *algorithms: dict[str, Any], version: int = 130100) -> CudaExecutor:
    """The toy engine with a product of all tokens in front of every program."""
    toy = make_toy_engine()
    for program in toy.plan["programs"]:
        program["instructions"].insert(0, product(width, *algorithms))
    toy.plan["cuda"]["cublaslt_version"] = version if algorithms else 0
    (path / "rank0.engine").write_bytes(to_bytes(toy))
    return CudaExecutor(Engine(str(path / "rank0.engine")))


def runs(library: ctypes.CDLL, number: int, rows: int) -> int:
    count: int = library.fake_runs(number, rows)
    return count


def run_all_sizes(executor: CudaExecutor) -> None:
    for rows in range(1, MAX_NUM_TOKENS + 1):
        tokens = np.full(rows, 2, np.int32)
        table = np.arange(6, dtype=np.int32)[None]
        last, past_lens = np.array([rows - 1], np.int32), np.zeros(1, np.int32)
        logits = _core.step(executor, tokens, last + 1, past_lens, table, last)
        assert logits.argmax() == successor(tokens.tolist())


@pytest.mark.parametrize(("width", "of_even", "of_odd"), [(WIDE, ANY, ANY), (NARROW, EVEN, ODD)])
def test_products_of_any_number_of_rows_run(
    fake_library: ctypes.CDLL, tmp_path: Path, width: int, of_even: int, of_odd: int
) -> None:
    executor = make_executor(tmp_path, width)
    sizes = range(1, MAX_NUM_TOKENS + 1)
    before = {rows: runs(fake_library, (of_even, of_odd)[rows % 2], rows) for rows in sizes}
    run_all_sizes(executor)
    after = {rows: runs(fake_library, (of_even, of_odd)[rows % 2], rows) for rows in sizes}
    assert all(after[rows] > before[rows] for rows in sizes)


def test_algorithms_of_the_plan_are_run(fake_library: ctypes.CDLL, tmp_path: Path) -> None:
    executor = make_executor(tmp_path, WIDE, algorithm(1, ODD), algorithm(2, EVEN), algorithm(17, ANY))
    before = {key: runs(fake_library, *key) for key in ((ODD, 1), (EVEN, 2), (ANY, 17), (ANY, 24))}
    run_all_sizes(executor)
    assert all(runs(fake_library, *key) > count for key, count in before.items())


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ([algorithm(8, EVEN)], r"cuBLAS 13\.1\.0 refuses to compute 1 rows by .* measured for 1 to 8: build"),
        ([algorithm(2, ANY), algorithm(64, ODD)], "refuses to compute 4 rows by .* measured for 3 to 64: build"),
        ([algorithm(24, HUNGRY)], r"refuses to compute 4 rows by .* \(--output_timing_cache\)"),
    ],
)
def test_refused_algorithms_of_the_plan_are_errors(
    fake_library: ctypes.CDLL, tmp_path: Path, algorithms: list[dict[str, Any]], message: str
) -> None:
    del fake_library
    with pytest.raises(DeviceError, match=message):
        make_executor(tmp_path, WIDE, *algorithms)


def test_algorithms_of_another_version_of_the_library_are_errors(fake_library: ctypes.CDLL, tmp_path: Path) -> None:
    del fake_library
    with pytest.raises(DeviceError, match=r"measured with cuBLAS 12\.9\.4, and this machine has cuBLAS 13\.1\.0"):
        make_executor(tmp_path, WIDE, algorithm(24, ANY), version=120904)


def test_rows_beyond_the_engines_are_not_asked_about(fake_library: ctypes.CDLL, tmp_path: Path) -> None:
    assert MAX_NUM_TOKENS < 25  # the hungry algorithm refuses 25 and 18 tokens, and no number between
    before = runs(fake_library, HUNGRY, MAX_NUM_TOKENS)
    run_all_sizes(make_executor(tmp_path, WIDE, algorithm(18, ANY), algorithm(31, HUNGRY)))
    assert runs(fake_library, HUNGRY, MAX_NUM_TOKENS) > before


def test_measured_algorithms_compute_every_number_of_rows(fake_library: ctypes.CDLL, tmp_path: Path) -> None:
    del fake_library
    executor = make_executor(tmp_path, WIDE)

    def measure(**sizes: int) -> list[tuple[int, int]]:
        entries = executor.time_products(**sizes, repeats=1)
        return [(entry["rows"], int.from_bytes(bytes.fromhex(entry["algo"]), "little")) for entry in entries]

    assert measure(num_tokens=8) == [(8, ANY)]
    assert measure(num_tokens=24) == [(24, ANY)]
    assert measure(above=7, num_tokens=8) == [(8, EVEN)]
    assert measure(above=8, num_tokens=9) == [(9, HUNGRY)]
    assert measure(above=9, num_tokens=11) == [(11, ANY)]
    with pytest.raises(LimitError, match="above: expected 0 to 7, found 8"):
        measure(above=8, num_tokens=8)


def test_rows_without_a_common_algorithm_are_measured_in_parts(fake_library: ctypes.CDLL, tmp_path: Path) -> None:
    del fake_library
    entries = make_executor(tmp_path, NARROW).time_products(above=4, num_tokens=8, repeats=1)
    assert [entry["rows"] for entry in entries] == [5, 6, 7, 8]
    of_timing = {field.name for field in (*fields(Product), *fields(ProductTiming))} - {"product"}
    assert all(entry.keys() == of_timing for entry in entries)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_what_is_timed_computes_with_random_values(fake_library: ctypes.CDLL, tmp_path: Path, width: int) -> None:
    """Products are timed with random values, because products of zeros would take less power."""
    make_executor(tmp_path, width).time_products(num_tokens=MAX_NUM_TOKENS, repeats=2)
    assert 0.8 < fake_library.fake_deviation() < 1.2
    executor = make_executor(tmp_path, width)
    assert not 0.8 < fake_library.fake_deviation() < 1.2
    executor.time_programs(["mixed"], num_tokens=MAX_NUM_TOKENS, repeats=2)
    assert 0.8 < fake_library.fake_deviation() < 1.2


def test_a_product_of_more_rows_than_its_program_has_tokens_is_refused(tmp_path: Path) -> None:
    toy = make_toy_engine()
    toy.plan["programs"][0]["instructions"].insert(0, product(WIDE, rows={"const": 20, "terms": []}))
    (tmp_path / "rank0.engine").write_bytes(to_bytes(toy))
    with pytest.raises(EngineError, match="instruction 0: expected at most 1 rows, the program's max_tokens, found 20"):
        Engine(str(tmp_path / "rank0.engine"))


def test_outer_products_are_added_on_the_device(tmp_path: Path, fake_library: ctypes.CDLL) -> None:
    """The rows of each step are multiplied once, whatever their number is."""
    toy = make_toy_engine()
    toy.plan["outputs"]["rows"] = INDEX["halves"]
    (tmp_path / "rank0.engine").write_bytes(to_bytes(toy))
    executor = CudaExecutor(Engine(str(tmp_path / "rank0.engine")))
    matrix, before = _core.GramMatrix(executor, "rows"), runs(fake_library, EVEN, HALVES_COLUMNS)
    for count in (5, 7, 5):
        tokens = np.arange(count, dtype=np.int32)
        sizes = (np.array([number], np.int32) for number in (count, 0))
        _core.compute(executor, tokens, *sizes, np.array([[0, 1]], np.int32), np.array([], np.int32))
        matrix.add()
    assert runs(fake_library, EVEN, HALVES_COLUMNS) == before + 3
    assert matrix.values().shape == (HALVES_COLUMNS, HALVES_COLUMNS)
    for wrong in ("logits", "halves"):
        with pytest.raises(ArgumentError, match=f"expected .*{wrong}"):
            _core.GramMatrix(executor, wrong)
