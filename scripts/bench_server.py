"""Measures the server alone, with an engine that computes nothing and gives each stream a token every --step_ms.

    python scripts/bench_server.py --engine_dir ENGINE [--num_streams 256] [--output_len 512] [--step_ms 8]

The engine, for CPUs or GPUs, lends its limits and its tokenizer; max_batch_size must be at least the number of streams.
The server's process runs on --server_cores, the clients' on --client_cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trtllm_lite import LLM, _testing
from trtllm_lite.runtime.session import opening
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.app import Settings
from trtllm_lite.serve.run import ServerOptions, run
from trtllm_lite.serve.served_engine import ModelSettings

_ANY_BYTES = 1 << 50


def main() -> None:
    """Start a server in a process of its own and measure it with ``bench serve``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--tokenizer", help="directory with a tokenizer.json, if the engine has none")
    parser.add_argument("--num_streams", type=int, default=256)
    parser.add_argument("--output_len", type=int, default=512)
    parser.add_argument("--step_ms", type=float, default=8.0)
    parser.add_argument("--endpoint", default="/v1/completions")
    parser.add_argument("--server_cores", default="0")
    parser.add_argument("--client_cores", default="1")
    parser.add_argument("--num_client_processes", type=int, default=1)
    parser.add_argument("--max_batch_size", type=int, help="most sequences of a batch [default: the engine's]")
    parser.add_argument("--max_queue_size", type=int, default=1024)
    parser.add_argument("--request_rate", type=float, help="requests per second to send, instead of constant streams")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration, with --request_rate")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    command = ["taskset", "-c", arguments.server_cores, sys.executable, __file__, "--serve"]
    for name in ("engine_dir", "step_ms", "tokenizer", "max_batch_size", "max_queue_size"):
        if getattr(arguments, name) is not None:
            command += [f"--{name}", str(getattr(arguments, name))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        try:
            measure(line.removeprefix("serving at ").strip(), server.pid, arguments)
        finally:
            server.terminate()


def measure(address: str, pid: int, arguments: argparse.Namespace) -> None:
    """Print the results of ``bench serve``, and how busy the server was."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = ["taskset", "-c", arguments.client_cores, sys.executable, "-m", "trtllm_lite", "bench", "serve"]
        command += ["--base_url", address, "--endpoint", arguments.endpoint, "--vocab_size", "1000"]
        command += ["--input_len", "8", "--allow_errors"]
        if arguments.request_rate is None:
            command += ["--num_requests", str(arguments.num_streams), "--arrival", "all"]
        else:
            command += ["--num_requests", str(int(arguments.request_rate * arguments.seconds))]
            command += ["--request_rate", str(arguments.request_rate)]
        command += ["--output_len", str(arguments.output_len), "--json", str(report)]
        command += ["--num_client_processes", str(arguments.num_client_processes)]
        if arguments.endpoint.endswith("chat/completions"):
            command += ["--tokenizer", arguments.engine_dir]
        before, begin, memory = cpu_seconds(pid), time.perf_counter(), resident_mb(pid)
        subprocess.run(command, check=True)
        busy = (cpu_seconds(pid) - before) / (time.perf_counter() - begin)
        figures: dict[str, Any] = json.loads(report.read_text())[0]["figures"]
        grown = resident_mb(pid) - memory
    rate = figures["output_tokens_per_s"]
    print(
        f"server: {busy:.2f} cores busy on average; {rate:,.0f} tokens/s; {memory:.0f} MB before, {grown:+.0f} MB after"
    )


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory that a process has in use, in 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def compute_nothing(step_ms: float) -> None:
    """Make the steps of engines opened from now on compute nothing and take ``step_ms`` milliseconds."""

    def paced_executor(_: Any, ranks: Any, __: Any, *, num_blocks: int, **___: Any) -> Any:
        return _testing.PacedExecutor(ranks[0], num_blocks=num_blocks, step_seconds=step_ms / 1000)

    opening.make_executor = paced_executor
    opening.available_memory = lambda *_: _ANY_BYTES  # the KV cache of such an engine takes no memory


def serve(arguments: argparse.Namespace) -> None:
    """Serve an engine whose steps compute nothing."""
    compute_nothing(arguments.step_ms)
    settings = Settings(access_log=AccessLog(None))
    llm = LLM(arguments.engine_dir, tokenizer=arguments.tokenizer, max_batch_size=arguments.max_batch_size)
    models = [(llm, ModelSettings(names=("paced",), max_queue_size=arguments.max_queue_size))]
    run(models, settings, ServerOptions(port=0), lambda address: print(f"serving at {address}", file=sys.stderr))


if __name__ == "__main__":
    main()
