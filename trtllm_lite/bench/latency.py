"""Measures latency of whole batches: time to first token, then time per token, relative to the memory's bandwidth."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.bench.floor import (
    UNKNOWN,
    Ceilings,
    SharesRead,
    kv_bytes_per_step,
    latency_floors,
    start_up_floor,
    weight_bytes_per_step,
)
from trtllm_lite.bench.kernels import traced_steps
from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.machine import num_cores, peak_memory, read_bandwidth, reset_peak_memory
from trtllm_lite.bench.mixtures import routing_figures
from trtllm_lite.bench.serving import Run, host_figure, serve
from trtllm_lite.bench.trace import Trace, TracedRun
from trtllm_lite.bench.workload import PlannedRequest
from trtllm_lite.engine.reader import read_stages
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.experts import Routing, counted_since, routing


class LatencyBench:
    """A loaded engine on which any of ``shapes`` can be measured.

    The KV cache is sized to the largest shape, so that all of it is used. If ``ceilings`` has no bandwidth, the host's
    is measured for a CPU engine; an engine for GPUs then gets no floors. ``trace`` collects the last run of each shape,
    and after :meth:`trace_kernels` the kernels of its steps.
    """

    def __init__(
        self,
        engine_dir: str | Path,
        shapes: Sequence[LatencyShape],
        *,
        num_threads: int | None = None,
        ceilings: Ceilings = UNKNOWN,
        trace: Trace | None = None,
    ) -> None:
        self._stages = read_stages(Path(engine_dir))
        self._engine = self._stages[0]
        for shape in shapes:
            shape.check_limits(self._engine.manifest.limits)
        self._on_cpu = self._engine.manifest.target.kind == "cpu"
        self._num_threads = num_threads or num_cores()
        self._ceilings = ceilings
        self._trace = trace
        self._measured_bandwidth = 0.0
        self._bytes_per_step = sum(
            weight_bytes_per_step(engine) + kv_bytes_per_step(engine, shapes[0]) for engine in self._stages
        )
        self._probe_bandwidth()
        self._begin = time.perf_counter()
        self._start_up: float | None = None
        self._runner = ModelRunner.from_dir(
            engine_dir,
            num_threads=num_threads,
            max_batch_size=max(shape.batch_size for shape in shapes),
            max_seq_len=max(shape.seq_len for shape in shapes),
        )
        self._load = time.perf_counter() - self._begin
        for shape in shapes:
            shape.check_fits(self._runner.limits)

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the model's vocabulary."""
        return self._engine.manifest.model.vocab_size

    def measure(self, shape: LatencyShape, on_repeat: Callable[[int, int], None]) -> dict[str, Any]:
        """Figures by name, in seconds, tokens per second and bytes: medians over the repeats, after one warm-up run.

        The time per token is (time from when all sequences have their first token to the last token of all) /
        (``output_len`` - 1), of one run: a difference of two runs could be negative if other work slowed one of them
        down. Peak memory is that of the whole process (CPU engines only): for the first shape since before the engine
        was loaded, for every other shape since the previous shape. The start-up ends with the first token of the first
        shape.
        """
        prompts = shape.prompts(self._engine.manifest.model.vocab_size)
        runs = []
        for repeat in range(shape.repeats + 1):
            to_first_token = self._serve(prompts, 1)
            self._start_up = self._start_up or time.perf_counter() - self._begin
            runs.append((to_first_token, self._serve(prompts, shape.output_len)))
            on_repeat(repeat + 1, shape.repeats + 1)
        if self._trace is not None:
            name = f"batch {shape.batch_size}, prompt {shape.input_len}"
            self._trace.runs.append(TracedRun(name, runs[-1][1].records, runs[-1][1].recorded))
        first = statistics.median(first.seconds for first, _ in runs[1:])
        step = statistics.median(whole.seconds_behind_first_tokens for _, whole in runs[1:]) / (shape.output_len - 1)
        routed = _routings(runs[1:])
        memory = self._memory_figures()
        self._probe_bandwidth()
        bandwidth = self._ceilings.bandwidth or self._measured_bandwidth or None
        ceilings = replace(self._ceilings, bandwidth=bandwidth)
        assert self._start_up is not None
        return {
            "time_to_first_token_s": first,
            "inter_token_latency_s": step,
            "prefill_tokens_per_s": shape.batch_size * shape.input_len / first,
            "decode_tokens_per_s": shape.batch_size / step,
            **host_figure([whole for _, whole in runs[1:]]),
            **routing_figures(routed[1], self._engine.manifest.mapping.moe_ep_size),
            **latency_floors(
                self._stages, shape, ceilings, first_s=first, step_s=step, shares=SharesRead(*map(_share_read, routed))
            ),
            "load_s": self._load,
            "start_up_s": self._start_up,
            **start_up_floor(self._engine, ceilings, self._start_up),
            **memory,
        }

    def trace_kernels(self, shape: LatencyShape) -> None:
        """Add the kernels of the steps of ``shape`` to the trace, if there is one; call it after all shapes are
        measured."""
        if self._trace is not None:
            session = self._runner.session
            limits = session.manifest.limits
            self._trace.steps += traced_steps(session.executor, limits, shape.batch_size, shape.input_len)

    def _probe_bandwidth(self) -> None:
        """Measure the bandwidth, and keep the best of all measurements: other guests of the host slow memory down."""
        if not self._on_cpu:
            return
        if self._ceilings.bandwidth is None:
            rate = read_bandwidth(self._num_threads, self._bytes_per_step)
            self._measured_bandwidth = max(self._measured_bandwidth, rate)
        reset_peak_memory()

    def _serve(self, prompts: list[NDArray[np.int32]], output_len: int) -> Run:
        requests = [PlannedRequest(0.0, prompt, output_len) for prompt in prompts]
        return serve(self._runner.session, requests, record_steps=self._trace is not None)

    def _memory_figures(self) -> dict[str, int]:
        reserved = self._runner.session.executor.memory
        figures = {
            "weight_bytes": reserved["weights"],
            "kv_cache_bytes": reserved["kv_cache"],
            "workspace_bytes": reserved["workspace"],
        }
        if self._on_cpu:
            peak = peak_memory()
            figures["peak_memory_bytes"] = peak
            figures["memory_overhead_bytes"] = peak - reserved["weights"] - reserved["kv_cache"]
        return figures


def _routings(runs: Sequence[tuple[Run, Run]]) -> tuple[Routing | None, Routing | None]:
    """The routing of the steps up to the first tokens, and of later steps. Each pair has a run that ends with the first
    token and a run that generates all tokens."""
    firsts = [layer for first, _ in runs for layer in first.experts]
    behind = [layer for first, whole in runs for layer in counted_since(whole.experts, first.experts)]
    return routing(firsts), routing(behind)


def _share_read(routed: Routing | None) -> float | None:
    return None if routed is None else routed.share_read
