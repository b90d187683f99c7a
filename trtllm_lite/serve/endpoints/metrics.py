"""/metrics."""

from prometheus_client import CONTENT_TYPE_LATEST

from trtllm_lite.serve.app import Application
from trtllm_lite.serve.http.messages import Request, Response


async def metrics(app: Application, request: Request) -> Response:  # noqa: ARG001
    """The metrics, in Prometheus's text format."""
    return Response(200, await app.metrics_text(), CONTENT_TYPE_LATEST.encode())
