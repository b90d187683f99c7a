"""What probes are told: of the process, of engines, and of whether requests are taken."""

import json

import pytest

from tests.unit.serve.served import ask
from trtllm_lite.serve.api_keys import ApiKeys

PATHS = ("/livez", "/health", "/ping", "/ready", "/readyz")


async def statuses(server):
    return {path: (await server.ask("GET", path)).status for path in PATHS}


def test_a_server_that_works_says_so():
    assert ask(statuses) == dict.fromkeys(PATHS, 200)


def test_a_server_that_shuts_down_lives_and_takes_nothing():
    async def talk(server):
        server.app.is_draining = True
        error = json.loads((await server.ask("GET", "/readyz")).body)["error"]
        assert (error["code"], error["message"]) == ("draining", "the server is shutting down")
        return await statuses(server)

    assert ask(talk) == {**dict.fromkeys(PATHS, 200), "/ready": 503, "/readyz": 503}


def test_an_engine_whose_thread_has_failed_is_named():
    async def talk(server):
        server.loop.broken = RuntimeError("the device is gone")
        assert (await server.complete([3], max_tokens=1)).status >= 500
        error = json.loads((await server.ask("GET", "/readyz")).body)["error"]
        assert error["code"] == "engine_dead"
        assert "'tiny' has failed" in error["message"]
        return await statuses(server)

    assert ask(talk) == {**dict.fromkeys(PATHS, 503), "/livez": 200}


@pytest.mark.parametrize("path", PATHS)
def test_probes_need_no_key(path):
    async def talk(server):
        assert (await server.ask("GET", path)).status == 200

    ask(talk, api_keys=ApiKeys(["k"]))
