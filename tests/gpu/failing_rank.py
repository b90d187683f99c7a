"""Makes one of an engine's two ranks fail while requests run, and prints the errors of these requests.

python -m tests.gpu.failing_rank ENGINE_DIR end|stall RANK: a separate process, because the failure of a rank ends the
context of its GPU.
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from tests.gpu.device import Kernel
from tests.gpu.kernels import WHOLE_SM_BYTES
from trtllm_lite import _core
from trtllm_lite.common.files import library_directories
from trtllm_lite.engine.format import ENGINE_FILES

TIMEOUT = 1.0  # seconds that a rank waits for the other
SPIN = """
extern "C" __global__ void spin(int seconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < 1000000000ull * seconds);
}
"""


def submit(loop: _core.EventLoop) -> int:
    params = _core.sampling.SamplingParams()
    params.max_tokens, params.ignore_eos = 50, True
    return loop.submit(np.arange(5, dtype=np.int32), params)


def end(rank: int) -> None:
    """Pass an index that a kernel refuses, which ends the context of the rank's GPU."""
    numbers = torch.zeros(1, device=f"cuda:{rank}")
    with suppress(RuntimeError):
        numbers[torch.tensor([5], device=f"cuda:{rank}")] += 1


def stall(rank: int) -> None:
    """Fill all multiprocessors of a GPU with blocks, so that its rank gets none."""
    with torch.cuda.device(rank), tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "spin.cuh"
        source.write_text(SPIN)
        spin = Kernel(str(source), "spin", 1024, WHOLE_SM_BYTES, {})
        with torch.cuda.stream(torch.cuda.Stream()):
            spin(6, grid=torch.cuda.get_device_properties(rank).multi_processor_count)


def main() -> None:
    ranks = [_core.Engine(str(Path(sys.argv[1]) / name)) for name in ENGINE_FILES[:2]]
    executor = _core.open_executor(ranks, library_directories=library_directories(), rank_timeout=TIMEOUT)
    loop = _core.EventLoop(executor, max_batch_size=4, max_input_len=32, max_seq_len=64, max_num_tokens=64)
    waiting = {submit(loop) for _ in range(9)}
    loop.poll(60.0)  # returns when a step has ended
    {"end": end, "stall": stall}[sys.argv[2]](int(sys.argv[3]))
    failed = False
    while waiting:
        _, ends = loop.poll(60.0)
        for ended in ends:
            waiting.remove(ended.request_id)
            if ended.reason == _core.FinishReason.ERROR:
                print(ended.message)
            elif failed:
                raise AssertionError("expected no request to succeed after one that failed")
            if not failed:  # further requests follow, the last of them after the failure
                waiting.add(submit(loop))
            failed = failed or ended.reason == _core.FinishReason.ERROR
    loop.shut_down()


if __name__ == "__main__":
    main()
