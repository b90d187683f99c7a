"""Measures the server by itself: an engine that computes nothing gives each stream a token every --step_ms.

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
from trtllm_lite.runtime.session import session
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.app import Settings
from trtllm_lite.serve.run import ServerOptions, run
from trtllm_lite.serve.served_model import ModelSettings

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
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.engine_dir, arguments.tokenizer, arguments.step_ms / 1000)
        return
    command = ["taskset", "-c", arguments.server_cores, sys.executable, __file__, "--serve"]
    command += ["--engine_dir", arguments.engine_dir, "--step_ms", str(arguments.step_ms)]
    if arguments.tokenizer:
        command += ["--tokenizer", arguments.tokenizer]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        try:
            measure(line.removeprefix("serving at ").strip(), server.pid, arguments)
        finally:
            server.terminate()


def measure(address: str, pid: int, arguments: argparse.Namespace) -> None:
    """Print what ``bench serve`` finds, and how busy the server was."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = ["taskset", "-c", arguments.client_cores, sys.executable, "-m", "trtllm_lite", "bench", "serve"]
        command += ["--base_url", address, "--endpoint", arguments.endpoint, "--vocab_size", "1000"]
        command += ["--num_requests", str(arguments.num_streams), "--arrival", "all", "--input_len", "8"]
        command += ["--output_len", str(arguments.output_len), "--json", str(report)]
        command += ["--num_client_processes", str(arguments.num_client_processes)]
        if arguments.endpoint.endswith("chat/completions"):
            command += ["--tokenizer", arguments.engine_dir]
        before, begin = cpu_seconds(pid), time.perf_counter()
        subprocess.run(command, check=True)
        busy = (cpu_seconds(pid) - before) / (time.perf_counter() - begin)
        figures: dict[str, Any] = json.loads(report.read_text())[0]["figures"]
    print(f"server: {busy:.2f} cores in the mean; {figures['output_tokens_per_s']:,.0f} tokens a second")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(engine_dir: str, tokenizer: str | None, step_seconds: float) -> None:
    """Serve an engine whose steps compute nothing."""

    def paced_executor(_: Any, engine: Any, __: Any, *, num_blocks: int, **___: Any) -> Any:
        return _testing.PacedExecutor(engine, num_blocks=num_blocks, step_seconds=step_seconds)

    session.make_executor = paced_executor
    session.available_memory = lambda *_: _ANY_BYTES  # its KV cache takes none
    settings = Settings(access_log=AccessLog(None))
    models = [(LLM(engine_dir, tokenizer=tokenizer), ModelSettings(names=("paced",)))]
    run(models, settings, ServerOptions(port=0), lambda address: print(f"serving at {address}", file=sys.stderr))


if __name__ == "__main__":
    main()
