"""Loads on a server whose answers the tests choose: connections, errors by kind, concurrency, processes."""

import asyncio
import socket
from dataclasses import replace

import pytest

from tests.unit.bench.fake_server import (
    MODEL,
    Reply,
    all_tokens,
    fake_server,
    head,
    in_turn,
    streamed,
    token_events,
    whole,
)
from trtllm_lite.bench.http_bench import Prompts, ServerLimits, measure_server
from trtllm_lite.bench.http_client.answer import Answer
from trtllm_lite.bench.http_client.bodies import Asking
from trtllm_lite.bench.http_client.client import Client
from trtllm_lite.bench.http_client.load import Asked, Failure, run_load
from trtllm_lite.bench.http_client.models import find_model
from trtllm_lite.bench.http_client.processes import deal, new_event_loop, run_processes
from trtllm_lite.bench.http_client.server import Server, parse_base_url
from trtllm_lite.bench.workload import Workload
from trtllm_lite.errors import ArgumentError, LimitError, ServerError

PROMPTS = Prompts(50, ServerLimits(1000, 1000))
ASKING = Asking(MODEL)


def requests_for(server, count, asking=ASKING, **options):
    """Requests that are all due at once."""
    workload = Workload(num_requests=count, input_len="3", output_len="5", **options)
    planned = workload.requests(50, ServerLimits(1000, 1000))
    return [
        Asked(row, 0.0, server.request("POST", asking.endpoint, asking.body(one, None)), asking.stream, one.output_len)
        for row, one in enumerate(planned)
    ]


def results(server, count=1, concurrency=1, asking=ASKING):
    """The results of requests that this process sends."""
    target = parse_base_url(server.base_url)

    async def send():
        client = Client(target)
        outcomes = await run_load(client, requests_for(target, count, asking), 0.0, concurrency)
        client.close()
        return outcomes

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcomes = runner.run(send())
    return [outcome.result for outcome in sorted(outcomes, key=lambda outcome: outcome.row)]


def measured(server, num_client_processes=1, num_warmups=0, asking=ASKING, objectives=None, **options):
    workload = Workload(**{"num_requests": 6, "input_len": "3:9", "output_len": "1:5", **options})
    return measure_server(
        *(parse_base_url(server.base_url), workload, PROMPTS, asking, objectives or {}, None),
        num_client_processes=num_client_processes,
        num_warmups=num_warmups,
    )


def test_all_tokens_are_counted():
    with fake_server() as server:
        found = results(server, 3)
    assert [len(answer.chunk_times_s) for answer in found] == [5, 5, 5]
    first = server.asked[0]
    assert (first.path, first.headers["host"]) == ("/v1/completions", f"127.0.0.1:{server.port}")
    assert {name: value for name, value in first.body.items() if name != "prompt"} == {
        **{"model": MODEL, "max_tokens": 5, "min_tokens": 5, "ignore_eos": True, "temperature": 0.0},
        **{"stream": True, "stream_options": {"include_usage": True}},
    }


def test_one_after_the_other_takes_one_connection():
    with fake_server() as server:
        assert all(isinstance(result, Answer) for result in results(server, 5))
    assert [request.connection for request in server.asked] == [1] * 5


def test_a_connection_that_the_server_closes_is_replaced():
    def closing(request):
        return Reply(streamed(token_events(request.body), "Connection: close").pieces, close=True)

    with fake_server(closing) as server:
        assert all(isinstance(result, Answer) for result in results(server, 3))
    assert [request.connection for request in server.asked] == [1, 2, 3]


def test_a_connection_may_end_between_requests():
    """The server closes connections without notice; a request that meets a half-closed connection is sent again."""
    with fake_server(lambda request: Reply(all_tokens(request).pieces, close=True)) as server:
        assert all(isinstance(result, Answer) for result in results(server, 20))
    assert [request.connection for request in server.asked] == list(range(1, 21))


def test_a_response_may_come_in_small_pieces():
    def slow(request):
        return Reply([bytes([byte]) for piece in all_tokens(request).pieces for byte in piece])

    with fake_server(slow) as server:
        (answer,) = results(server)
    assert len(answer.chunk_times_s) == 5


