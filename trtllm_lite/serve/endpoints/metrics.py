"""/metrics."""

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST

from trtllm_lite.serve.app import Application
from trtllm_lite.serve.http.messages import Request, Response


async def metrics(app: Application, request: Request) -> Response:  # noqa: ARG001
    """What Prometheus reads; made in another thread, so that streams go on."""
    return Response(200, await asyncio.to_thread(app.metrics.text), CONTENT_TYPE_LATEST.encode())
