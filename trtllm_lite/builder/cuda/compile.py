"""Compiles the kernels of a plan, several at a time."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from trtllm_lite.builder.nvrtc import Cubin, compile_kernel
from trtllm_lite.plugins.launch import Kernel
from trtllm_lite.plugins.schema import PLUGIN_ROOT

Specialised = tuple[Kernel, str]  # for an architecture


def compile_kernels(kernels: Iterable[Specialised], progress: Callable[[int, int], None]) -> dict[Specialised, Cubin]:
    """The machine code of each kernel, in order, compiled or cached. ``progress`` is called with (done, total).

    NVRTC runs without Python's lock, so threads are enough. Raises BuildError.
    """
    wanted = list(dict.fromkeys(kernels))
    longest_first = sorted(wanted, key=_source_bytes, reverse=True)  # no thread is left with a long one at the end
    compiled: dict[Specialised, Cubin] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for specialised, cubin in zip(longest_first, pool.map(_compile, longest_first), strict=True):
            compiled[specialised] = cubin
            progress(len(compiled), len(wanted))
    return {specialised: compiled[specialised] for specialised in wanted}


def _source_bytes(specialised: Specialised) -> int:
    kernel, _ = specialised
    return (PLUGIN_ROOT / kernel.source).stat().st_size


def _compile(specialised: Specialised) -> Cubin:
    kernel, arch = specialised
    return compile_kernel(PLUGIN_ROOT / kernel.source, dict(kernel.defines), arch)
