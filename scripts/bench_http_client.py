"""Measures how many chunks of streams one client process of ``trtllm-lite bench serve`` receives in a second.

A server that only writes runs on one core, the client on another:

  python scripts/bench_http_client.py --streams 64 --chunks 20000

Chunks that arrive while the client is busy are received together, which is cheaper. --count therefore prints the mean
number of chunks that the client received at once, and --burst sets how many are written to a stream at once.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import time

from trtllm_lite.bench.http_client.answer import read_answer
from trtllm_lite.bench.http_client.client import Client
from trtllm_lite.bench.http_client.connection import Connection
from trtllm_lite.bench.http_client.processes import new_event_loop
from trtllm_lite.bench.http_client.server import Server

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(content: bytes) -> bytes:
    """A chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(**fields: object) -> bytes:
    """An event as servers of OpenAI's protocol send it, as one chunk."""
    common = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1700000000, "model": "m"}
    return framed(b"data: " + json.dumps({**common, **fields}).encode() + b"\n\n")


def serve(listener: socket.socket, options: argparse.Namespace) -> None:
    """Answer the requests with streams, written in turn."""
    os.sched_setaffinity(0, {options.server_core})
    streams = [listener.accept()[0] for _ in range(options.streams)]
    for stream in streams:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.recv(1 << 16)
        stream.sendall(_HEAD)
    token = event(choices=[{"index": 0, "text": " token", "logprobs": None, "finish_reason": None}]) * options.burst
    for _ in range(options.chunks // options.burst):
        for stream in streams:
            stream.sendall(token)
    usage = {"prompt_tokens": 1, "completion_tokens": options.chunks, "total_tokens": 1 + options.chunks}
    for stream in streams:
        stream.sendall(event(choices=[], usage=usage) + framed(b"data: [DONE]\n\n") + framed(b""))


def count_receives() -> list[int]:
    """Return a list of one number, which counts how often any connection has received bytes from now on."""
    counts = [0]
    receive = Connection.data_received

    def counting(connection: Connection, data: bytes) -> None:
        counts[0] += 1
        receive(connection, data)

    Connection.data_received = counting  # type: ignore[method-assign]
    return counts


async def measure(port: int, options: argparse.Namespace) -> tuple[float, float]:
    """Wall-clock seconds and CPU seconds until all streams have ended."""
    server = Server("127.0.0.1", port)
    client, request = Client(server), server.request("POST", "/v1/completions", b"{}")
    wall, cpu = time.perf_counter(), time.process_time()
    responses = await asyncio.gather(*(client.ask(request) for _ in range(options.streams)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    for response in responses:
        assert len(read_answer(response, streamed=True).chunk_times_s) == options.chunks
    return wall, cpu


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=20_000, help="of each stream")
    parser.add_argument("--burst", type=int, default=1, help="chunks that are written to a stream at once")
    parser.add_argument("--server_core", type=int, default=0)
    parser.add_argument("--client_core", type=int, default=1)
    parser.add_argument("--count", action="store_true", help="print the chunks received at once (counting takes time)")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=options.streams) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, options))
        process.start()
        os.sched_setaffinity(0, {options.client_core})
        counts = count_receives() if options.count else None
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            wall, cpu = runner.run(measure(listener.getsockname()[1], options))
        process.join()
    total = options.streams * options.chunks
    print(f"{total / wall:,.0f} chunks/s, {cpu / total * 1e6:.2f} µs of CPU each, {cpu / wall:.0%} of a core")
    if counts:
        print(f"{total / counts[0]:.2f} chunks received at once")


if __name__ == "__main__":
    main()