def test_answers_without_a_stream():
    asking = Asking(MODEL, stream=False)
    with fake_server() as server:
        (answer,) = results(server, asking=asking)
    assert (len(answer.chunk_times_s), answer.num_tokens) == (1, 5)
    assert "stream_options" not in server.asked[0].body


def test_no_more_are_outstanding_than_may_be():
    outstanding, most = 0, 0
    pair = asyncio.Barrier(2)

    async def with_another(request):
        nonlocal outstanding, most
        outstanding += 1
        most = max(most, outstanding)
        await pair.wait()
        outstanding -= 1
        return all_tokens(request)

    with fake_server(with_another) as server:
        assert all(isinstance(result, Answer) for result in results(server, 8, concurrency=2))
    assert most == 2


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (whole({"error": "no"}, "Retry-After: 3", status="429 Too Many Requests"), "HTTP 429"),
        (whole({"error": "no"}, status="500 Internal Server Error"), "HTTP 500"),
        (Reply([], close=True), "connection closed without a response"),
        (Reply([head("Content-Length: 9")], close=True), "connection lost"),
        (streamed([]), "no [DONE]"),
        (streamed(token_events({"prompt": [], "max_tokens": 4})), "another output length"),
        (Reply([b"220 mail ESMTP\r\n\r\n"], close=True), "malformed response"),
    ],
)
def test_failures_are_counted_by_kind_beside_the_others(reply, kind):
    with fake_server(in_turn(lambda _: reply, all_tokens)) as server:
        failed, *others = results(server, 3)
    assert failed.kind == kind
    assert failed.message
    assert [type(other) for other in others] == [Answer, Answer]


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_no_server_is_a_failure():
    target = Server("127.0.0.1", unused_port())
    (outcome,) = asyncio.run(run_load(Client(target), requests_for(target, 1), 0.0))
    assert isinstance(outcome.result, Failure)
    assert outcome.result.kind == "connection refused"
    with pytest.raises(ServerError, match="start the server, or give its base_url"):
        find_model(target, None)


def test_the_model_is_the_first_that_the_server_lists():
    cards = [{"id": "a", "max_model_len": 77}, {"id": "b"}]
    with fake_server(models=cards) as server:
        target = parse_base_url(f"{server.base_url}/v1/", "secret")
        served = find_model(target, None)
        assert (served.model, served.max_seq_len, served.server.address) == ("a", 77, "127.0.0.1")
        assert find_model(target, "b").max_seq_len is None
        with pytest.raises(ArgumentError, match=r"model is 'c', and .* serves \['a', 'b'\]"):
            find_model(target, "c")
    assert server.requests[0].path == "/v1/models"
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    with fake_server(models=[]) as server:
        assert find_model(parse_base_url(server.base_url), "c").model == "c"
        with pytest.raises(ArgumentError, match="name one"):
            find_model(parse_base_url(server.base_url), None)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://localhost:8000", Server("localhost", 8000)),
        ("http://localhost/v1", Server("localhost", 80)),
        ("https://[::1]/some/where/v1/", Server("::1", 443, tls=True, prefix="/some/where")),
    ],
)
def test_base_urls(url, server):
    assert parse_base_url(url) == server


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "http://a:port", "http://a?b=c", "http://u:p@a", "http://a\r\nb"]
)
def test_other_urls_are_errors(url):
    with pytest.raises(ArgumentError, match="expected a URL such as http://localhost:8000"):
        parse_base_url(url)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_processes_send_the_same_requests_together(num_processes):
    with fake_server() as server:
        report = measured(server, num_processes, num_warmups=num_processes, concurrency=3)
    planned = Workload(num_requests=6, input_len="3:9", output_len="1:5").requests(50, ServerLimits(1000, 1000))
    expected = sorted((one.prompt_ids.tolist(), one.output_len) for one in planned)
    sent = [(request.body["prompt"], request.body["max_tokens"]) for request in server.asked]
    assert sorted(sent[num_processes:]) == expected
    assert not {str(prompt) for prompt, _ in sent[:num_processes]} & {str(prompt) for prompt, _ in expected}
    figures = report["figures"]
    assert figures["failed_requests"] == 0
    assert figures["prompt_tokens"] == sum(one.prompt_len for one in planned)
    assert figures["output_tokens"] == sum(one.output_len for one in planned)
    assert len(report["client_cpu_shares"]) == num_processes
    assert figures["client_cpu_share"] == max(report["client_cpu_shares"])
    assert not {"queue_s", "preemptions", "cached_prompt_share"} & set(figures)


