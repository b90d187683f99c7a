"""Replicas on two nodes of a Ray cluster answer as one server does; a replica or node that dies loses no request
silently, and is replaced."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.engines import make_tiny_engine
from tests.serve.server import Server, serving
from tests.serve.waiting import first_of

pytest.importorskip("ray.serve", reason="needs the serve-ray extra")

from tests.serve.replicas import Service, replicated

LONG = 5_000  # tokens; the tests wait for all of them
ENDLESS = 60_000  # tokens; the tests wait for a few of them
OPTIONS = {"max_batch_size": 1, "max_queue_size": 0, "max_body_size": 10_000}
WITH_USAGE = {"stream_options": {"include_usage": True}}
HELLO = {"prompt": "the dog", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that takes long requests."""
    return make_tiny_engine(tmp_path_factory.mktemp("ray"), max_seq_len=2 * ENDLESS)


@pytest.fixture(scope="module")
def plain(engine: Path) -> Iterator[Server]:
    """A server of the engine without Ray."""
    words = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    with serving(engine, "--num_threads", 1, *words) as running:
        yield running


@pytest.fixture(scope="module")
def service(engine: Path) -> Iterator[Service]:
    """Two replicas of the same engine."""
    with replicated(engine, allow_no_api_key=True, **OPTIONS) as running:
        yield running


def told(response: httpx.Response) -> tuple[int, str, str]:
    """The content of a response without its names and times."""
    body = re.sub(r'("id":"cmpl-[^"]+"|"created":\d+)', "", response.text)
    return response.status_code, response.headers["content-type"], body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("HEAD", "/health", None),
        ("GET", "/v1/models/no%2Fmodel", None),
        ("POST", "/v1/completions", {**HELLO, "max_tokens": 9}),
        ("POST", "/v1/completions", {**HELLO, "max_tokens": 9, "stream": True, **WITH_USAGE}),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokns": 1}),
        ("POST", "/v1/completions", {"prompt": "a" * 20_000}),
        ("DELETE", "/v1/completions", None),
    ],
)  # fmt: skip
def test_the_replicas_answer_as_the_server_does(
    plain: Server, service: Service, method: str, path: str, body: Any
) -> None:
    expected, found = (
        httpx.request(method, f"{server.address}{path}", json=body, timeout=60) for server in (plain, service)
    )
    if body and body.get("stream"):  # how many tokens an event brings varies with timing
        expected, found = map(whole_stream, (expected, found))
        assert expected == found
    else:
        assert told(found) == told(expected)


def whole_stream(response: httpx.Response) -> tuple[str, Any]:
    """The text of a stream's events, and the usage in the last event."""
    *events, done = re.findall(r"data: (.*)\n\n", response.text)
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]), chunks[-1]["usage"]


def test_the_request_is_called_what_the_client_calls_it(service: Service) -> None:
    response = httpx.get(f"{service.address}/v1/models", headers={"X-Request-Id": "mine"})
    assert response.headers.get_list("x-request-id") == ["mine"]


def num_running(service: Service) -> dict[str, float]:
    """The number of running requests of each replica, by the replica's name in the metrics."""
    response = httpx.get(f"{service.address}/metrics", timeout=60)
    (running,) = [
        family for family in text_string_to_metric_families(response.text) if family.name == "vllm:num_requests_running"
    ]
    names = [sample.labels["replica"] for sample in running.samples]
    assert len(set(names)) == len(names)
    return {sample.labels["replica"]: sample.value for sample in running.samples}


def test_the_metrics_are_those_of_both_replicas(service: Service) -> None:
    assert len(num_running(service)) == 2


def whole(service: Service, max_tokens: int) -> httpx.Response:
    """The response to a request, from a replica that is not busy."""
    return taken(
        lambda: httpx.post(f"{service.address}/v1/completions", json={**HELLO, "max_tokens": max_tokens}, timeout=300)
    )


@contextmanager
def begun(service: Service, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream after its first, from a replica that is not busy."""
    body = {**HELLO, "max_tokens": max_tokens, "stream": True}
    with httpx.Client(base_url=service.address, timeout=300) as client:
        request = client.build_request("POST", "/v1/completions", json=body)
        response = taken(lambda: client.send(request, stream=True))
        with closing(response):
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            yield lines


def taken(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The first response that does not report a busy replica."""

    def ask_once() -> httpx.Response | None:
        response = ask()
        if response.status_code != 429:
            return response
        response.close()
        return None

    response = first_of(ask_once)
    assert response is not None, "every replica stays busy"
    return response


def wait_until_busy(service: Service) -> None:
    """Wait until both replicas are computing."""
    assert first_of(lambda: sorted(num_running(service).values()) == [1, 1]), "a replica stays idle"


def is_whole(lines: Iterator[str]) -> bool:
    """Whether a stream has its proper end, and was not cut with its connection."""
    try:
        *_, last = filter(None, lines)
    except httpx.RemoteProtocolError:
        return False
    return last == "data: [DONE]"


def test_a_client_that_goes_away_frees_its_replica(service: Service) -> None:
    with begun(service, ENDLESS), begun(service, ENDLESS):
        wait_until_busy(service)
        body = {**HELLO, "max_tokens": 1}
        assert httpx.post(f"{service.address}/v1/completions", json=body, timeout=60).status_code == 429
    with begun(service, ENDLESS), begun(service, ENDLESS):
        pass


@pytest.mark.parametrize("what", ["replica", "node"])
def test_what_a_dead_replica_was_answering_fails_and_the_rest_goes_on(service: Service, what: str) -> None:
    with ThreadPoolExecutor(1) as threads, begun(service, LONG) as lines:
        other = threads.submit(whole, service, LONG)
        wait_until_busy(service)
        if what == "node":
            service.nodes.kill_node()
        else:
            service.kill_replica()
        outcome = is_whole(lines), other.result().status_code
    assert outcome in ((True, 500), (False, 200))
    assert whole(service, 1).status_code == 200
    service.nodes.complete()
    service.wait_until_whole()
    with begun(service, ENDLESS), begun(service, ENDLESS):
        pass


def test_the_stages_of_a_replica_compute_in_actors_of_their_own(
    plain: Server, service: Service, tmp_path: Path
) -> None:
    """The test comes last, when no replica of the tests above is left."""
    staged = make_tiny_engine(tmp_path, max_seq_len=2 * ENDLESS, pipeline_parallel_size=2)
    service.run(staged, num_threads=1, distributed_executor_backend="ray", allow_no_api_key=True, **OPTIONS)
    body = {**HELLO, "max_tokens": 9}
    expected, found = (
        httpx.post(f"{server.address}/v1/completions", json=body, timeout=60) for server in (plain, service)
    )
    assert told(found) == told(expected)
    assert (len(service.replicas()), service.num_stages()) == (1, [2])
