"""A server over a fake session, to which tests send requests without a network."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.runtime.doubles import fake_session
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.app import Application, Settings
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.routes import ROUTES
from trtllm_lite.serve.served_engine import ModelSettings
from trtllm_lite.serve.served_model import ServedModel
from trtllm_lite.serve.turns import Lanes


class Asker:
    """Sends requests to an Application whose models, ``tiny`` and ``others``, run on FakeEventLoops."""

    def __init__(
        self, lanes: Lanes, model: dict[str, Any], others: Sequence[dict[str, Any]], settings: dict[str, Any]
    ) -> None:
        self.models = [
            ServedModel(
                SimpleNamespace(session=fake_session(), tokenizer=None),
                ModelSettings(**chosen),
                asyncio.get_running_loop(),
            )
            for chosen in ({"names": ("tiny",), **model}, *others)
        ]
        self.model = self.models[0]
        self.loop = self.model.session.pump.loop
        self.app = Application(self.models, ROUTES, Settings(**{"access_log": AccessLog(None), **settings}), lanes)
        self.events = bytearray()
        """What was sent in streams."""
        stream = SimpleNamespace(write=self.events.extend, end=lambda: None)
        self.connection = SimpleNamespace(
            client="192.0.2.1", seconds_since=lambda _: 2.0, open_stream=lambda _: stream, paused=False
        )

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Response:
        """The response to a request."""
        content = bytearray() if body is None else bytearray(msgspec.json.encode(body))
        every = {"content-type": "application/json", **(headers or {})}
        request = Request(method, path, "", every, content, self.connection, self.model.loop.time())
        return await self.send(request)

    async def send(self, request: Request) -> Response:
        """The response to a request, whose head is checked as the server checks the head of a request from a client."""
        return self.app.check_head(request) or await self.app.handle(request)

    async def complete(self, prompt: list[int], **fields: Any) -> Response:
        """The response to a request for a completion."""
        headers = fields.pop("headers", None)
        return await self.ask("POST", "/v1/completions", {"prompt": prompt, "ignore_eos": True, **fields}, headers)

    async def samples(self) -> dict[tuple[str, ...], float]:
        """The samples of /metrics, by name and the values of labels except the model's, sorted by label."""
        response = await self.ask("GET", "/metrics")
        assert response.status == 200
        return samples(response.body.decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Samples of Prometheus's text format, by name and the values of labels except the model's."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [
                sample.labels[key]
                for key in sorted(sample.labels)
                if key not in ("model_name", "engine", "engine_type")
            ]
            key = (sample.name, *labels)
            assert key not in found
            found[key] = sample.value
    return found


def ask(
    talk: Callable[[Asker], Awaitable[Any]],
    model: dict[str, Any] | None = None,
    others: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> Any:
    """Run ``talk`` with a server of ``settings``; ``model`` and ``others`` are the settings of its models."""

    async def run() -> Any:
        with Lanes() as lanes:
            asker = Asker(lanes, model or {}, others, settings)
            try:
                return await talk(asker)
            finally:
                for served in asker.models:
                    served.session.close()
                asker.app.settings.access_log.close()

    return asyncio.run(run())
