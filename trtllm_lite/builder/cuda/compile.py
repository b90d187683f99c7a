"""Compiles the kernels of a plan, several at a time."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from trtllm_lite.builder.nvrtc import Cubin, compile_kernel
from trtllm_lite.plugins.launch import Kernel
from trtllm_lite.plugins.schema import PLUGIN_ROOT

Specialised = tuple[Kernel, str]  # for an architecture


def compile_kernels(kernels: Iterable[Specialised], progress: Callable[[int, int], None]) -> dict[Specialised, Cubin]:
    """The machine code of each; cached ones cost a read. ``progress`` is called with (done, all of them).

    NVRTC runs without Python's lock, so threads are enough. Raises BuildError.
    """
    wanted = list(dict.fromkeys(kernels))
    compiled: dict[Specialised, Cubin] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for specialised, cubin in zip(wanted, pool.map(_compile, wanted), strict=True):
            compiled[specialised] = cubin
            progress(len(compiled), len(wanted))
    return compiled


def _compile(specialised: Specialised) -> Cubin:
    kernel, arch = specialised
    return compile_kernel(PLUGIN_ROOT / kernel.source, dict(kernel.defines), arch)
