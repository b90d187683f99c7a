"""The timing caches that come with this package, one for each kind of GPU that was measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import trtllm_lite
from trtllm_lite import _core
from trtllm_lite.builder.cuda.products.timing_cache import TimingCache, load_timing_cache
from trtllm_lite.common.files import library_directories
from trtllm_lite.errors import DeviceError
from trtllm_lite.plugins.launch import Device

DIRECTORY = Path(trtllm_lite.__file__).parent / "timing_caches"


def packaged_timings(devices: Sequence[Device], directory: Path = DIRECTORY) -> TimingCache | None:
    """Return the packaged cache of one of the ``devices``, preferably of this machine's own GPU; None if there is none.

    Timings of this package's kernels hold for any version of cuBLASLt. The library's algorithms are valid only for the
    version that they were measured with, and are left out if this machine has another version or none.
    """
    archs = {device.arch for device in devices}
    found = [cache for path in sorted(directory.glob("*.json")) if (cache := load_timing_cache(path)).arch in archs]
    if not found:
        return None
    here = _names_here()
    best = min(found, key=lambda cache: cache.device not in here)
    return best if best.cublaslt_version == _version_here() else replace(best, products=())


def _names_here() -> set[str]:
    try:
        return {device["name"] for device in _core.cuda_devices()}
    except DeviceError:  # builds do not need a working GPU
        return set()


def _version_here() -> int | None:
    try:
        return _core.cublaslt_version(library_directories())
    except DeviceError:
        return None
