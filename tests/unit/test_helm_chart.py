"""The Helm chart is valid by Helm and Kubernetes' published schemas, and renders kubernetes.yaml."""

import runpy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.test_kubernetes import VERSION
from trtllm_lite import __version__
from trtllm_lite.serve.routes import ROUTES

helm = pytest.importorskip("helm_python", reason="needs Helm's library")

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()
CHART = ROOT / "configs" / "deploy" / "helm" / "trtllm-lite"


def resources(**values: Any) -> dict[str, dict[str, Any]]:
    """What the chart gives with these values, in a release called llm, by kind."""
    with helm.Chart.load(CHART) as chart:
        found = [yaml.safe_load(text) for text in chart.render(values, name="llm").values()]
    by_kind = {resource["kind"]: resource for resource in found if resource is not None}
    for kind, resource in by_kind.items():
        if kind != "ServiceMonitor":  # of Prometheus' operator, whose schema is not Kubernetes'
            kubernetes_validate.validate(resource, VERSION, strict=True)
    return by_kind


def rendered(**values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Deployment and the Service that the chart gives with these values."""
    found = resources(**values)
    assert found.keys() == {"Deployment", "Service"}
    return found["Deployment"], found["Service"]


def server(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return found


def test_the_manifest_is_what_the_chart_gives() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "update_kubernetes.py"))
    assert script["MANIFEST"].read_text() == script["manifest"](), "run scripts/update_kubernetes.py"


def test_helm_finds_nothing_wrong() -> None:
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == chart.version == __version__
    report = helm.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_values_reach_the_server() -> None:
    deployment, service = rendered(
        **{"gpus": 4, "replicas": 3, "drainSeconds": 600, "options": ["--max_queue_size=9"], "servicePort": 8080},
        **{"engine": {"claim": "models", "subPath": "llama/engine", "name": "llama"}, "keysSecret": "ours"},
        **{"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    )
    pod = deployment["spec"]["template"]["spec"]
    assert server(deployment)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert {"--served_model_name=llama", "--max_queue_size=9", "--drain_timeout=600"} <= set(server(deployment)["args"])
    assert pod["terminationGracePeriodSeconds"] > 600
    assert (pod["nodeSelector"], len(pod["tolerations"])) == ({"gpu": "h100"}, 1)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["engine"]["persistentVolumeClaim"]["claimName"] == "models"
    assert volumes["keys"]["secret"]["secretName"] == "ours"
    assert server(deployment)["volumeMounts"][0]["subPath"] == "llama/engine"
    assert (deployment["spec"]["replicas"], service["spec"]["ports"][0]["port"]) == (3, 8080)
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == "llm"


def test_an_engine_for_cpus_takes_no_gpu() -> None:
    deployment, _ = rendered(gpus=0)
    assert "limits" not in server(deployment)["resources"]


def test_an_autoscaler_counts_what_waits_at_each_server() -> None:
    found = resources(autoscaling={"enabled": True, "minReplicas": 2, "maxReplicas": 9, "waitingPerServer": 5})
    autoscaler, deployment = found["HorizontalPodAutoscaler"]["spec"], found["Deployment"]
    target = {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}
    assert autoscaler["scaleTargetRef"] == target
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (2, 9)
    (metric,) = autoscaler["metrics"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "5"}
    assert f"`{metric['pods']['metric']['name']}`" in METRICS
    assert "replicas" not in deployment["spec"]  # an upgrade would set it back


def test_a_monitor_finds_the_metrics_once() -> None:
    found = resources(serviceMonitor={"enabled": True, "labels": {"release": "prometheus"}})
    monitor, service = found["ServiceMonitor"], found["Service"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] in ROUTES
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert "annotations" not in found["Deployment"]["spec"]["template"]["metadata"]


def test_a_budget_and_a_policy_are_of_the_pods() -> None:
    collector = {"to": [{"podSelector": {"matchLabels": {"app": "otel"}}}], "ports": [{"port": 4318}]}
    found = resources(
        disruptionBudget={"enabled": True, "maxUnavailable": 2}, networkPolicy={"enabled": True, "egress": [collector]}
    )
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    budget, policy = found["PodDisruptionBudget"]["spec"], found["NetworkPolicy"]["spec"]
    assert budget["maxUnavailable"] == 2
    assert budget["selector"]["matchLabels"].items() <= labels
    assert policy["podSelector"]["matchLabels"].items() <= labels
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in server(found["Deployment"])["ports"]]
    assert rule["from"] == [{"podSelector": {}}]
    assert policy["egress"] == [collector]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gpu": 2}, "'gpu' not allowed"),
        ({"gpus": -1}, "gpus"),
        ({"options": ["max_queue_size=9"]}, "options"),
        ({"autoscaling": {"minReplicas": 0}}, "minReplicas"),
        ({"networkPolicy": {"clients": []}}, "clients"),  # would let everybody in
        ({"serviceMonitor": {"interval": "often"}}, "interval"),
        ({"disruptionBudget": {"minAvailable": 1}}, "'minAvailable' not allowed"),
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=named):
        rendered(**values)
