"""Defines Families: the metrics of one scrape, under the names of vLLM and, where it has one, of TensorRT-LLM."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

Buckets = tuple[list[tuple[str, float]], float]


class Families:
    """Collects the samples of models; :meth:`of` names the model of the samples that follow.

    Methods take vLLM's name without its prefix, and TensorRT-LLM's name if there is one (``trtllm``); names of counters
    get the suffix ``_total``.
    """

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._model = ""

    def of(self, model: str) -> None:
        """Make ``model`` the model of all samples that follow."""
        self._model = model

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def gauge(self, name: str, text: str, value: float, *, trtllm: str = "", **labels: str) -> None:
        """Add a number that can go up and down."""
        for family, values in self._both(GaugeMetricFamily, name, trtllm, text, labels):
            family.add_metric(values, value)

    def counter(self, name: str, text: str, value: float, *, trtllm: str = "", **labels: str) -> None:
        """Add a number that only grows."""
        for family, values in self._both(CounterMetricFamily, name, trtllm, text, labels):
            family.add_metric(values, value)

    def histogram(self, name: str, text: str, sample: Buckets, *, trtllm: str = "") -> None:
        """Add buckets and a sum."""
        buckets, total = sample
        for family, values in self._both(HistogramMetricFamily, name, trtllm, text, {}):
            family.add_metric(values, buckets, total)

    def summary(self, name: str, text: str, count: int, total: float, *, trtllm: str = "") -> None:
        """Add the number of values, and their sum."""
        for family, values in self._both(SummaryMetricFamily, name, trtllm, text, {}):
            family.add_metric(values, count, total)

    def awake(self) -> None:
        """Add that the engine is awake: vLLM's dashboards show a model without this metric as down."""
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
            self.gauge("engine_sleep_state", "1 for awake: engines never sleep.", value, sleep_state=state)

    def _both(
        self, kind: Any, name: str, trtllm: str, text: str, labels: Mapping[str, str]
    ) -> Iterator[tuple[Any, list[str]]]:
        if name:
            yield self._family(kind, f"vllm:{name}", text, {"model_name": self._model, "engine": "0", **labels})
        if trtllm:
            own = {"model_name": self._model, "engine_type": "trtllm_lite", **labels}
            yield self._family(kind, f"trtllm_{trtllm}", text, own)

    def _family(self, kind: Any, name: str, text: str, labels: Mapping[str, str]) -> tuple[Any, list[str]]:
        if name not in self._families:
            self._families[name] = kind(name, text, labels=list(labels))
        return self._families[name], list(labels.values())
