"""Times single steps kernel by kernel, for traces."""

from collections.abc import Iterator
from typing import Any

from trtllm_lite.bench.trace import TracedStep
from trtllm_lite.engine.manifest import Limits
from trtllm_lite.runtime.core import core


def traced_steps(executor: Any, limits: Limits, batch_size: int, input_len: int) -> Iterator[TracedStep]:
    """A step that prefills as much of a batch of prompts as a step can hold, and a step that decodes after the prompts.

    ``executor`` is a ``_core.DeviceExecutor`` whose event loop is idle and whose KV cache nobody needs any more: it is
    overwritten. Executors of several ranks and of compiled networks are not timed: nothing is yielded for them.
    """
    native = core()
    if not isinstance(executor, native.CpuExecutor | native.CudaExecutor):
        return
    num_prompts = min(batch_size, max(limits.max_num_tokens // input_len, 1))
    num_tokens = min(input_len, limits.max_num_tokens)
    steps = (
        (f"kernels of a prefill: {num_prompts} x {num_tokens} tokens", num_prompts, num_tokens, 0),
        (f"kernels of a decode step: batch {batch_size} behind {input_len} tokens", batch_size, 1, input_len),
    )
    for name, rows, tokens, past_len in steps:
        yield TracedStep(name, native.time_step(executor, num_rows=rows, num_tokens=tokens, past_len=past_len))
