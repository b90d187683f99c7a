"""The metrics of several servers of the same engine, as one of them shows them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from trtllm_lite.serve.metrics.server_metrics import ServerMetrics


def labelled(metrics: "ServerMetrics", replica: str) -> list[Metric]:
    """What a server's /metrics says; its samples have one more label, ``replica``."""
    families = list(metrics.registry.collect())
    for family in families:
        family.samples = [sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples]
    return families


def text_of_all(servers: Iterable[Iterable[Metric]]) -> bytes:
    """What :func:`labelled` gives of several servers, in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(servers))
    return generate_latest(registry)


class _Merged(Collector):
    """Families of equal names as one."""

    def __init__(self, servers: Iterable[Iterable[Metric]]) -> None:
        self._families: dict[str, Metric] = {}
        for families in servers:
            for family in families:
                if family.name in self._families:
                    self._families[family.name].samples += family.samples
                else:
                    self._families[family.name] = family

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that nothing is collected when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """See Prometheus's Collector."""
        return self._families.values()
