"""The manifest for KubeRay says what the server, Ray Serve and Kubernetes' published schemas understand.

No package has the schema of RayService itself: the manifest was checked against KubeRay's own by hand.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.test_kubernetes import VERSION
from trtllm_lite.cli.ray_serve import parsed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "configs" / "deploy"
SERVICE = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text())
SERVE = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])
(APPLICATION,) = SERVE["applications"]
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
HEAD = CLUSTER["headGroupSpec"]["template"]
(GROUP,) = CLUSTER["workerGroupSpecs"]
WORKER = GROUP["template"]


@pytest.mark.parametrize("template", [HEAD, WORKER], ids=["head", "worker"])
def test_the_published_schemas_allow_every_field_of_the_pods(template: dict[str, Any]) -> None:
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, VERSION, strict=True)
    (container,) = template["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in template["spec"]["volumes"]}
    engine, _, options = parsed(APPLICATION["args"])
    assert engine.partition("=")[2] == mounts["engine"]
    assert str(Path(options["api_key_file"]).parent) == mounts["keys"]
    (user,) = re.findall(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert template["spec"]["securityContext"]["runAsUser"] == int(user)


def test_each_worker_has_one_replica_that_drains_before_it_is_killed() -> None:
    _, num_replicas, options = parsed(APPLICATION["args"])
    assert num_replicas == GROUP["replicas"] == GROUP["maxReplicas"]
    assert options["drain_timeout"] < WORKER["spec"]["terminationGracePeriodSeconds"]
    (container,) = WORKER["spec"]["containers"]
    assert "nvidia.com/gpu" in container["resources"]["limits"]
    assert container["readinessProbe"]["httpGet"]["port"] in [port["name"] for port in container["ports"]]


def test_the_ray_of_the_cluster_is_one_that_the_package_takes() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (least,) = re.findall(r"ray>=([\d.]+),", " ".join(extras["ray"]))
    assert CLUSTER["rayVersion"] == f"{least}.0"


def test_ray_serve_takes_its_configuration() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="needs the serve-ray extra").ServeDeploySchema
    (found,) = schema.model_validate(SERVE).applications
    module, _, builder = found.import_path.partition(":")
    assert hasattr(pytest.importorskip(module), builder)
