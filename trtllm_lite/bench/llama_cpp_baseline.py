"""Measures llama.cpp on the same prompts, for ``bench latency --compare_llama_cpp``.

The package ``llama-cpp-python`` may be in another environment, whose Python runs this file as a script. So this file
needs only the standard library, and numpy, on which that package depends.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_lite.bench.latency_shape import LatencyShape

_TIMEOUT_S = 3600


def measure_llama_cpp(
    python: str, model: str, shape: "LatencyShape", vocab_size: int, num_threads: int | None
) -> dict[str, Any]:
    """Figures of llama.cpp for the GGUF file ``model``, measured by the interpreter ``python`` in a new process.

    ``num_threads`` None means one thread per core. Raises ArgumentError if the interpreter has no llama_cpp, or the
    process fails, or ``shape`` has several sequences.
    """
    from trtllm_lite.bench.machine import num_cores
    from trtllm_lite.errors import ArgumentError

    if shape.batch_size != 1:
        raise ArgumentError(f"--compare_llama_cpp measures batch_size 1, and {shape.batch_size} is asked for: pass 1")
    given = {**asdict(shape), "prompt": shape.prompts(vocab_size)[0].tolist()}
    command = [python, "-I", __file__, model, str(num_threads or num_cores())]
    process = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if process.returncode:
        reason = (process.stderr.strip() or "no output").splitlines()[-1]
        raise ArgumentError(
            f"llama.cpp could not run {model}: {reason}. It needs llama-cpp-python: install it into an environment of "
            "its own and pass its Python as --llama_cpp_python, or leave --compare_llama_cpp out"
        )
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def _measure(model: str, num_threads: int, shape: dict[str, Any]) -> dict[str, Any]:
    import llama_cpp  # type: ignore[import-not-found]

    length = shape["input_len"] + shape["output_len"]
    threads = {"n_threads": num_threads, "n_threads_batch": num_threads}
    llama = llama_cpp.Llama(str(Path(model)), n_ctx=length, n_batch=length, n_ubatch=512, verbose=False, **threads)
    times = [_run(llama, shape["prompt"], shape["output_len"]) for _ in range(shape["repeats"] + 1)][1:]
    first = statistics.median(entry[0] for entry in times)
    step = statistics.median(entry[1] for entry in times)
    return {
        "time_to_first_token_s": first,
        "prefill_tokens_per_s": shape["input_len"] / first,
        "inter_token_latency_s": step,
        "decode_tokens_per_s": 1 / step,
        "versions": {"llama_cpp_python": llama_cpp.__version__},
    }


def _run(llama: Any, prompt: list[int], output_len: int) -> tuple[float, float]:
    """Seconds to the first token of a greedy run, and seconds per token after it."""
    import numpy as np

    def next_token(tokens: list[int]) -> int:
        llama.eval(tokens)
        logits = np.ctypeslib.as_array(llama._ctx.get_logits(), (llama.n_vocab(),))
        return int(np.argmax(logits))

    llama.reset()
    begin = time.perf_counter()
    token = next_token(prompt)
    first = time.perf_counter()
    for _ in range(output_len - 1):
        token = next_token([token])
    return first - begin, (time.perf_counter() - first) / (output_len - 1)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), json.load(sys.stdin))))
