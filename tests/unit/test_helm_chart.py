"""The Helm chart is what Helm and Kubernetes' published schemas allow, and kubernetes.yaml is what it gives."""

import runpy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.test_kubernetes import VERSION
from trtllm_lite import __version__

helm = pytest.importorskip("helm_python", reason="needs Helm's library")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "configs" / "deploy" / "helm" / "trtllm-lite"


def rendered(**values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Deployment and the Service that the chart gives with these values, in a release called llm."""
    with helm.Chart.load(CHART) as chart:
        found = chart.render(values, name="llm")
    deployment, service = (yaml.safe_load(found[name]) for name in sorted(found))
    for resource in (deployment, service):
        kubernetes_validate.validate(resource, VERSION, strict=True)
    return deployment, service


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


@pytest.mark.parametrize(
    ("values", "named"),
    [({"gpu": 2}, "'gpu' not allowed"), ({"gpus": -1}, "gpus"), ({"options": ["max_queue_size=9"]}, "options")],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=named):
        rendered(**values)
