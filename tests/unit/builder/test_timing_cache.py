"""Timing caches choose algorithms and give reasons; the timings are made up here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.cuda_engines import LIMITS, cuda_shape, lowered
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cuda.planning import make_plan
from trtllm_lite.builder.cuda.products.tactics import explain
from trtllm_lite.builder.cuda.products.timing_cache import (
    CUBLASLT,
    FORMAT_VERSION,
    KernelTiming,
    Product,
    ProductTiming,
    TimingCache,
    load_timing_cache,
)
from trtllm_lite.engine.plan import MatmulInstruction, Plan, TimedAlgorithm
from trtllm_lite.errors import BuildError, DeviceError, OutputError

DOWN = Product("bfloat16", "bfloat16", "bfloat16", 64, 96, gated=False, residual=True, bias=False)
HEAD = Product("bfloat16", "bfloat16", "float32", 72, 64, gated=False, residual=False, bias=False)


def _timing(product: Product, rows: int, microseconds: float, heuristic: float) -> ProductTiming:
    return ProductTiming(product, rows, f"{rows:0128x}", microseconds, heuristic)


CACHE = TimingCache(
    FORMAT_VERSION,
    "Test GPU",
    "sm_90a",
    130100,
    (_timing(DOWN, 64, 9.0, 10.0), _timing(DOWN, 8, 5.0, 5.0), _timing(HEAD, 8, 7.0, 7.05)),
    (),
)


def _plan(timings: TimingCache | None, targets: str = "sm_90") -> Plan:
    programs = lowered(targets=targets)
    return make_plan(programs, dict.fromkeys(programs.kernels(), "0" * 64), timings)


def _algorithms(plan: Plan) -> dict[tuple[int, int], tuple[TimedAlgorithm, ...]]:
    return {
        (step.out_features, step.in_features): step.algorithms
        for program in plan.programs
        for step in program.instructions
        if isinstance(step, MatmulInstruction)
    }


def test_algorithms_that_gain_are_in_the_plan() -> None:
    plan = _plan(CACHE)
    found = _algorithms(plan)
    assert found.pop((64, 96)) == (TimedAlgorithm(8, f"{8:0128x}"), TimedAlgorithm(64, f"{64:0128x}"))
    assert set(found.values()) == {()}  # the head gains too little, the others were not measured
    assert plan.cuda.cublaslt_version == 130100


def test_without_algorithms_any_cublaslt_will_do() -> None:
    assert _plan(None).cuda.cublaslt_version == 0
    assert _plan(replace(CACHE, products=())).cuda.cublaslt_version == 0


def test_timings_are_of_one_architecture() -> None:
    plan = _plan(CACHE, "sm_80,sm_90")
    with_algorithms = {
        program.arch
        for program in plan.programs
        for step in program.instructions
        if isinstance(step, MatmulInstruction) and step.algorithms
    }
    assert with_algorithms == {"sm_90a"}


UNMEASURED = "; no tiled kernel was measured"


def test_every_choice_has_a_reason() -> None:
    tactics = {tactic.site: tactic for tactic in explain(lowered(), CACHE)}
    down = tactics["product 64 x 96 + residual, bfloat16 to bfloat16 of mixed (sm_90a)"]
    assert down.choice == "an algorithm for each number of rows"
    assert down.reason == f"measured on Test GPU: 8 rows 5.0 us; 64 rows 9.0 us (heuristic 10.0 us){UNMEASURED}"
    head = tactics["product 72 x 64, bfloat16 to float32 of mixed (sm_90a)"]
    assert (head.choice, head.reason) == ("cuBLASLt's heuristic at load", f"nothing was faster on Test GPU{UNMEASURED}")
    qkv = tactics["product 128 x 64, bfloat16 to bfloat16 of mixed (sm_90a)"]
    assert qkv.reason == f"it was not measured{UNMEASURED}"
    few_rows = tactics["qkv_linear 128 x 64 of decode_2 (sm_90a)"]
    assert "stage_k 1024" in few_rows.choice
    assert few_rows.reason == "x stays in shared memory"


def test_a_cache_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    times = {CUBLASLT: 9.0, "a tile": 8.0, "another": 7.0}
    cache = CACHE.merged([], [KernelTiming(DOWN, rows, kernel, times[kernel]) for rows in (64, 8) for kernel in times])
    cache.save(path)
    assert load_timing_cache(path) == cache
    first = path.read_bytes()
    load_timing_cache(path).save(path)
    assert path.read_bytes() == first
    assert len(first.splitlines()) == 10 + 3 + 6  # one timing per line


def test_formats_and_experts_are_kept_apart(tmp_path: Path) -> None:
    extents = {"out_dtype": "bfloat16", "out_features": 64, "in_features": 96}
    extents |= {"gated": False, "residual": False, "bias": False}
    e4m3 = {"dtype": "float8_e4m3fn", "x_dtype": "float8_e4m3fn"}
    int4 = {"dtype": "int4", "x_dtype": "bfloat16"}
    products = [
        *(Product(**extents, **e4m3, row_scales=scales) for scales in (False, True)),
        *(Product(**extents, **int4, blocks=f"blocks of {size} with float16 scales") for size in (32, 64)),
        *(Product(**extents, **int4, experts=f"4 of 32 experts{here}") for here in ("", ", 8 of them here")),
    ]
    assert [str(product).removeprefix("64 x 96").removesuffix(" to bfloat16") for product in products] == [
        ", float8_e4m3fn",
        ", float8_e4m3fn with row scales by float8_e4m3fn",
        ", bfloat16 by int4 in blocks of 32 with float16 scales",
        ", bfloat16 by int4 in blocks of 64 with float16 scales",
        " of 4 of 32 experts, bfloat16 by int4",
        " of 4 of 32 experts, 8 of them here, bfloat16 by int4",
    ]
    timings = [KernelTiming(product, 64, "a tile", 1.0 + number) for number, product in enumerate(products)]
    CACHE.merged([], timings).save(tmp_path / "cache.json")
    read = load_timing_cache(tmp_path / "cache.json")
    found = [read.kernel_timings(product, range(1, 65)) for product in products]
    assert found == [[timing] for timing in timings]


def test_a_newer_task_replaces_the_older_one() -> None:
    cache = CACHE.merged([], [KernelTiming(DOWN, 8, CUBLASLT, 5.0), KernelTiming(DOWN, 8, "gone", 4.0)])
    cache = cache.merged([], [KernelTiming(DOWN, 8, "a tile", 6.0), KernelTiming(DOWN, 64, CUBLASLT, 9.0)])
    found = [(timing.rows, timing.kernel) for timing in cache.kernel_timings(DOWN, range(1, 65))]
    assert found == [(8, "a tile"), (64, CUBLASLT)]
    assert [timing.rows for timing in cache.kernel_timings(DOWN, range(1, 64))] == [8]


def test_plans_hold_algorithms_up_to_their_rows() -> None:
    timings = [_timing(DOWN, rows, 1.0, 2.0) for rows in (8, 64, 128)]
    cache = replace(CACHE, products=tuple(timings))
    for max_rows, expected in ((8, [8]), (9, [8, 64]), (64, [8, 64]), (65, [8, 64, 128]), (500, [8, 64, 128])):
        assert [found.max_rows for found in cache.algorithms(DOWN, "sm_90a", max_rows)] == expected


def test_newer_timings_replace_older_ones() -> None:
    merged = CACHE.merged([_timing(DOWN, 64, 8.0, 10.0), _timing(DOWN, 128, 20.0, 20.0)])
    assert [(timing.rows, timing.microseconds) for timing in merged.timings(DOWN)] == [(8, 5.0), (64, 8.0), (128, 20.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a timing cache: .* expected JSON"),
        ('{"device": "x"}', "is not a timing cache: .* expected the keys .*: make it again, with --output"),
    ],
)
def test_damaged_caches_are_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cache.json").write_text(text)
    with pytest.raises(BuildError, match=message):
        load_timing_cache(tmp_path / "cache.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "0 rows: expected finite numbers above 0"),
        ({"microseconds": -1.0}, r"64 rows: expected finite numbers above 0, found 64 and \(-1.0, 10.0\)"),
        ({"algo": "12ab"}, "expected an algorithm of 128 hexadecimal digits, found '12ab'"),
        ({"algo": "G" * 128}, "expected an algorithm of 128 hexadecimal digits"),
        ({"rows": 8}, "8 rows: found twice: keep one of them"),
    ],
)
def test_caches_of_wrong_values_are_errors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    replace(CACHE, products=(replace(CACHE.products[0], **change), *CACHE.products[1:])).save(tmp_path / "cache.json")
    with pytest.raises(BuildError, match=message):
        load_timing_cache(tmp_path / "cache.json")


def test_kernels_that_are_measured_twice_are_errors(tmp_path: Path) -> None:
    once, other = (KernelTiming(DOWN, 64, kernel, 1.0) for kernel in (CUBLASLT, "tiles"))
    replace(CACHE, kernels=(once, other)).save(tmp_path / "cache.json")
    load_timing_cache(tmp_path / "cache.json")
    replace(CACHE, kernels=(once, other, replace(once, microseconds=2.0))).save(tmp_path / "cache.json")
    with pytest.raises(BuildError, match="found twice"):
        load_timing_cache(tmp_path / "cache.json")


def test_measuring_wants_a_place_for_what_it_finds(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())
    for path in (tmp_path, tmp_path / "absent" / "cache.json"):
        with pytest.raises(OutputError, match="cannot write the timing cache"):
            build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", output_timing_cache=path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


def test_measuring_wants_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device() -> None:
        raise DeviceError("no such device; get one")

    monkeypatch.setattr(_core, "cuda_device_memory", no_device)
    checkpoint, cache = save_checkpoint(tmp_path / "checkpoint", cuda_shape()), tmp_path / "cache.json"
    with pytest.raises(BuildError, match=r"on the GPU of this machine: no such device; .*leave it out"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", output_timing_cache=cache)
    assert not cache.exists()
    assert not (tmp_path / "engine").exists()


def test_caches_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    with pytest.raises(BuildError, match="cannot read the timing cache"):
        load_timing_cache(path)
    with pytest.raises(OutputError, match="cannot write the timing cache"):
        CACHE.save(tmp_path)
    replace(CACHE, format_version=7).save(path)
    with pytest.raises(BuildError, match=f"has format_version 7, and this installation reads {FORMAT_VERSION}:"):
        load_timing_cache(path)
    CACHE.save(path)
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())
    with pytest.raises(BuildError, match=r"measured on Test GPU \(sm_90a\), and the targets are sm_80"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_80", input_timing_cache=path)
    with pytest.raises(BuildError, match="for the targets sm_80, sm_90a: pass only this GPU's target"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_80,sm_90", output_timing_cache=path)
    with pytest.raises(BuildError, match="fast_build is given, and nothing is measured: leave fast_build out"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", fast_build=True)
    with pytest.raises(BuildError, match="CPU engines need no timing"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, fast_build=True)
    with pytest.raises(BuildError, match="CPU engines need no timing"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, input_timing_cache=path)
    replace(CACHE, products=(), kernels=()).save(path)
    with pytest.raises(BuildError, match=r"measured on Test GPU, knows none of this network's products .*leave it out"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", input_timing_cache=path)
