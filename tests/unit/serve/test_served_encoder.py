"""What becomes of requests of an encoder that are cancelled, interrupted or refused."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.runtime.encoder_doubles import fake_embedder
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.served_encoder import ServedEncoder
from trtllm_lite.serve.served_engine import ModelSettings


def _texts(*rows: list[int]) -> list[NDArray[np.int32]]:
    return [np.array(row, np.int32) for row in rows]


def _run(use: Any, *, takes_priorities: bool = False) -> None:
    """Await ``use(model, loop)`` for an encoder whose event loop makes no step before it is allowed."""
    embedder = fake_embedder(num_steps_allowed=0)

    async def run() -> None:
        llm: Any = SimpleNamespace(tokenizer=None, encoder=embedder)
        settings = ModelSettings(names=("m",), takes_priorities=takes_priorities)
        await use(ServedEncoder(llm, settings, asyncio.get_running_loop()), embedder.pump.loop)

    try:
        asyncio.run(run())
    finally:
        embedder.close()


def test_requests_are_embedded_and_counted() -> None:
    async def use(model: ServedEncoder, loop: Any) -> None:
        handles = [model.start(texts, 0, None) for texts in (_texts([2], [3, 3]), _texts([4]))]
        asked = [asyncio.ensure_future(model.embedded(handle)) for handle in handles]
        loop.allow(9)
        assert [[row.tolist() for row in await one] for one in asked] == [[[2, 1], [3, 2]], [[4, 1]]]
        with model.counts:
            assert (model.counts.reasons.total(), model.counts.num_prompt_tokens) == (3, 4)
        assert not model.waiting

    _run(use)


def test_a_request_that_is_cancelled_cancels_its_texts() -> None:
    async def use(model: ServedEncoder, loop: Any) -> None:
        asked = asyncio.ensure_future(model.embedded(model.start(_texts([2], [3]), 0, None)))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not loop.waiting
        assert not model.waiting

    _run(use)


def test_a_server_that_ends_cuts_off_what_waits() -> None:
    async def use(model: ServedEncoder, loop: Any) -> None:
        asked = asyncio.ensure_future(model.embedded(model.start(_texts([2]), 0, None)))
        await asyncio.sleep(0)
        for interrupt in list(model.waiting):
            interrupt(ApiError(503, "the server was shut down"))
        with pytest.raises(ApiError, match="the server was shut down"):
            await asked
        assert not loop.waiting

    _run(use)


def test_priorities_need_the_operators_permission() -> None:
    async def refused(model: ServedEncoder, loop: Any) -> None:
        with pytest.raises(ApiError, match="priority is 2, and all requests have one priority here"):
            model.start(_texts([2]), 2, None)
        assert not loop.submitted

    async def taken(model: ServedEncoder, loop: Any) -> None:
        handle = model.start(_texts([2]), 2, None)
        assert loop.submitted[0]["priority"] == 2
        del handle

    _run(refused)
    _run(taken, takes_priorities=True)
