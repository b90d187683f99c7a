"""Measures the time of a one-token chat while other clients send requests that are slow to prepare.

    python scripts/measure_fairness.py ENGINE [--encoder ENCODER]

A server of ENGINE is started, and each kind of slow request is sent by CLIENTS clients, each with its own key and one
request at a time, while another client sends chats one at a time. The times without load are measured before each kind,
so that other load on the machine slows both. The exit code is 1 if the median beside some kind is more than GATE times
the median without load. Kinds whose work is the engine's own ("prompts", "embeddings") wait for steps, too. ENCODER is
an engine, or a model, that makes embeddings; without it the kind "embeddings" is left out.
"""

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trtllm_lite.cli.console import print_table

CLIENTS = 16
GATE = 2.0
NICENESS = 19  # niceness of the clients, which in practice run on other machines
PAUSE_SECONDS = 0.05  # pause of a client after a refused request
SECONDS_TO_FILL = 1.5  # time until all slow clients wait
CHAT = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 1, "temperature": 0}
MADE_UP = "abcdefghijklmnopqrstuvwxyz"
NUMBER = "900000000000"  # placeholder in a body, replaced by a different number in each request

Body = dict[str, Any]


def regex() -> tuple[str, Body]:
    """A regular expression of many optional alternatives, different each time."""
    return "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_regex": f"x{NUMBER}" + "(a|b)?" * 2200}


def schema() -> tuple[str, Body]:
    """A schema of many alternatives, each with a pattern."""
    names = [f"p{NUMBER}_{place}" for place in range(900)]
    alternatives = [
        {
            "type": "object",
            "properties": {name: {"type": "string", "pattern": f"^{name}[a-z]{{1,9}}$"}},
            "required": [name],
        }
        for name in names
    ]
    return "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": {"anyOf": alternatives}}


def template() -> tuple[str, Body]:
    """A conversation with the largest template arguments that a small engine's server takes: a quarter megabyte."""
    arguments = json.dumps({f"key{place}": [place, f"{NUMBER:0>40}"] for place in range(3200)})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]  # type: ignore[misc]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 1}


def huge() -> tuple[str, Body]:
    """A conversation of 15 MB."""
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": NUMBER + "a" * (15 << 20)}]}


def prompt() -> tuple[str, Body]:
    """A text of the greatest length that a server tokenizes, with too many tokens for a prompt."""
    return "/v1/completions", {"prompt": f"{NUMBER} " + "a b " * 8000, "max_tokens": 1}


def ids() -> tuple[str, Body]:
    """Two hundred thousand token ids."""
    return "/v1/completions", {"prompt": [1000] * 200_000, "max_tokens": 1}


def texts() -> tuple[str, Body]:
    """A thousand texts of a hundred characters."""
    return "/v1/embeddings", {
        "model": "encoder",
        "input": [f"{NUMBER} {place} " + MADE_UP * 4 for place in range(1000)],
    }


KINDS = {"regexes": regex, "schemas": schema, "templates": template, "15 MB": huge, "prompts": prompt, "ids": ids}


class Client:
    """One client's connection, and its key."""

    def __init__(self, address: str, key: str) -> None:
        self._place = urlsplit(address).netloc
        self._headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        self._connection = http.client.HTTPConnection(self._place, timeout=120)

    def post(self, path: str, body: bytes) -> int:
        """The status of the answer to a POST request."""
        try:
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):  # the server closes the connection if it refuses a body unread
            self._connection.close()
            return 0
        return answer.status


def send_for_ever(address: str, number: int, make: Callable[[], tuple[str, Body]], counts: Any) -> None:
    """Send slow requests one at a time; ``counts`` are the answers with status 200, and others.

    Their bodies are made beforehand, so that only the server's work takes the cores of this machine.
    """
    os.nice(NICENESS)
    client = Client(address, f"slow{number}")
    path, content = make()
    body = json.dumps({"model": "decoder", **content}).encode()
    for turn in itertools.count():
        own = str(int(NUMBER) + number * 100_000 + turn)
        status = client.post(path, body.replace(NUMBER.encode(), own.encode()))
        counts[int(status != 200)] += 1
        if status != 200:
            time.sleep(PAUSE_SECONDS)


@contextmanager
def beside(address: str, make: Callable[[], tuple[str, Body]]) -> Iterator[Any]:
    """Run slow clients until the block ends."""
    counts = multiprocessing.Array("q", 2)
    processes = [
        multiprocessing.Process(target=send_for_ever, args=(address, number, make, counts), daemon=True)
        for number in range(CLIENTS)
    ]
    for process in processes:
        process.start()
    time.sleep(SECONDS_TO_FILL)
    try:
        yield counts
    finally:
        for process in processes:
            process.kill()
            process.join()


def chat_times(address: str, count: int) -> list[float]:
    """Seconds of chats, sent one at a time."""
    client, found = Client(address, "innocent"), []
    body = json.dumps({"model": "decoder", **CHAT}).encode()
    for _ in range(count):
        start = time.perf_counter()
        status = client.post("/v1/chat/completions", body)
        if status != 200:
            raise SystemExit(f"a chat was answered with status {status}")
        found.append(time.perf_counter() - start)
    return found


@contextmanager
def serving(engine: Path, encoder: Path | None) -> Iterator[str]:
    """The address of a server of ``engine`` and ``encoder``, which accepts all clients' keys."""
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory, "keys")
        keys.write_text("\n".join(["innocent", *(f"slow{number}" for number in range(CLIENTS))]))
        models = [f"decoder={engine}", *([] if encoder is None else [f"encoder={encoder}"])]
        command = [sys.executable, "-m", "trtllm_lite", "serve", *models, "--port", "0", "--no_access_log"]
        with subprocess.Popen([*command, "--api_key_file", keys], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if line.startswith("serving at "):
                        yield line.removeprefix("serving at ").strip()
                        break
                else:
                    raise SystemExit("the server did not start")
            finally:
                process.kill()


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def percentile_95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, "embeddings"])
    parser.add_argument("--count", type=int, default=400, help="chats beside each kind")
    arguments = parser.parse_args()
    kinds = {**KINDS, **({} if arguments.encoder is None else {"embeddings": texts})}
    rows, worst = [], 0.0
    with serving(arguments.engine, arguments.encoder) as address:
        chat_times(address, 5)
        for name in arguments.kinds:
            if name not in kinds:
                continue
            time.sleep(SECONDS_TO_FILL)  # time for requests of earlier clients to end
            lone = chat_times(address, arguments.count)
            with beside(address, kinds[name]) as counts:
                found = chat_times(address, arguments.count)
                answered = f"{counts[0]} and {counts[1]}"
            ratio = statistics.median(found) / statistics.median(lone)
            worst = max(worst, ratio)
            times = [function(times) for times in (lone, found) for function in (statistics.median, percentile_95)]
            print(f"{name}: {ratio:.2f}", file=sys.stderr, flush=True)
            rows.append([name, *map(milliseconds, times), f"{ratio:.2f}", answered])
    head = ["beside", "lone median ms", "lone p95", "median ms", "p95", "ratio", "slow ones answered, refused"]
    print_table(f"a chat beside {CLIENTS} clients", head, rows)
    sys.exit(worst > GATE)


if __name__ == "__main__":
    main()
