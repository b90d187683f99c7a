"""Compiles the kernels of a plan, several at a time."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from trtllm_lite.builder.nvrtc import Cubin, compile_kernel
from trtllm_lite.plugins.launch import Kernel
from trtllm_lite.plugins.packages import source_path

Specialised = tuple[Kernel, str]  # a kernel and the architecture that it is compiled for
_Source = tuple[str, tuple[tuple[str, int | str], ...], str]  # a file, its macros, an architecture


def compile_kernels(kernels: Iterable[Specialised], progress: Callable[[int, int], None]) -> dict[Specialised, Cubin]:
    """Return the machine code of each kernel, in order, compiled or cached. ``progress`` is called with (done, total).

    Kernels that differ only in how they are launched are compiled once. NVRTC runs without Python's lock, so threads
    are enough. Raises BuildError.
    """
    wanted = {(kernel, arch): (kernel.source, kernel.defines, arch) for kernel, arch in kernels}
    # The longest compilations start first, so that no thread is left with one at the end.
    longest_first = sorted(dict.fromkeys(wanted.values()), key=_source_bytes, reverse=True)
    compiled: dict[_Source, Cubin] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for source, cubin in zip(longest_first, pool.map(_compile, longest_first), strict=True):
            compiled[source] = cubin
            progress(len(compiled), len(longest_first))
    return {specialised: compiled[source] for specialised, source in wanted.items()}


def _source_bytes(source: _Source) -> int:
    path, _, _ = source
    return source_path(path).stat().st_size


def _compile(source: _Source) -> Cubin:
    path, defines, arch = source
    return compile_kernel(source_path(path), dict(defines), arch)
