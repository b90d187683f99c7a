"""The access log has a line for each request, also for one whose client went away."""

import asyncio
import io
import json
import threading

from tests.unit.serve.served import ask
from trtllm_lite.serve import access_log
from trtllm_lite.serve.access_log import AccessLog


def test_an_answered_request_is_noted():
    log = io.StringIO()

    async def talk(server):
        await server.complete([3, 4, 5], max_tokens=2, headers={"x-request-id": "mine"})
        await server.ask("GET", "/nowhere\n")

    ask(talk, access_log=AccessLog(log))
    first, second = log.getvalue().splitlines()
    assert first.split(" ", 2)[1:] == [
        "192.0.2.1",
        '"POST /v1/completions" 200 2.000s model=tiny prompt_tokens=3 completion_tokens=2 request_id=mine',
    ]
    assert '"GET /nowhere\\n" 404' in second
    assert len(second.partition("request_id=")[2]) == 32


def test_json_has_the_fields_of_the_text():
    log = io.StringIO()

    async def talk(server):
        await server.complete([3, 4, 5], max_tokens=2, headers={"x-request-id": "mine"})
        await server.ask("GET", '/no"where')

    ask(talk, access_log=AccessLog(log, as_json=True))
    first, second = map(json.loads, log.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        **{"client": "192.0.2.1", "method": "POST", "path": "/v1/completions", "status": 200, "seconds": 2.0},
        **{"model": "tiny", "prompt_tokens": 3, "completion_tokens": 2, "request_id": "mine"},
    }
    assert (second["path"], second["status"], "model" in second) == ('/no"where', 404, False)


def test_a_client_that_went_away_is_noted_as_499():
    log = io.StringIO()

    async def talk(server):
        server.loop.num_steps_allowed = 0
        task = asyncio.ensure_future(server.complete([3], headers={"x-request-id": "gone"}))
        while not server.loop.running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    ask(talk, access_log=AccessLog(log))
    (line,) = log.getvalue().splitlines()
    assert '"POST /v1/completions" 499 2.000s model=tiny' in line
    assert line.endswith("request_id=gone")


class Stuck(io.StringIO):
    """A file whose writes block until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.free.wait()
        return super().write(text)


def test_a_log_that_takes_nothing_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(access_log, "_MAX_WAITING", 3)
    file = Stuck()

    async def talk(server):
        for number in range(10):
            assert (await server.ask("GET", "/version", headers={"x-request-id": f"r{number}"})).status == 200
            while not file.reached.is_set():
                await asyncio.sleep(0)
        file.free.set()
        while file.getvalue().count("\n") < 3:
            await asyncio.sleep(0)
        await server.ask("GET", "/version", headers={"x-request-id": "last"})

    ask(talk, access_log=AccessLog(file))
    lines = file.getvalue().splitlines()
    assert lines[-1].endswith("request_id=last")
    (note,) = [line for line in lines if "were dropped" in line]
    assert int(note.split()[0]) == 10 - (len(lines) - 2)


def test_a_log_that_fails_ends_nothing():
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    async def talk(server):
        assert (await server.ask("GET", "/version")).status == 200
        assert (await server.ask("GET", "/version")).status == 200

    ask(talk, access_log=AccessLog(Full()))
