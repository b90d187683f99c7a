"""Makes traces: a span of OpenTelemetry for each request that uses an engine, with vLLM's attributes.

This module is imported only if tracing is on: it needs the extra ``otel``.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trtllm_lite.errors import ArgumentError, LimitError, OverloadedError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.session.stats import phases_of
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.started import noting_started

_NAME = "llm_request"


class Traces:
    """Makes spans and passes them to ``processor``. A request's ``traceparent`` names the parent of its span.

    The SDK's environment variables apply: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and others.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "trtllm_lite"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trtllm_lite")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> "Traces":
        """Traces that are sent in batches to a collector's URL by OTLP over HTTP."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint)))

    @contextmanager
    def span(self, request: Request) -> Iterator[None]:
        """The span of ``request``, which is answered inside ``with``."""
        parent = self._propagator.extract(request.headers)
        span = self._tracer.start_span(_NAME, parent, SpanKind.SERVER)
        with noting_started() as generations:
            try:
                yield
            except BaseException as error:
                _note_error(span, error)
                raise
            finally:
                _note_failures(span, generations)
                span.set_attributes(_attributes(request, generations))
                span.end()

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def _note_error(span: Span, error: BaseException) -> None:
    """Record an error; only errors that are not the client's fault mark the span as failed."""
    span.set_attribute("error.type", error.code or "error" if isinstance(error, ApiError) else type(error).__name__)
    is_clients = isinstance(error, ArgumentError | LimitError | OverloadedError | asyncio.CancelledError)
    if not is_clients and not (isinstance(error, ApiError) and error.status < 500):
        span.set_status(Status(StatusCode.ERROR, str(error)))


def _note_failures(span: Span, generations: Sequence[Generation]) -> None:
    """Record failures of a stream that has begun, which has them in its events and raises none."""
    for generation in generations:
        for handle in generation.handles:
            if handle.error is not None:
                _note_error(span, handle.error)


def _attributes(request: Request, generations: Sequence[Generation]) -> dict[str, Any]:
    """The attributes of a request's span. Latencies within the engine are those of the first sequence."""
    found: dict[str, Any] = {
        "gen_ai.request.id": request.id,
        "gen_ai.response.model": request.version or request.model,
        "gen_ai.latency.e2e": request.connection.seconds_since(request.received),
    }
    if not generations:
        return found
    params = generations[0].params
    handles = [handle for generation in generations for handle in generation.handles]
    found |= {
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.prompt_tokens": sum(len(one.handles[0].request.prompt_ids) for one in generations),
        "gen_ai.usage.completion_tokens": sum(
            handle.timings.num_generated_tokens if handle.timings is not None else len(handle.responses)
            for handle in handles
        ),
    }
    timings = handles[0].timings
    if timings is not None and timings.num_generated_tokens > 0:
        phases = phases_of(timings)
        found |= {
            "gen_ai.latency.time_in_queue": timings.queue_seconds,
            "gen_ai.latency.time_to_first_token": timings.first_token_seconds,
            "gen_ai.latency.time_in_model_prefill": phases.prefill,
            "gen_ai.latency.time_in_model_decode": phases.decode,
            "gen_ai.latency.time_in_model_inference": sum(phases),
        }
    return {name: value for name, value in found.items() if value is not None}
