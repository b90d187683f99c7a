"""A product uses the kernel that was measured to be fastest for a step size, or else the best by estimate."""

from dataclasses import replace
from itertools import product

import pytest

from tests.unit.builder.cuda_engines import lowered
from trtllm_lite.builder.cuda.limits import LARGEST_STEP, Bucket, measured_rows, size_class, step_buckets
from trtllm_lite.builder.cuda.products.choices import chooser
from trtllm_lite.builder.cuda.products.dense import DenseSite
from trtllm_lite.builder.cuda.products.sites import Choice, Site
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT, FORMAT_VERSION, KernelTiming, TimingCache
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.plugins.cuda.peer_rows import on_first_rank
from trtllm_lite.plugins.cuda.row_scales import E4M3, RowScales
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.launch import Buffer, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.paged_attention.launches import Cache, Heads
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens

(H200,) = parse_targets(["sm_90"])
(A100,) = parse_targets(["sm_80"])
SMALL = Bucket("step_64", 64)
LARGE = Bucket("step_512", 512, above=256)
FIRST, SECOND = "first", "second"  # names of the tiled kernels for a step size


def _site(gated: bool, bucket: Bucket, out: int = 256, depth: int = 128) -> DenseSite:
    weight = Buffer("weight", "bfloat16", (2, out, depth) if gated else (out, depth), "weight")
    x, y = (Buffer(name, "bfloat16", ("num_tokens", extent)) for name, extent in (("x", depth), ("y", out)))
    operands = (y, x, WeightBuffers(weight), "bfloat16", symbol("num_tokens"))
    return DenseSite(*operands, bucket.max_tokens, "silu" if gated else "none")


GATED, PLAIN = _site(True, SMALL), _site(False, SMALL)


