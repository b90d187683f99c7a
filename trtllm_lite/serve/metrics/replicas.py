"""Merges the metrics of several servers of the same engine."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from trtllm_lite.serve.metrics.server_metrics import ServerMetrics


def labelled(metrics: "ServerMetrics", replica: str) -> list[Metric]:
    """The metrics of a server, with an additional label, ``replica``, on each sample."""
    families = list(metrics.registry.collect())
    for family in families:
        family.samples = [sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples]
    return families


def text_of_all(servers: Iterable[Iterable[Metric]]) -> bytes:
    """The merged results of :func:`labelled` for several servers, in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(servers))
    return generate_latest(registry)


class _Merged(Collector):
    """Merges families of equal names."""

    def __init__(self, servers: Iterable[Iterable[Metric]]) -> None:
        self._families: dict[str, Metric] = {}
        for families in servers:
            for family in families:
                if family.name in self._families:
                    self._families[family.name].samples += family.samples
                else:
                    self._families[family.name] = family

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that nothing is collected at registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Implement Prometheus's Collector."""
        return self._families.values()
