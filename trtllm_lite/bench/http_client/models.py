"""Asks a server which models it serves: GET /v1/models."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.bench.http_client.client import Client
from trtllm_lite.bench.http_client.response import Response
from trtllm_lite.bench.http_client.server import Server
from trtllm_lite.errors import ArgumentError, ServerError, shown

_PATH = "/v1/models"


@dataclass(frozen=True)
class Served:
    """A model that ``server``, whose address is known, serves.

    ``max_seq_len`` is reported by vLLM and SGLang, and ``max_input_len`` by this project's server; None if the server
    does not report it. ``software`` is the Server header.
    """

    server: Server
    model: str
    max_seq_len: int | None
    max_input_len: int | None
    software: str | None


def find_model(server: Server, model: str | None) -> Served:
    """The model named ``model`` of ``server``, or without a name the first that it lists.

    A server that lists no models is assumed to have the named model. Raises ServerError if the server cannot be
    reached, ArgumentError if it does not list the model, or lists none and no name is given.
    """
    response, address = asyncio.run(_ask(server))
    cards = _cards(response)
    names = [str(card["id"]) for card in cards]
    if model is None:
        if not names:
            raise ArgumentError(f"{server.name} answers {_PATH} without a model (HTTP {response.status}): name one")
        model = names[0]
    elif names and model not in names:
        raise ArgumentError(f"model is {shown(model)}, and {server.name} serves {shown(names)}: name one of these")
    card = next((card for card in cards if card["id"] == model), {})
    return Served(
        replace(server, address=address),
        model,
        max_seq_len=_length(card, "max_model_len"),
        max_input_len=_length(card, "max_input_len"),
        software=response.headers.get("server"),
    )


def _length(card: dict[str, Any], name: str) -> int | None:
    length = card.get(name)
    return length if type(length) is int and length > 0 else None


async def _ask(server: Server) -> tuple[Response, str | None]:
    client = Client(server)
    try:
        response = await client.ask(server.request("GET", _PATH))
    except ServerError as error:
        raise ServerError(f"{error}: start the server, or give its base_url", error.kind) from error
    client.close()
    if response.status in (401, 403):
        raise ServerError(f"{server.name} refuses the API key (HTTP {response.status}): give api_key_file", "refused")
    return response, client.peer


def _cards(response: Response) -> list[dict[str, Any]]:
    try:
        found = json.loads(bytes(response.body)) if response.status == 200 else None
    except (ValueError, RecursionError):
        found = None
    cards = found.get("data") if isinstance(found, dict) else None
    return [card for card in cards if isinstance(card, dict) and "id" in card] if isinstance(cards, list) else []
