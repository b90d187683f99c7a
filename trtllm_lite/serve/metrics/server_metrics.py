"""Defines ServerMetrics: all metrics of /metrics."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from trtllm_lite.serve.metrics.families import Families

if TYPE_CHECKING:
    from trtllm_lite.serve.served_engine import ServedEngine

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))


class ServerMetrics(Collector):
    """The metrics of ``models``, of the process, and of HTTP requests.

    HTTP metrics have the names and labels of prometheus-fastapi-instrumentator: ``status`` is 2xx and so on,
    ``handler`` a known route, or none.
    """

    def __init__(self, models: "Sequence[ServedEngine]") -> None:
        self._models = models
        self._num_requests: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], tuple[int, float]] = {}
        """Numbers and seconds of requests, by method and route."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def count_request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count a request that has been answered, or whose client went away."""
        known, handler = method if method in _METHODS else "other", route or "none"
        self._num_requests[known, handler, f"{status // 100}xx"] += 1
        count, total = self._durations.get((known, handler), (0, 0.0))
        self._durations[known, handler] = count + 1, total + seconds

    def text(self) -> bytes:
        """The metrics in Prometheus's text format; it takes milliseconds."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that nothing is collected at registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Implement Prometheus's Collector."""
        families = Families()
        for model in self._models:
            model.add_metrics(families)
        yield from families
        requests = CounterMetricFamily("http_requests", "HTTP requests.", labels=["method", "handler", "status"])
        for labels, count in list(self._num_requests.items()):
            requests.add_metric(labels, count)
        yield requests
        text = "Seconds until an HTTP request was answered."
        durations = SummaryMetricFamily("http_request_duration_seconds", text, labels=["method", "handler"])
        for names, (count, total) in list(self._durations.items()):
            durations.add_metric(names, count, total)
        yield durations
