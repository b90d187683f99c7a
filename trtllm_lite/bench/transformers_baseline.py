"""Measures transformers in float32 on the same prompts, for ``bench latency --compare_transformers``.

This module runs in a process of its own (``python -m``), so that its memory and threads do not affect the engine's
figures.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.errors import ArgumentError

_TIMEOUT_S = 3600


def check_model(model: str) -> None:
    """Raise ArgumentError if the GGUF file or directory ``model`` does not exist."""
    if not Path(model).exists():
        raise ArgumentError(f"--compare_transformers {model} does not exist: give a GGUF file or a model directory")


def measure_transformers(model: str, shape: LatencyShape, num_threads: int | None) -> dict[str, Any]:
    """Figures of transformers for ``model`` (a GGUF file or a Hugging Face directory), measured in a new process.

    ``num_threads`` None leaves the choice to torch. Raises ArgumentError if torch or transformers are not installed, or
    the process fails.
    """
    command = [sys.executable, "-P", "-m", __spec__.name, model, str(num_threads or 0), json.dumps(asdict(shape))]
    process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if process.returncode:
        reason = (process.stderr.strip() or "no output").splitlines()[-1]
        raise ArgumentError(
            f"transformers could not run {model}: {reason}. It needs torch and transformers (and gguf for GGUF files): "
            "pip install 'trtllm_lite[test]', or leave --compare_transformers out"
        )
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def _load(model: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    path = Path(model)
    arguments = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **arguments).eval()


def _measure(model: str, num_threads: int, shape: LatencyShape) -> dict[str, Any]:
    import torch
    import transformers

    if num_threads:
        torch.set_num_threads(num_threads)
    network = _load(model)
    prompts = torch.tensor([prompt.tolist() for prompt in shape.prompts(network.config.vocab_size)])
    times = [_run(network, prompts, shape.output_len) for _ in range(shape.repeats + 1)][1:]
    first = statistics.median(entry[0] for entry in times)
    step = statistics.median(entry[1] for entry in times)
    return {
        "time_to_first_token_s": first,
        "prefill_tokens_per_s": shape.batch_size * shape.input_len / first,
        "inter_token_latency_s": step,
        "decode_tokens_per_s": shape.batch_size / step,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _run(network: Any, prompts: Any, output_len: int) -> tuple[float, float]:
    """Seconds to the first token of a greedy run, and seconds per token after it."""
    import torch

    with torch.inference_mode():
        begin = time.perf_counter()
        output = network(prompts, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1:].argmax(-1)
        first = time.perf_counter()
        for _ in range(output_len - 1):
            output = network(token, past_key_values=output.past_key_values, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)
        return first - begin, (time.perf_counter() - first) / (output_len - 1)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), LatencyShape(**json.loads(sys.argv[3])))))