def test_arrivals_are_those_of_the_workload():
    """Each request is sent when it is due, or later, in whichever process."""
    with fake_server() as server:
        target = parse_base_url(server.base_url)
        arrivals = {"arrival": "poisson", "request_rate": 2000.0}
        planned = Workload(num_requests=9, **arrivals).requests(50, ServerLimits(1000, 1000))
        at_once = requests_for(target, 9)
        asked = [replace(one, arrival_s=due.arrival_s) for one, due in zip(at_once, planned, strict=True)]
        shares = deal(target, asked, [], 4, 2)
        assert [[one.row for one in share.asked] for share in shares] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
        assert [share.concurrency for share in shares] == [2, 2]
        load = run_processes(shares)
    assert [outcome.row for outcome in load.outcomes] == list(range(9))
    assert all(out.sent_s >= load.begin + one.arrival_s for out, one in zip(load.outcomes, asked, strict=True))


def test_processes_with_nothing_to_do_are_an_error():
    asked = [Asked(row, 0.0, b"", True) for row in range(4)]
    with pytest.raises(LimitError, match="num_client_processes is 5, above num_requests 4"):
        deal(Server("a", 1), asked, [], None, 5)
    with pytest.raises(LimitError, match="num_client_processes is 4, above concurrency 3"):
        deal(Server("a", 1), asked, [], 3, 4)


def test_figures_are_of_the_requests_that_succeed():
    refused = whole({"error": "busy"}, status="503 Service Unavailable")
    with fake_server(in_turn(lambda _: refused, lambda _: refused, lambda _: streamed([]), all_tokens)) as server:
        report = measured(server, concurrency=1, output_len="4", objectives={"e2el": 3600.0})
    figures = report["figures"]
    assert (figures["failed_requests"], figures["output_tokens"], figures["goodput_share"]) == (3, 12, 1.0)
    assert [(error["kind"], error["count"]) for error in report["errors"]] == [("HTTP 503", 2), ("no [DONE]", 1)]
    assert report["errors"][0]["example"] == "the server answered HTTP 503: " + '{"error": "busy"}'


def test_a_failure_while_warming_up_ends_the_benchmark():
    with (
        fake_server(lambda _: whole({}, status="500 No")) as server,
        pytest.raises(ServerError, match="fails while it warms up: the server answered HTTP 500"),
    ):
        measured(server, num_warmups=1)


def test_chunks_of_several_tokens():
    with fake_server(lambda request: streamed(token_events(request.body, tokens_per_event=4))) as server:
        figures = measured(server, output_len="8")["figures"]
    assert (figures["output_tokens"], figures["output_tokens_per_chunk"]) == (48, 4)
    assert figures["time_per_output_token_s"]["mean"] * 7 == pytest.approx(figures["inter_token_latency_s"]["mean"])


def test_without_a_stream_there_are_no_figures_of_tokens():
    asking = Asking(MODEL, stream=False)
    with fake_server() as server:
        figures = measured(server, asking=asking)["figures"]
        with pytest.raises(ArgumentError, match="need a stream of tokens"):
            measured(server, asking=asking, objectives={"ttft": 1.0})
    assert figures["end_to_end_latency_s"]
    absent = {"time_to_first_token_s", "inter_token_latency_s", "time_per_output_token_s", "output_tokens_per_chunk"}
    assert not absent & set(figures)


def test_priorities_are_told_to_the_server():
    with fake_server() as server:
        report = measured(server, priorities="0:1,5:1", num_requests=20)
    assert {request.body.get("priority", 0) for request in server.asked} == {0, 5}
    assert list(report["by_priority"]) == ["5", "0"]
