"""Writes configs/deploy/kubernetes.yaml: the output of the chart in configs/deploy/helm with its default values."""

from pathlib import Path

import helm_python

DEPLOY = Path(__file__).parents[1] / "configs" / "deploy"
CHART = DEPLOY / "helm" / "trtllm-lite"
MANIFEST = DEPLOY / "kubernetes.yaml"
_HEADER = """\
# A server of one engine in Kubernetes, behind a Service: what the chart in helm/trtllm-lite gives with its default
# values, written by scripts/update_kubernetes.py. What it needs first:
#   - the image of configs/deploy/Dockerfile, built with CUBLAS for engines for GPUs, as trtllm_lite:cuda
#   - a volume that has the engine's directory: the claim trtllm-lite-engine
#   - keys, one a line: kubectl create secret generic trtllm-lite-keys --from-file=keys.txt
# Then: kubectl apply -f configs/deploy/kubernetes.yaml
# An engine of several ranks (build --tp_size) takes as many nvidia.com/gpu of one node; one for CPUs takes none.
"""


def manifest() -> str:
    """The file's text."""
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(name=chart.name)
    return _HEADER + "---\n".join(rendered[name] for name in sorted(rendered) if rendered[name].strip())


if __name__ == "__main__":
    MANIFEST.write_text(manifest())
