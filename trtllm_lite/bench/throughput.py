"""Throughput: many requests of random lengths, all queued at once, batched in flight."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.batching import BatchLoop
from trtllm_lite.runtime.prompts import check_limits, output_len
from trtllm_lite.runtime.request import Request


@dataclass(frozen=True)
class ThroughputShape:
    """``num_requests`` random prompts; lengths are uniform from half of ``input_len`` (``output_len``) to all of it."""

    num_requests: int = 32
    input_len: int = 128
    output_len: int = 128
    num_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}: expected at least 1")

    def requests(self, vocab_size: int) -> list[Request]:
        """The same for equal seeds."""
        generator = np.random.default_rng(self.seed)

        def length(longest: int) -> int:
            return int(generator.integers((longest + 1) // 2, longest + 1))

        return [
            Request(generator.integers(0, vocab_size, length(self.input_len), dtype=np.int32), length(self.output_len))
            for _ in range(self.num_requests)
        ]


def measure_throughput(
    engine_dir: str | Path, shape: ThroughputShape, on_finished: Callable[[int, int], None]
) -> dict[str, Any]:
    """Figures by name: tokens and requests per second over all requests; seconds to the first token, from the start."""
    runner = ModelRunner.from_dir(engine_dir, num_threads=shape.num_threads)
    requests = shape.requests(runner.session.manifest.model.vocab_size)
    for row, request in enumerate(requests):
        check_limits([request.prompt_ids], runner.limits)
        output_len(row, len(request.prompt_ids), request.max_new_tokens, runner.limits)
    first_tokens: dict[int, float] = {}
    finished = generated = 0
    with BatchLoop(runner.session) as loop:
        begin = time.perf_counter()
        for request in requests:
            loop.enqueue_request(request)
        while not loop.idle:
            responses = loop.await_responses()
            generated += len(responses)
            for response in responses:
                first_tokens.setdefault(response.request_id, time.perf_counter() - begin)
                finished += response.finish_reason is not None
            on_finished(finished, len(requests))
        seconds = time.perf_counter() - begin
    steps = runner.session.router.loop.stats()["num_steps"]
    prompt_tokens = sum(len(request.prompt_ids) for request in requests)
    return {
        "seconds": seconds,
        "output_tokens_per_s": generated / seconds,
        "total_tokens_per_s": (generated + prompt_tokens) / seconds,
        "requests_per_s": len(requests) / seconds,
        "median_time_to_first_token_s": statistics.median(first_tokens.values()),
        "prompt_tokens": prompt_tokens,
        "output_tokens": generated,
        "steps": steps,
        "output_tokens_per_step": generated / steps,
    }
