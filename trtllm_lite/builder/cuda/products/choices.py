"""Chooses the kernel of a product in the steps of a bucket, cuBLASLt or a tiled kernel, and says why.

The choice is the fastest measured kernel, for weights of any type. Without measurements it is cuBLASLt, whose
heuristics know every shape and card; or the tiled kernel that is expected to be best, for products that the library
lacks (quantized weights, experts) and for products so short that their start time matters.
"""

from collections import defaultdict
from collections.abc import Hashable
from itertools import pairwise
from typing import NoReturn

from trtllm_lite.builder.cuda.limits import LARGEST_STEP, STEP_BUCKETS, Bucket, measured_rows, size_class
from trtllm_lite.builder.cuda.products.sites import Candidates, Choice, Chooser, Site
from trtllm_lite.builder.cuda.products.timing_cache import KernelTiming, TimingCache
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.cuda.tiles import CUTS
from trtllm_lite.plugins.launch import Device

_GENERATING = STEP_BUCKETS[:3]  # sizes of the steps in which most servers spend most time


def chooser(bucket: Bucket, device: Device, timings: TimingCache | None, deterministic: bool = False) -> Chooser:
    """Return what chooses the kernels of one program's products; ``timings`` count if they are of this architecture.

    With ``deterministic`` a product is computed in the same order of additions in all programs, unless its sums are
    exact in any order.
    """
    known = timings if timings is not None and timings.arch == device.arch else None
    choices: dict[Hashable, Choice] = {}  # the layers of a network have the same few products

    def choose(site: Site) -> Choice:
        if site.kind not in choices:
            choose_one = _choose_ordered if deterministic and not site.adds_exactly else _choose
            choices[site.kind] = choose_one(bucket, device, known, site)
        return choices[site.kind]

    return choose


def _choose(bucket: Bucket, device: Device, timings: TimingCache | None, site: Site) -> Choice:
    if bucket.decode and site.in_library:  # a decode product that is not a GEMV is too large for any tile
        return Choice(None, "")
    return _fastest(bucket, timings, site, site.candidates(size_class(bucket), device))


def _choose_ordered(bucket: Bucket, device: Device, timings: TimingCache | None, site: Site) -> Choice:
    """Choose the tiled kernel with the split-K that is best in decode steps.

    These kernels add a row's products along the depth in one fixed order, so that programs may differ in the rows and
    widths of tiles, and in which operand is which (swap-AB). For a few rows, which are not measured, the best is that
    of the smallest steps that are. Raises BuildError if no kernel takes steps of any size.
    """
    splits = _best_cut(device, timings, site)
    best = _fastest(bucket, timings, site, site.candidates(size_class(bucket), device, splits))
    return Choice(best.config, f"its sums have {splits} parts in steps of every size; {best.reason}")


def _best_cut(device: Device, timings: TimingCache | None, site: Site) -> int:
    """Return the split-K factor that is fastest in decode steps, each time taken relative to the best of its step size.

    Step sizes without measurements do not count, and a factor has to be measured at all other step sizes.
    """
    tiled = [cut for cut in CUTS if site.tile_configs(LARGEST_STEP, device, cut)]
    ratios: list[dict[int, float]] = []
    for above, size in pairwise((0, *_GENERATING)):
        parts = {name: cut for cut in tiled for name in site.candidates(size, device, cut)}
        times: dict[int, float] = {}
        for timing in _measured(Bucket("step", size, above), timings, site):
            if timing.rows == size and timing.kernel in parts:
                cut = parts[timing.kernel]
                times[cut] = min(timing.microseconds, times.get(cut, timing.microseconds))
        if times:
            ratios.append({cut: time / min(times.values()) for cut, time in times.items()})
    everywhere = set.intersection(*(set(of_size) for of_size in ratios)) if ratios else set()
    if everywhere:
        return min(everywhere, key=lambda cut: sum(of_size[cut] for of_size in ratios))
    heuristic, *_ = site.tile_configs(STEP_BUCKETS[0], device) or _refuse(site)
    return heuristic.splits


def _measured(bucket: Bucket, timings: TimingCache | None, site: Site) -> list[KernelTiming]:
    """Return the measurements that tell which kernel is fastest in steps of ``bucket``."""
    return [] if timings is None else timings.kernel_timings(site.product, measured_rows(bucket))


def _fastest(bucket: Bucket, timings: TimingCache | None, site: Site, candidates: Candidates) -> Choice:
    """Return the fastest measured candidate, or else the first one. Raises BuildError if there are no candidates."""
    measured = [timing for timing in _measured(bucket, timings, site) if timing.kernel in candidates]
    totals = _totals(measured)
    if not totals or timings is None:
        return _heuristic(site, candidates)
    best = min(totals, key=lambda name: totals[name])
    return Choice(candidates[best], f"fastest on {timings.device}: {_table(measured, best)}")


def _heuristic(site: Site, candidates: Candidates) -> Choice:
    """Return the first of ``candidates``. Raises BuildError if there is none."""
    first, *others = candidates.values() or _refuse(site)
    if first is None:
        return Choice(None, "no tiled kernel was measured" if others else "")
    return Choice(first, f"by heuristic: {first.reason}")


def _refuse(site: Site) -> NoReturn:
    raise BuildError(
        f"no kernel computes the product {site.product} of {site.y.name}: a gated product of many rows takes no bias, "
        "and rows are multiples of 16 bytes; build with --qformat int8_wo"
    )


def _totals(measured: list[KernelTiming]) -> dict[str, float]:
    """Returns, for each kernel measured at all numbers of rows, the sum of its times, each relative to the best."""
    times: dict[int, dict[str, float]] = defaultdict(dict)
    for timing in measured:
        times[timing.rows][timing.kernel] = timing.microseconds
    everywhere = set.intersection(*(set(of_rows) for of_rows in times.values())) if times else set()
    return {name: sum(of_rows[name] / min(of_rows.values()) for of_rows in times.values()) for name in everywhere}


def _table(measured: list[KernelTiming], best: str) -> str:
    """List, for each number of rows, the time of the kernel ``best`` and that of the fastest other kernel."""
    parts = []
    for rows in sorted({timing.rows for timing in measured}):
        times = {timing.kernel: timing.microseconds for timing in measured if timing.rows == rows}
        others = {name: time for name, time in times.items() if name != best}
        second = min(others, key=lambda name: others[name], default=None)
        against = "" if second is None else f" ({others[second]} us by {second})"
        parts.append(f"{rows} rows {times[best]} us{against}")
    return "; ".join(parts)
