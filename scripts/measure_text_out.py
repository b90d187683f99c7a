"""Measures the cost of a token in the thread that delivers tokens and texts, beside the engine.

    python scripts/measure_text_out.py --engine_dir ENGINE [--num_streams 256] [--stop_strings 64]

All requests run together, each with its own notifier or, with --shared, with one for all as in a server. The figure is
the processor time of the thread in the best round, which other load hardly changes; it is an upper bound of the time in
which the thread holds the interpreter's lock. Any engine with such large batches will do: its own threads are not
measured.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.notifier import Notifier
from trtllm_lite.runtime.session.opening import open_session
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.session.session import Session

PROMPT_LEN = 8


def main() -> None:
    """Print microseconds per token."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", type=Path, required=True)
    parser.add_argument("--num_streams", type=int, default=256)
    parser.add_argument("--num_tokens", type=int, default=32)
    parser.add_argument("--stop_strings", type=int, default=0, help="stop strings of each request, of 256 characters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", action="store_true", help="one notifier for all requests")
    arguments = parser.parse_args()
    session = open_session(arguments.engine_dir, 0, RunnerOptions())
    best = min(round_seconds(session, arguments) for _ in range(arguments.rounds))
    print(f"{best * 1e6:.2f} µs of the thread's time for each token")
    session.close()


def round_seconds(session: Session, arguments: argparse.Namespace) -> float:
    """Processor seconds per token of the thread that delivers texts."""
    stop = ["the " * 63 + f"{row:04d}" for row in range(arguments.stop_strings)]
    params = SamplingParams(max_tokens=arguments.num_tokens, ignore_eos=True, temperature=1.0, stop=stop or None)
    prompts = np.random.default_rng(1).integers(3, 1000, (arguments.num_streams, PROMPT_LEN)).astype(np.int32)
    shared = Notifier() if arguments.shared else None
    clock = time.pthread_getcpuclockid(session.pump._thread.ident or 0)
    begin = time.clock_gettime(clock)
    handles = [session.submit(Request(prompt, params), shared) for prompt in prompts]
    num_tokens = sum(len(handle.result()) for handle in handles)
    return (time.clock_gettime(clock) - begin) / num_tokens


if __name__ == "__main__":
    main()
