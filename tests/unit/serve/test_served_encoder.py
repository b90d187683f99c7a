"""Which texts an encoder's steps take, and what becomes of requests that fail or are cancelled."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtllm_lite.errors import DeviceError
from trtllm_lite.runtime.session.embedder import EmbedderLimits
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.served_encoder import ServedEncoder
from trtllm_lite.serve.served_engine import ModelSettings


class _Embedder:
    """Embeds each text as its first token; records the steps, the first of which waits for ``go_on``."""

    limits = EmbedderLimits(max_batch_size=3, max_input_len=10, max_num_tokens=10)

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.steps: list[list[list[int]]] = []

    def fit_step(self, num_texts: int, num_tokens: int) -> bool:
        return self.limits.fit(num_texts, num_tokens)

    def step(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        self.steps.append([text.tolist() for text in texts])
        assert self.go_on.wait(60)
        if any(text[0] == 13 for text in texts):
            raise DeviceError("the device failed")
        return np.array([[text[0]] for text in texts], np.float32)


def _texts(*rows: list[int]) -> list[NDArray[np.int32]]:
    return [np.array(row, np.int32) for row in rows]


def _run(use: Any) -> _Embedder:
    """Call ``use`` with an encoder that is in a step of the text [1], and with a function that ends this step."""
    embedder = _Embedder()
    llm: Any = SimpleNamespace(tokenizer=None, embedder=embedder)

    async def run() -> None:
        model = ServedEncoder(llm, ModelSettings(names=("m",)), asyncio.get_running_loop())
        first = asyncio.ensure_future(model.embed(_texts([1])))
        while not embedder.steps:
            await asyncio.sleep(0)
        try:
            await use(model, embedder.go_on.set)
        finally:
            embedder.go_on.set()
        assert (await first)[0].tolist() == [1]

    asyncio.run(run())
    return embedder


async def _begun(*requests: Coroutine[Any, Any, Any]) -> list[asyncio.Future[Any]]:
    """Start the requests, so that their texts are in the queue."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    await asyncio.sleep(0)
    return tasks


def test_steps_take_texts_of_all_requests_in_turn() -> None:
    async def use(model: ServedEncoder, go_on: Any) -> None:
        asked = await _begun(model.embed(_texts([2], [3])), model.embed(_texts([4], [5] * 7, [6] * 4)))
        assert (model.load()["num_requests_running"], model.load()["num_requests_waiting"]) == (1, 5)
        go_on()
        assert [[row.tolist() for row in await one] for one in asked] == [[[2], [3]], [[4], [5], [6]]]
        assert (model.num_texts, model.num_tokens, model.num_steps) == (6, 15, 4)

    assert _run(use).steps == [[[1]], [[2], [4], [3]], [[5] * 7], [[6] * 4]]


def test_a_text_waits_for_no_long_request() -> None:
    """A request of one text is computed soon beside long requests, which still end while short ones keep coming."""

    async def use(model: ServedEncoder, go_on: Any) -> None:
        steps: list[list[list[int]]] = model.embedder.steps  # type: ignore[attr-defined]
        many = await _begun(*(model.embed(_texts(*[[number] * 4] * 30)) for number in (2, 3)))
        go_on()
        while model.num_steps < 9:
            await asyncio.sleep(0)
        num_begun = len(steps)
        (one,) = await _begun(model.embed(_texts([7, 7])))
        await one
        assert [7, 7] in [text for step in steps[num_begun : num_begun + 2] for text in step]
        pending: set[asyncio.Future[Any]] = set(many)
        num_later = 0
        while not all(future.done() for future in many):
            for _ in range(7 - len(pending)):
                pending.add(asyncio.ensure_future(model.embed(_texts([8]))))
                num_later += 1
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert num_later < 2000
        await asyncio.gather(*many, *pending)
        assert num_later > 20

    _run(use)


def test_a_failed_step_fails_its_requests_alone() -> None:
    async def use(model: ServedEncoder, go_on: Any) -> None:
        asked = await _begun(model.embed(_texts([13])), model.embed(_texts([2] * 10)))
        go_on()
        with pytest.raises(DeviceError, match="the device failed"):
            await asked[0]
        assert (await asked[1])[0].tolist() == [2]

    assert len(_run(use).steps) == 3


def test_texts_that_nobody_waits_for_are_left_out() -> None:
    async def use(model: ServedEncoder, go_on: Any) -> None:
        asked = await _begun(model.embed(_texts([2], [3])), model.embed(_texts([4])))
        asked[0].cancel()
        go_on()
        assert (await asked[1])[0].tolist() == [4]
        with pytest.raises(asyncio.CancelledError):
            await asked[0]

    assert _run(use).steps == [[[1]], [[4]]]


def test_a_server_that_ends_cuts_off_what_waits() -> None:
    async def use(model: ServedEncoder, go_on: Any) -> None:
        (asked,) = await _begun(model.embed(_texts([2])))
        for interrupt in list(model.waiting):
            interrupt(ApiError(503, "the server was shut down"))
        with pytest.raises(ApiError, match="the server was shut down"):
            await asked
        del go_on

    with pytest.raises(ApiError, match="the server was shut down"):  # the text whose step was under way
        _run(use)
