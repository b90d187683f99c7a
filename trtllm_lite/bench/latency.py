"""Latency of one batch: time to first token, then time per token, against what memory bandwidth allows."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite.bench.machine import num_cores, peak_memory, read_bandwidth, reset_peak_memory
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.batching import BatchLoop
from trtllm_lite.runtime.prompts import check_limits, output_len
from trtllm_lite.runtime.request import Request


@dataclass(frozen=True)
class LatencyShape:
    """What is measured: ``batch_size`` random prompts of ``input_len`` tokens, each continued by ``output_len``."""

    input_len: int = 128
    output_len: int = 128
    batch_size: int = 1
    repeats: int = 5
    num_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("input_len", 1), ("output_len", 2), ("batch_size", 1), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} is {getattr(self, name)}: expected at least {least}")

    def prompts(self, vocab_size: int) -> list[np.ndarray]:
        """int32[input_len] each; the same for equal seeds."""
        generator = np.random.default_rng(self.seed)
        return list(generator.integers(0, vocab_size, (self.batch_size, self.input_len), dtype=np.int32))


def measure_latency(
    engine_dir: str | Path, shape: LatencyShape, on_repeat: Callable[[int, int], None]
) -> dict[str, Any]:
    """Figures by name: seconds, tokens per second, bytes. Medians over the repeats, after one that warms up.

    Memory is the whole process's, from before the engine is loaded to the end of the last repeat. The KV cache is sized
    to the shape, so that all of it is used.
    """
    bandwidth_before = read_bandwidth(shape.num_threads or num_cores())
    reset_peak_memory()
    begin = time.perf_counter()
    runner = ModelRunner.from_dir(
        engine_dir,
        num_threads=shape.num_threads,
        max_batch_size=shape.batch_size,
        max_seq_len=shape.input_len + shape.output_len,
    )
    load = time.perf_counter() - begin
    prompts = shape.prompts(runner.session.manifest.model.vocab_size)
    check_limits(prompts, runner.limits)
    lengths = [output_len(row, shape.input_len, shape.output_len, runner.limits) for row in range(shape.batch_size)]
    requests = [Request(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    times = []
    for repeat in range(shape.repeats + 1):
        times.append(_run(runner, requests))
        on_repeat(repeat + 1, shape.repeats + 1)
    peak = peak_memory()
    first = statistics.median(entry[0] for entry in times[1:])
    step = statistics.median(entry[1] for entry in times[1:])
    memory = runner.session.executor.memory
    figures = {
        "load_s": load,
        "time_to_first_token_s": first,
        "prefill_tokens_per_s": shape.batch_size * shape.input_len / first,
        "inter_token_latency_s": step,
        "decode_tokens_per_s": shape.batch_size / step,
        "peak_memory_bytes": peak,
        "weight_bytes": memory["weights"],
        "kv_cache_bytes": memory["kv_cache"],
        "workspace_bytes": memory["workspace"],
        "memory_overhead_bytes": peak - memory["weights"] - memory["kv_cache"],
    }
    # Other guests of the host slow memory down for a while, so its speed is the better of before and after.
    bandwidth = max(bandwidth_before, read_bandwidth(runner.session.executor.num_threads))
    return {**figures, **_floor(read_engine(Path(engine_dir)), bandwidth, step)}


def _run(runner: ModelRunner, requests: list[Request]) -> tuple[float, float]:
    """Seconds until every request has its first token, and seconds per token from then on."""
    with BatchLoop(runner.session) as loop:
        begin = time.perf_counter()
        waiting = {loop.enqueue_request(request) for request in requests}
        first, steps = begin, 0
        while not loop.idle:
            responses = loop.await_responses()
            if waiting:
                waiting -= {response.request_id for response in responses}
                first = time.perf_counter()
            else:
                steps += 1
        return first - begin, (time.perf_counter() - first) / max(steps, 1)


def _floor(engine: EngineFile, bandwidth: float, step: float) -> dict[str, float]:
    """How near a decode step comes to reading its weights once at full memory bandwidth."""
    floor = weight_bytes_per_step(engine) / bandwidth
    return {
        "read_bandwidth_bytes_per_s": bandwidth,
        "weight_bytes_per_step": weight_bytes_per_step(engine),
        "floor_inter_token_latency_s": floor,
        "fraction_of_floor": floor / step,
    }


def weight_bytes_per_step(engine: EngineFile) -> int:
    """Bytes of weights that any step must read: all but tables of which it looks up a few rows."""
    tensors = engine.plan.tensors
    read = {
        index
        for instruction in engine.plan.instructions
        if instruction.op != "Embedding"
        for index in instruction.inputs
        if index >= 0 and tensors[index].kind == "weight"
    }
    return sum(engine.tensors[f"weights.{tensors[index].name}"].num_bytes for index in read)
