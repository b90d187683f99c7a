"""Several kernels compile at a time: the slowest begin first, and results come in the order of the plan."""

from dataclasses import replace

import pytest

from trtllm_lite.builder.cuda import compile as compiling
from trtllm_lite.builder.nvrtc import Cubin
from trtllm_lite.plugins.launch import Kernel

SHORT = Kernel("gather_rows/cuda.cuh", "gather_rows", 128, 0, ())
LONG = Kernel("paged_attention/decode.cuh", "paged_attention_decode", 128, 0, ())


def test_the_longest_begin_first_and_results_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def compile_one(source: tuple[str, object, str]) -> Cubin:
        begun.append(source[0])
        return Cubin(source[0], b"")

    monkeypatch.setattr(compiling, "_compile", compile_one)
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda _: {0})
    other = replace(SHORT, source="rotary_table/cuda.cuh")
    wider = replace(SHORT, threads=64)
    seen: list[tuple[int, int]] = []
    wanted = [(kernel, "sm_90a") for kernel in (SHORT, LONG, SHORT, other, wider)]
    compiled = compiling.compile_kernels(wanted, lambda done, total: seen.append((done, total)))
    assert begun == [LONG.source, other.source, SHORT.source]
    assert list(compiled) == [(kernel, "sm_90a") for kernel in (SHORT, LONG, other, wider)]
    assert compiled[wider, "sm_90a"] == compiled[SHORT, "sm_90a"]
    assert seen == [(1, 3), (2, 3), (3, 3)]
