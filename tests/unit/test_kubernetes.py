"""The manifest for Kubernetes is valid by its published schemas, and agrees with the server and its image."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trtllm_lite.cli.serve import serve
from trtllm_lite.serve.routes import ROUTES

DEPLOY = Path(__file__).parents[2] / "configs" / "deploy"
VERSION = "1.37"
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]


@pytest.mark.parametrize("resource", [DEPLOYMENT, SERVICE], ids=["deployment", "service"])
def test_the_published_schemas_allow_every_field(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**resource, "spec": {**resource["spec"], "replica": 2}}, VERSION, strict=True)


def test_the_server_takes_its_arguments_and_drains_before_it_is_killed() -> None:
    model, *options = SERVER["args"]
    given = dict(option.removeprefix("--").split("=") for option in options)
    known = {name.removeprefix("--") for parameter in serve.params for name in parameter.opts}
    assert given.keys() <= known
    assert int(given["drain_timeout"]) < POD["spec"]["terminationGracePeriodSeconds"]
    mounts = [mount["mountPath"] for mount in SERVER["volumeMounts"]]
    assert model in mounts
    assert str(Path(given["api_key_file"]).parent) in mounts


def test_labels_ports_and_probes_fit_together() -> None:
    labels = POD["metadata"]["labels"].items()
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"].items() <= labels
    assert SERVICE["spec"]["selector"].items() <= labels
    (port,) = SERVER["ports"]
    assert {found["targetPort"] for found in SERVICE["spec"]["ports"]} == {port["name"]}
    assert f"EXPOSE {port['containerPort']}\n" in (DEPLOY / "Dockerfile").read_text()
    probes = [SERVER[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert all(probe["port"] == port["name"] and ROUTES[probe["path"]][0].is_open for probe in probes)
    scraped = POD["metadata"]["annotations"]
    assert scraped["prometheus.io/port"] == str(port["containerPort"])
    assert scraped["prometheus.io/path"] in ROUTES


def test_the_pod_has_the_rights_of_the_image() -> None:
    (user,) = re.findall(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert POD["spec"]["securityContext"]["runAsUser"] == int(user)
    assert SERVER["securityContext"]["readOnlyRootFilesystem"]
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    assert {mount["name"] for mount in SERVER["volumeMounts"]} == volumes
