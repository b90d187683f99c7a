"""Spans of requests: their attributes, their parents, and their arrival at a collector."""

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.unit.serve.served import ask
from trtllm_lite.cli import cli
from trtllm_lite.serve.tracing import Traces

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


def spans_of(talk, exporter):
    traces = Traces(SimpleSpanProcessor(exporter))
    ask(talk, traces=traces)
    traces.close()
    return exporter.get_finished_spans()


def test_a_span_says_what_was_asked_and_how_long_it_took(exporter):
    async def talk(server):
        headers = {"x-request-id": "mine", "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        await server.complete([3, 4, 5], max_tokens=3, n=2, temperature=0.5, top_p=0.75, headers=headers)
        await server.ask("GET", "/v1/models")

    (span,) = spans_of(talk, exporter)
    assert (span.name, span.kind, span.status.status_code) == ("llm_request", SpanKind.SERVER, StatusCode.UNSET)
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == PARENT_ID
    assert span.resource.attributes["service.name"] == "trtllm_lite"
    assert dict(span.attributes) == {
        "gen_ai.request.id": "mine",
        "gen_ai.request.n": 2,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 6,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_to_first_token": 0.5,
        "gen_ai.latency.time_in_model_prefill": 0.25,
        "gen_ai.latency.time_in_model_decode": 0.25,
        "gen_ai.latency.time_in_model_inference": 0.5,
        "gen_ai.latency.e2e": 2.0,
    }


def test_errors_are_told_apart(exporter):
    async def talk(server):
        assert (await server.complete([3], max_tokens=1000)).status == 400
        server.loop.num_steps_allowed = 0
        task = asyncio.ensure_future(server.complete([3]))
        while not server.loop.running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        server.loop.fail = "no memory"
        server.loop.step()
        assert (await server.complete([3])).status == 500

    refused, cancelled, failed = spans_of(talk, exporter)
    assert refused.status.status_code == StatusCode.UNSET
    assert refused.attributes["error.type"] == "context_length_exceeded"
    assert (cancelled.status.status_code, cancelled.attributes["error.type"]) == (StatusCode.UNSET, "CancelledError")
    assert cancelled.attributes["gen_ai.usage.completion_tokens"] == 0
    assert "gen_ai.latency.time_to_first_token" not in cancelled.attributes
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "EngineError")


def test_a_stream_that_an_error_ends_is_an_error(exporter):
    async def talk(server):
        server.loop.num_steps_allowed = 2
        task = asyncio.ensure_future(server.complete([3], stream=True, return_token_ids=True))
        while not server.events:
            await asyncio.sleep(0)
        server.loop.fail = "no memory"
        server.loop.step()
        assert await task is None
        assert b"no memory" in server.events

    (span,) = spans_of(talk, exporter)
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "EngineError")


def test_spans_reach_a_collector(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    async def talk(server):
        await server.complete([3], max_tokens=1, headers={"x-request-id": "mine"})

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        traces = Traces.to(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        ask(talk, traces=traces)
        traces.close()
        collector.shutdown()
        thread.join()
    ((path, body),) = bodies
    (received,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = received.scope_spans[0].spans
    assert path == "/v1/traces"
    assert "mine" in [entry.value.string_value for entry in received.resource.attributes if entry.key == "service.name"]
    assert "mine" in [entry.value.string_value for entry in span.attributes if entry.key == "gen_ai.request.id"]


def test_what_is_no_url_is_refused():
    result = CliRunner().invoke(cli, ["serve", "engine", "--otlp_traces_endpoint", "localhost:4318"])
    assert result.exit_code == 1
    assert "otlp_traces_endpoint is 'localhost:4318': expected the URL" in result.output


def test_a_server_without_traces_does_without_opentelemetry():
    code = "import sys, trtllm_lite.serve.run, trtllm_lite.cli.serve; print('opentelemetry' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert process.stdout == "False\n", process.stderr