def _quantized(qformat: str) -> DenseSite:
    """The product with a quantized weight, and with quantized rows if ``qformat`` has them."""
    bytes_of = {"fp8": E4M3, "fp8_rowwise": E4M3, "int8_sq": "int8"}
    rows = bytes_of.get(qformat)
    dtype, *sizes = (rows,) if rows is not None else qformat.split()
    scale = Buffer("scale", "float32", (256, 1), "weight")
    if sizes:
        scale = Buffer("scale", "float16", (256, 128 // int(sizes[0])), "weight", "rows8")
    weight = WeightBuffers(Buffer("weight", dtype, (256, 128), "weight"), scale, rows=rows)
    per_row = Buffer("x_scale", "float32", ("num_tokens",)) if qformat in ("fp8_rowwise", "int8_sq") else None
    scales = None if rows is None else RowScales(rows, 0.5, per_row is not None, per_row)
    return replace(PLAIN, weight=weight, x_scales=scales)


IN_BLOCKS = ("int4 32", "int4 64", "int8 32", "float8_e4m3fn 128", "float4_e2m1fn 32")
FORMATS = ("fp8", "fp8_rowwise", "int8_sq", "int8", *IN_BLOCKS)


def _cache(site: Site, times: dict[int, dict[str, float]], size: int, arch: str = "sm_90a") -> TimingCache:
    """A timing cache of ``times`` by rows and kernel."""
    first, second, *_ = _kernels(site, size)
    names = {FIRST: str(first), SECOND: str(second)}
    timings = [
        KernelTiming(site.product, rows, names.get(kernel, kernel), time)
        for rows, of_rows in times.items()
        for kernel, time in of_rows.items()
    ]
    return TimingCache(FORMAT_VERSION, "Test GPU", arch, 130100, (), tuple(timings))


def _kernels(site: Site, size: int) -> list[TileConfig]:
    """The project's own kernels for a product, in order."""
    return [config for config in site.candidates(size, H200).values() if config is not None]


def _chosen(choice: Choice, site: Site, size: int) -> str:
    first, second, *_ = _kernels(site, size)
    return CUBLASLT if choice.config is None else {first: FIRST, second: SECOND}[choice.config]


def _written_tokens() -> NewTokens:
    """Queries, keys and values of 256 features that are rotated and written to the cache."""
    query, cos, sin, keys, values = (Buffer(name, "bfloat16", ("num_tokens", 128)) for name in "qcskv")
    step = [Buffer(name, "int32", (1,)) for name in ("starts", "past", "tables", "slots")]
    heads = Heads(4, 2, 32, 32, "bfloat16", "bfloat16", 2 * 2 * 32 * 32 * 2, 32)
    return NewTokens(query, Cache(keys, values, *step, 0), (cos, sin), heads)


@pytest.mark.parametrize("site", [GATED, PLAIN])
@pytest.mark.parametrize("fastest", [CUBLASLT, FIRST, SECOND])
def test_the_fastest_is_chosen(site: Site, fastest: str) -> None:
    times = {CUBLASLT: 9.0, FIRST: 9.5, SECOND: 10.0} | {fastest: 8.0}
    choice = chooser(SMALL, H200, _cache(site, {64: times}, 64))(site)
    assert _chosen(choice, site, 64) == fastest
    assert choice.reason.startswith("fastest on Test GPU: 64 rows 8.0 us (9.")


def test_a_kernel_behind_products_of_16_bits_writes_the_cache() -> None:
    site = replace(PLAIN, tokens=_written_tokens())
    assert site.tile_configs(64, H200) == PLAIN.tile_configs(64, H200)
    _, behind_cublaslt = site.implement(Choice(None, ""), H200)
    tiled, behind_tiles = site.implement(Choice(site.tile_configs(64, H200)[0], ""), H200)
    assert isinstance(tiled, Launch)
    assert tiled.kernel.name == "linear_tiled"
    assert behind_tiles == behind_cublaslt


def test_all_sizes_of_the_bucket_count() -> None:
    times = {384: {CUBLASLT: 10.0, FIRST: 14.0, SECOND: 11.0}, 512: {CUBLASLT: 20.0, FIRST: 15.0, SECOND: 16.0}}
    site = _site(True, LARGE)
    assert _chosen(chooser(LARGE, H200, _cache(site, times, 512))(site), site, 512) == SECOND
    times[256] = times[64] = {CUBLASLT: 1.0, FIRST: 9.0, SECOND: 9.0}  # step sizes in other buckets
    assert _chosen(chooser(LARGE, H200, _cache(site, times, 512))(site), site, 512) == SECOND


def test_kernels_that_were_not_near_the_fastest_have_lost() -> None:
    """Kernels that are clearly slower than the fastest are not timed to the end (time_candidates.h)."""
    times = {384: {CUBLASLT: 10.0, FIRST: 9.0}, 512: {CUBLASLT: 20.0, SECOND: 15.0}}
    site = _site(True, LARGE)
    assert _chosen(chooser(LARGE, H200, _cache(site, times, 512))(site), site, 512) == CUBLASLT


def test_kernels_that_are_gone_do_not_count() -> None:
    times = {64: {"17x17 tiles": 1.0, CUBLASLT: 9.0, FIRST: 8.0}}
    assert _chosen(chooser(SMALL, H200, _cache(GATED, times, 64))(GATED), GATED, 64) == FIRST


def test_without_measurements_it_is_cublaslt() -> None:
    site = _site(True, SMALL, 14336, 4096)
    other = _cache(site, {64: {CUBLASLT: 9.0, FIRST: 1.0}}, 64, arch="sm_80")
    for timings in (None, other, _cache(site, {512: {CUBLASLT: 9.0, FIRST: 1.0}}, 512)):
        assert chooser(SMALL, H200, timings)(site) == Choice(None, "no tiled kernel was measured")


# Products of a mixture of experts: router scores, and a product of attention.
@pytest.mark.parametrize(("out", "depth"), [(256, 2048), (2048, 4096)])
def test_without_measurements_short_products_are_tiled(out: int, depth: int) -> None:
    site = _site(False, SMALL, out, depth)
    assert _chosen(chooser(SMALL, H200, None)(site), site, 64) == FIRST
    measured = _cache(site, {64: {CUBLASLT: 1.0, FIRST: 9.0}}, 64)
    assert _chosen(chooser(SMALL, H200, measured)(site), site, 64) == CUBLASLT
    assert chooser(LARGE, H200, None)(_site(False, LARGE, 6144, 4096)).config is None
    assert chooser(SMALL, A100, None)(site).config is None


@pytest.mark.parametrize("qformat", FORMATS)
def test_the_fastest_is_chosen_for_quantized_weights(qformat: str) -> None:
    site = _quantized(qformat)
    assert _chosen(chooser(SMALL, H200, None)(site), site, 64) == FIRST
    decode = Bucket("decode_16", 16, decode=True)
    for fastest, bucket in product((FIRST, SECOND), (SMALL, decode)):
        times = {CUBLASLT: 1.0, FIRST: 9.5, SECOND: 10.0} | {fastest: 8.0}
        choice = chooser(bucket, H200, _cache(site, {64: times}, 64))(site)
        assert _chosen(choice, site, 64) == fastest
        assert choice.reason.startswith("fastest on Test GPU: 64 rows 8.0 us (")
        assert CUBLASLT not in choice.reason


@pytest.mark.parametrize("qformat", FORMATS)
def test_up_to_64_rows_swap_ab_comes_first_for_weights_in_blocks(qformat: str) -> None:
    site, expected = _quantized(qformat), qformat in IN_BLOCKS
    for tokens in (None, _written_tokens()):
        choice = chooser(SMALL, H200, None)(replace(site, tokens=tokens))
        assert choice.config is not None
        assert choice.config.swap_ab == expected
        (launch,) = replace(site, tokens=tokens).implement(choice, H200)
        assert isinstance(launch, Launch)
        name = "linear" if tokens is None else "qkv_linear"
        assert launch.kernel.name == name + ("_swap_ab" if expected else "_tiled")
    assert not any(config.swap_ab for config in _kernels(site, 128))
    ordered = [config for config in site.candidates(64, H200, splits=1).values() if config is not None]
    assert any(config.swap_ab for config in ordered) == (expected and not qformat.startswith(("int4", "uint4")))


@pytest.mark.parametrize("qformat", FORMATS)
def test_timings_are_of_one_format(qformat: str) -> None:
    sites = {other: _quantized(other) for other in FORMATS} | {"bfloat16": PLAIN}
    timings = _cache(sites[qformat], {64: {FIRST: 9.0, SECOND: 8.0}}, 64)
    measured = {name for name, site in sites.items() if "fastest" in chooser(SMALL, H200, timings)(site).reason}
    assert measured == {qformat}


def test_cublaslt_stores_no_rows_on_other_ranks() -> None:
    site = replace(PLAIN, peers=on_first_rank(Buffer("ranks", "int32", (8,), "state"), 512))
    assert _chosen(chooser(SMALL, H200, None)(site), site, 64) == FIRST
    timings = _cache(PLAIN, {64: {CUBLASLT: 1.0, FIRST: 9.0, SECOND: 8.0}}, 64)
    assert _chosen(chooser(SMALL, H200, timings)(site), site, 64) == SECOND
    assert _chosen(chooser(SMALL, H200, timings)(site.here), site, 64) == CUBLASLT


def _cut_times(site: Site, times: dict[int, dict[int, float]]) -> TimingCache:
    """A timing cache of ``times`` by rows, which stand for step sizes, and by split-K."""
    timings = [
        KernelTiming(site.product, rows, str(site.tile_configs(rows, H200, cut)[0]), time)
        for rows, of_rows in times.items()
        for cut, time in of_rows.items()
    ]
    return TimingCache(FORMAT_VERSION, "Test GPU", "sm_90a", 130100, (), tuple(timings))


@pytest.mark.parametrize("dtype", ["bfloat16", E4M3])
@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({64: {2: 10.4, 4: 10.0}, 256: {2: 20.0, 4: 30.0}}, 2),  # the gain with many rows is larger
        ({32: {2: 8.0}, 64: {2: 13.0, 4: 10.0}, 256: {2: 20.0, 4: 22.0}}, 4),
        ({64: {2: 10.4, 4: 10.0}, 128: {4: 12.0}}, 4),  # the other split has no timing
        ({64: {2: 10.0, 4: 10.4}, 1024: {4: 100.0}}, 2),  # no step of generation has that many rows
    ],
)
def test_the_depth_is_cut_as_is_best_for_steps_that_generate(
    times: dict[int, dict[int, float]], best: int, dtype: str
) -> None:
    weight = WeightBuffers(Buffer("weight", dtype, (4096, 14336), "weight"))
    if dtype == E4M3:
        weight = replace(weight, scale=Buffer("scale", "float32", (4096, 1), "weight"), rows=E4M3)
    x, y = Buffer("x", dtype, ("num_tokens", 14336)), Buffer("y", "bfloat16", ("num_tokens", 4096))
    site = DenseSite(y, x, weight, "bfloat16", symbol("num_tokens"), 64, "none")
    cuts = set()
    for bucket in (Bucket("decode_1", 1, decode=True), *step_buckets(2000)):
        choice = chooser(bucket, H200, _cut_times(site, times), deterministic=True)(site)
        assert choice.config is not None
        cuts.add(choice.config.splits)
        assert choice.reason.startswith(f"its sums have {best} parts in steps of every size; ")
    assert cuts == {best}


def test_other_targets_and_decode_programs_have_no_tiles() -> None:
    assert chooser(SMALL, A100, None)(GATED) == Choice(None, "")
    assert chooser(Bucket("decode_16", 16, decode=True), H200, None)(GATED) == Choice(None, "")


def test_steps_of_like_size_are_compared_at_the_same_rows() -> None:
    for num_tokens, size in ((1, 64), (64, 64), (65, 128), (700, 1024), (1025, LARGEST_STEP), (20000, LARGEST_STEP)):
        buckets = step_buckets(num_tokens)
        assert buckets[-1].name == "mixed"
        assert buckets[-1].max_tokens == num_tokens
        assert [larger.above for larger in buckets[1:]] == [smaller.max_tokens for smaller in buckets[:-1]]
        assert size_class(buckets[-1]) == size
        assert measured_rows(buckets[-1])[-1] == size


def test_programs_that_run_alike_are_one() -> None:
    names = [program.name for program in lowered(max_batch_size=80, max_num_tokens=1300).programs]
    assert names == [*(f"decode_{size}" for size in (1, 2, 4, 8, 16)), "mixed"]
