"""Choices are followed as fast as the client reads, and cancelled when nobody follows them any more."""

import asyncio
from types import SimpleNamespace

import pytest

from trtllm_lite.errors import EngineError
from trtllm_lite.serve.following import stream


class Handle:
    """A sequence whose tokens are numbers."""

    def __init__(self) -> None:
        self.responses, self.ended, self.error, self.num_cancelled = [], False, None, 0

    def cancel(self) -> None:
        self.num_cancelled += 1


class Model:
    """Tells listeners of the handles' news."""

    def __init__(self) -> None:
        self.loop, self._listeners = asyncio.get_running_loop(), {}
        self.waiting = set()

    def listen(self, handle, listener) -> None:
        self._listeners[handle] = listener
        listener(handle)

    def forget(self, handle) -> None:
        del self._listeners[handle]

    def add(self, handle, *tokens, ended=False) -> None:
        handle.responses += tokens
        handle.ended = ended
        self._listeners[handle](handle)


def following(scenario):
    """Run a scenario with a model, two handles, the connection, what was taken, and the task that follows."""

    async def run() -> None:
        model, handles, taken = Model(), [Handle(), Handle()], []
        connection = SimpleNamespace(paused=False, on_resume=None)
        generation = SimpleNamespace(handles=handles)

        def take(number, steps, handle) -> None:
            assert handle is handles[number]
            taken.append((number, list(steps)))

        task = asyncio.ensure_future(stream(model, [generation], take, connection))
        await asyncio.sleep(0)
        await scenario(model, handles, connection, taken, task)

    asyncio.run(run())


def test_what_comes_while_the_client_is_behind_is_taken_at_once():
    async def scenario(model, handles, connection, taken, task) -> None:
        model.add(handles[0], 1)
        connection.paused = True
        for token in range(2, 500):
            model.add(handles[0], token)
        model.add(handles[1], 7, ended=True)
        assert taken == [(0, [1])]
        connection.paused = False
        connection.on_resume()
        assert taken == [(0, [1]), (0, list(range(2, 500))), (1, [7])]
        model.add(handles[0], 500, ended=True)
        await task
        assert [handle.num_cancelled for handle in handles] == [0, 0]
        assert connection.on_resume is None

    following(scenario)


def test_the_others_are_cancelled_when_one_fails():
    async def scenario(model, handles, _, taken, task) -> None:
        handles[1].error = EngineError("broken")
        model.add(handles[1], ended=True)
        with pytest.raises(EngineError, match="broken"):
            await task
        assert [handle.num_cancelled for handle in handles] == [1, 0]
        assert taken == []

    following(scenario)


def test_all_are_cancelled_when_the_client_goes_away():
    async def scenario(model, handles, _, taken, task) -> None:
        model.add(handles[0], 1)
        model.add(handles[1], 2, ended=True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [handle.num_cancelled for handle in handles] == [1, 0]
        assert taken == [(0, [1]), (1, [2])]

    following(scenario)
