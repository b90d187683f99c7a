"""Products with experts use the tiles that were measured to be fastest, or else those estimated to be fastest."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from trtllm_lite.builder.cuda.limits import LARGEST_STEP, STEP_BUCKETS, Bucket, size_class, step_buckets
from trtllm_lite.builder.cuda.products.choices import chooser
from trtllm_lite.builder.cuda.products.grouped import GroupedSite
from trtllm_lite.builder.cuda.products.timing_cache import FORMAT_VERSION, KernelTiming, TimingCache
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.plugins.cuda.grouped import ExpertChoice
from trtllm_lite.plugins.launch import Buffer, Launch, TensorMap, WeightBuffers, symbol

(H200,) = parse_targets(["sm_90"])
EXPERTS = ExpertChoice(16, 2, 16)  # 64 rows give each expert 8 on average, 512 rows give it 64
SMALL, LARGE, DECODE = Bucket("step_64", 64), Bucket("step_512", 512, above=384), Bucket("decode_16", 16, decode=True)
BLOCKS = {"float8_e4m3fn": ("float32", 128), "float4_e2m1fn": ("bfloat16", 32), "int8": ("float16", 32)}
FORMS = ("bfloat16", "int4", *BLOCKS)
Times = Mapping[int, Mapping[str, float]]  # microseconds by rows and kernel


def _site(dtype: str, bucket: Bucket, gated: bool = True, experts: ExpertChoice = EXPERTS) -> GroupedSite:
    shape = (experts.local, 2, 384, 256) if gated else (experts.local, 256, 384)
    number, block = BLOCKS.get(dtype, ("float16", 64))
    scale = Buffer("scale", number, (*shape[:-1], shape[-1] // block), "weight", "rows8")
    weight = WeightBuffers(Buffer("weight", dtype, shape, "weight"), None if dtype == "bfloat16" else scale)
    x, y = (Buffer(n, "bfloat16", ("num_tokens", experts.top_k, k)) for n, k in (("x", shape[-1]), ("y", shape[-2])))
    groups = Buffer("groups", "int32", (experts.groups_ints(bucket.max_tokens),))
    rows = (symbol("num_tokens"), bucket.max_tokens, 1024 * experts.top_k)
    return GroupedSite(y, x, weight, groups, "bfloat16", *rows, experts, "silu" if gated else "none")


def _cache(site: GroupedSite, times: Times) -> TimingCache:
    timings = [KernelTiming(site.product, rows, name, time) for rows, of in times.items() for name, time in of.items()]
    return TimingCache(FORMAT_VERSION, "Test GPU", "sm_90a", 130100, (), tuple(timings))


def _names(site: GroupedSite) -> list[str]:
    return list(site.candidates(site.max_rows, H200))


@pytest.mark.parametrize(
    ("dtype", "small", "large"),
    [
        ("bfloat16", (64, [256, 192, 128]), (128, [256, 192, 128])),
        ("int4", (64, [256, 192, 128]), (128, [192, 128, 96])),
        ("float4_e2m1fn", (64, [128, 192, 256]), (128, [192, 128, 96])),  # 96 tiles on 132 SMs, by swap-AB
    ],
)
def test_candidates_have_names_that_tell_tiles(
    dtype: str, small: tuple[int, list[int]], large: tuple[int, list[int]]
) -> None:
    """The first candidate is the best by estimate."""
    for bucket, (rows, widths) in ((SMALL, small), (LARGE, large)):
        way = " by swap-AB" if dtype == "float4_e2m1fn" and rows == 64 else ""
        names = [f"{rows}x{width} tiles in clusters of 1x1x1{way}" for width in widths]
        assert _names(_site(dtype, bucket)) == names


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", FORMS)
def test_the_fastest_is_chosen(dtype: str, gated: bool) -> None:
    for bucket in (SMALL, LARGE, DECODE):
        site, rows = _site(dtype, bucket, gated), size_class(bucket)
        for fastest in _names(site):
            times = dict.fromkeys(_names(site), 9.0) | {fastest: 8.0, "17x17 tiles": 1.0}
            choice = chooser(bucket, H200, _cache(site, {rows: times}))(site)
            assert str(choice.config) == fastest
            assert choice.reason.startswith(f"fastest on Test GPU: {rows} rows 8.0 us (9.0 us by ")


@pytest.mark.parametrize("dtype", FORMS)
def test_without_measurements_it_is_the_heuristic(dtype: str) -> None:
    for bucket in (SMALL, LARGE, DECODE):
        site = _site(dtype, bucket)
        first, *_, last = _names(site)
        elsewhere = _cache(site, {2048: {last: 1.0}})
        for timings in (None, elsewhere, replace(_cache(site, {64: {last: 1.0}, 512: {last: 1.0}}), arch="sm_100a")):
            choice = chooser(bucket, H200, timings)(site)
            assert str(choice.config) == first
            assert choice.reason == f"by heuristic: groups of {site.group_rows} rows of an expert"


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 300, 8192])
def test_groups_are_as_large_as_without_shared_experts(rows: int) -> None:
    alone, both = ExpertChoice(256, 8, 256), ExpertChoice(258, 10, 258, shared=2)
    assert (str(alone), str(both)) == ("8 of 256 experts", "8 of 256 experts and 2 shared")
    assert both.group_rows(rows) == alone.group_rows(rows)
    of_shared = 2 * -(-rows // both.group_rows(rows))
    least = 4 + 4 * (256 * (rows * 8 >= 256) + of_shared)
    assert both.groups_ints(rows) >= least, "there is room for all groups"


@pytest.mark.parametrize("dtype", FORMS)
def test_tiles_have_the_rows_of_groups_in_steps_beyond_what_is_measured(dtype: str) -> None:
    """With many experts, groups of a larger step may have more rows than the groups of the largest measured step."""
    bucket, experts = Bucket("mixed", 2 * LARGEST_STEP), ExpertChoice(256, 1, 256)
    assert experts.group_rows(bucket.max_tokens) > experts.group_rows(LARGEST_STEP)
    site = _site(dtype, bucket, experts=experts)
    (launch,) = site.implement(chooser(bucket, H200, None)(site), H200)
    assert isinstance(launch, Launch)
    macros = dict(launch.kernel.defines)
    assert (macros["TL_TILE_ROWS"], macros["TL_X_BOX"] * macros["TL_X_BOXES"]) == (128, 128)


OTHERS = {
    "as measured": _site("int8", SMALL),
    "ungated": _site("int8", SMALL, gated=False),
    "more experts": _site("int8", SMALL, experts=ExpertChoice(32, 2, 32)),
    "more experts per row": _site("int8", SMALL, experts=ExpertChoice(16, 4, 16)),
    "experts of one rank": _site("int8", SMALL, experts=ExpertChoice(16, 2, 8)),
    "with a shared expert": _site("int8", SMALL, experts=ExpertChoice(17, 3, 17, shared=1)),
    "another dtype": _site("float8_e4m3fn", SMALL),
    "with a bias": replace(_site("int8", SMALL), bias=Buffer("bias", "float32", (16, 2, 384), "weight")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_timings_are_of_one_kind_of_product(name: str) -> None:
    timings = _cache(OTHERS[name], {64: dict.fromkeys(_names(OTHERS[name]), 1.0)})
    choose = chooser(SMALL, H200, timings)
    assert [other for other, site in OTHERS.items() if "fastest" in choose(site).reason] == [name]


@pytest.mark.parametrize("dtype", FORMS)
def test_deterministic_programs_may_differ_in_widths(dtype: str) -> None:
    """Tiles do not split the depth, so a row's sums have one order (tests/emulated/test_experts.py compares bits)."""
    sizes = (*STEP_BUCKETS, LARGEST_STEP)
    times: Times = {size: {_names(_site(dtype, Bucket("", size)))[i % 3]: 1.0} for i, size in enumerate(sizes)}
    widths = set()
    for bucket in (Bucket("decode_1", 1, decode=True), DECODE, *step_buckets(2000)):
        site = _site(dtype, bucket)
        choice = chooser(bucket, H200, _cache(site, times), deterministic=True)(site)
        assert choice.config is not None
        assert choice.config.splits == 1
        assert choice.reason.startswith("its sums have 1 parts in steps of every size; ")
        widths.add(choice.config.columns)
    assert len(widths) > 1


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("dtype", "bucket"), [("float4_e2m1fn", SMALL), ("float4_e2m1fn", LARGE), ("bfloat16", SMALL)])
def test_the_kernel_has_the_tiles_that_were_chosen(dtype: str, bucket: Bucket, gated: bool) -> None:
    site = _site(dtype, bucket, gated)
    for name in _names(site):
        choice = chooser(bucket, H200, _cache(site, {size_class(bucket): {name: 1.0}}))(site)
        assert choice.config is not None
        (launch,) = site.implement(choice, H200)
        assert isinstance(launch, Launch)
        macros = dict(launch.kernel.defines)
        assert name.startswith(f"{macros['TL_TILE_ROWS']}x{macros['TL_TILE_COLUMNS']} tiles")
        assert macros["TL_X_BOX"] * macros["TL_X_BOXES"] == site.group_rows
        is_swap_ab = dtype != "bfloat16" and bucket == SMALL
        assert launch.kernel.name.endswith("_swap_ab" if is_swap_ab else "_tiled")
        assert launch.kernel.reason == choice.reason
        of_x, of_weight = (argument for argument in launch.arguments if isinstance(argument, TensorMap))
        assert of_x.box_rows == min(32, site.group_rows)
        assert of_weight.box_rows * (2 if gated else 1) == choice.config.columns
