"""Runs the server as an application of Ray Serve; each replica holds one engine and answers requests as a server does.

Ray Serve's proxies take the connections and choose a replica for each request, and Ray Serve replaces a replica that
ends, or whose engine breaks. ``cli/ray_serve.py`` reads the arguments of the application.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from ray import serve

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError
from trtllm_lite.serve.http.asgi import AsgiServer
from trtllm_lite.serve.http.asgi_exchange import Message, Receive, Send
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.metrics.replicas import labelled, text_of_all
from trtllm_lite.serve.opening import named, opened, settings_of
from trtllm_lite.serve.ray_router import AnyNodeRouter
from trtllm_lite.serve.run import application
from trtllm_lite.serve.turns import Lanes

_HEALTH_SECONDS = 2.0  # between checks of an engine; Ray Serve replaces a replica after three failed checks
_METRICS_SECONDS = 5.0  # timeout for the metrics of other replicas


def application_of(engine: str, num_replicas: int, options: Mapping[str, Any]) -> serve.Application:
    """The application of an engine, by the parameters of ``trtllm-lite serve``.

    ``engine`` is ``[NAME=]DIR``, a directory on each node. Raises ArgumentError for options that are not possible with
    several replicas.
    """
    if options["api_key_file"] is None and not options["allow_no_api_key"]:
        raise ArgumentError(
            "whoever reaches Ray Serve's proxies could use the engine without a key: give api_key_file, or say "
            "allow_no_api_key=true if that is wanted"
        )
    if options["lora_root"] is not None:
        raise ArgumentError(
            "lora_root is given, and an adapter that a request loads would be known to one replica alone: name "
            "adapters by lora_modules"
        )
    ((name, path),) = named([engine])
    manifest = read_engine(Path(path)).manifest
    return _REPLICAS.options(
        num_replicas=num_replicas,
        ray_actor_options=resources(manifest, options),
        graceful_shutdown_timeout_s=options["drain_timeout"],
    ).bind((name, path), options)


def resources(manifest: Manifest, options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that a replica's process takes of its node: a GPU for each rank, or the CPUs that it computes on.

    Stages in actors take resources of any node, except for the last stage on GPUs, which computes in the replica.
    """
    is_remote = options["distributed_executor_backend"] == "ray"
    if manifest.target.kind != "cpu":
        return {"num_cpus": 1, "num_gpus": manifest.mapping.tp_size if is_remote else manifest.mapping.num_ranks}
    if options["num_threads"] is None:
        raise ArgumentError(
            "num_threads is missing: give the number of CPUs that Ray reserves for a replica, or for each of its stages"
        )
    return {"num_cpus": 1 if is_remote else options["num_threads"]}


class Ingress(AsgiServer):
    """The ASGI entry point of a replica. Ray Serve's proxies add X-Request-Id, which responses repeat."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer an ASGI call."""

        async def send_nameless(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
            await send(message)

        await super().__call__(scope, receive, send_nameless)


class Replica:
    """One engine, and the application that serves it."""

    def __init__(self, engine: tuple[str, str], options: Mapping[str, Any]) -> None:
        self._open = ExitStack()
        self._limits = HttpLimits(max_body_bytes=options["max_body_size"])
        settings = settings_of(options, None)
        self._open.callback(settings.access_log.close)
        loaded = self._open.enter_context(opened([engine], settings, options))
        self._app = application(loaded, settings, self._open.enter_context(Lanes()))
        self._app.metrics_text = self._metrics_of_all

    def __serve_build_asgi_app__(self) -> Ingress:
        """Return the ASGI application; Ray Serve calls this when the engine is open."""
        return Ingress(self._app, self._limits)

    def metrics(self) -> list[Metric]:
        """The metrics of this replica."""
        return labelled(self._app.metrics, serve.get_replica_context().replica_id.unique_id)

    async def _metrics_of_all(self) -> bytes:
        """The metrics of all replicas, whichever of them is asked; a replica that does not answer is left out."""
        context = serve.get_replica_context()
        asked = serve.get_deployment_handle(context.deployment, context.app_name).broadcast("metrics")
        found = await asked.results_async(timeout_s=_METRICS_SECONDS, return_exceptions=True)
        return text_of_all(families for families in found if not isinstance(families, Exception))

    async def check_health(self) -> None:
        """Raise ApiError if the engine is broken; Ray Serve calls this."""
        self._app.check_engines()

    def __del__(self) -> None:
        """Close the engine; Ray Serve calls this when running requests have ended."""
        self._open.close()


# The application itself refuses excess requests, by status 429, when max_queue_size sequences wait.
_REPLICAS: serve.Deployment = serve.deployment(
    name="server",
    max_ongoing_requests=HttpLimits.max_connections,
    health_check_period_s=_HEALTH_SECONDS,
    request_router_config={"request_router_class": AnyNodeRouter},
)(serve.ingress()(Replica))
