"""Measures how much later the first token comes over HTTP than in process, for chats and for token ids.

    python scripts/measure_first_token.py ENGINE [--num_requests 1000]

The engine lends its limits and its tokenizer; its steps compute nothing and take 0.05 ms. Requests over HTTP and in
process alternate, one at a time, over a persistent connection. The exit code is 1 if the median of either kind is more
than GATE_MS later over HTTP.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bench_server import compute_nothing  # another script of this folder

from trtllm_lite import LLM, SamplingParams
from trtllm_lite.cli.console import print_table

GATE_MS = 0.5
STEP_MS = 0.05
MESSAGES = [{"role": "user", "content": "Say one word."}]
IDS = [5, 6, 7, 8]
MAX_TOKENS = 2
BODIES = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "token ids": ("/v1/completions", {"prompt": IDS}),
}


def main() -> None:
    """Start a server in a separate process, and measure it beside an LLM in this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine_dir")
    parser.add_argument("--num_requests", type=int, default=1000, help="requests of each kind")
    arguments = parser.parse_args()
    script = Path(__file__).with_name("bench_server.py")
    options = ["--serve", "--engine_dir", arguments.engine_dir, "--step_ms", str(STEP_MS)]
    with subprocess.Popen([sys.executable, script, *options], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = urlsplit(server.stderr.readline().removeprefix("serving at ").strip())
        try:
            missed = measure(str(address.hostname), int(address.port or 0), arguments)
        finally:
            server.terminate()
    sys.exit(1 if missed else 0)


def measure(host: str, port: int, arguments: argparse.Namespace) -> list[str]:
    """Print medians in milliseconds; returns the kinds that miss the gate."""
    compute_nothing(STEP_MS)
    rows, missed = [], []
    with socket.create_connection((host, port)) as connection, LLM(arguments.engine_dir) as llm:
        for kind, (path, body) in BODIES.items():
            request = http_request(path, json.dumps({**body, "max_tokens": MAX_TOKENS, "stream": True}).encode())
            ask: tuple[Callable[[], float], Callable[[], float]] = (
                lambda request=request: over_http(connection, request),
                lambda kind=kind: in_process(llm, kind),
            )
            times = [[measured() for measured in ask] for _ in range(arguments.num_requests)]
            http, here = (statistics.median(column) for column in zip(*times, strict=True))
            rows.append([kind, f"{here:.3f}", f"{http:.3f}", f"{http - here:+.3f}"])
            if http - here > GATE_MS:
                missed.append(kind)
    print_table("first token, milliseconds", ["of", "in process", "over HTTP", "difference"], rows)
    return missed


def http_request(path: str, body: bytes) -> bytes:
    """The bytes of a POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def over_http(connection: socket.socket, request: bytes) -> float:
    """Milliseconds until the first event of the answer, which is then read to its end."""
    start = time.perf_counter()
    connection.sendall(request)
    answer = bytearray()
    while b"data:" not in answer:
        answer += connection.recv(1 << 16)
    taken = time.perf_counter() - start
    while not answer.endswith(b"0\r\n\r\n"):
        answer += connection.recv(1 << 16)
    return taken * 1e3


def in_process(llm: LLM, kind: str) -> float:
    """Milliseconds until the first token of the same request, made and sent in this process."""
    start = time.perf_counter()
    params = SamplingParams(max_tokens=MAX_TOKENS)
    prompt = IDS if kind == "token ids" else MESSAGES
    generation = iter(llm.generate_async(prompt, params, streaming=True, chat=kind == "chat"))
    next(generation)
    taken = time.perf_counter() - start
    for _ in generation:
        pass
    return taken * 1e3


if __name__ == "__main__":
    main()
