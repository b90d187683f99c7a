"""Embedder: what becomes of texts that are embedded, fail, are cancelled or nobody waits for."""

import gc
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.runtime.encoder_doubles import fake_embedder
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError
from trtllm_lite.runtime.session.embedder import Embedder


def _texts(*rows: list[int]) -> list[NDArray[np.int32]]:
    return [np.array(row, np.int32) for row in rows]


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    made = fake_embedder()
    yield made
    made.close()


@pytest.fixture
def paused() -> Iterator[Embedder]:
    """An embedder that makes no step before the loop allows it."""
    made = fake_embedder(num_steps_allowed=0)
    yield made
    made.close()


def test_texts_of_several_calls_are_embedded(embedder: Embedder) -> None:
    handles = [embedder.submit(_texts([row], [row, 7]), priority=row) for row in range(3)]
    assert [[row.tolist() for row in handle.result()] for handle in handles] == [[[r, 1], [r, 2]] for r in range(3)]
    assert embedder.embed(_texts([5, 5, 5])).tolist() == [[5, 3]]
    assert [each["priority"] for each in embedder.pump.loop.submitted] == [0, 1, 2, 0]
    assert len({each["flow"] for each in embedder.pump.loop.submitted}) == 4


def test_many_texts_are_submitted_in_groups_of_one_flow(embedder: Embedder) -> None:
    texts = _texts(*[[number] for number in range(1300)])
    assert embedder.embed(texts, priority=3, timeout=60)[:, 0].tolist() == list(range(1300))
    assert [each["count"] for each in embedder.pump.loop.submitted] == [512, 512, 276]
    assert len({(each["flow"], each["priority"], each["timeout"]) for each in embedder.pump.loop.submitted}) == 1


def test_arguments_are_checked_before_anything_runs(embedder: Embedder) -> None:
    with pytest.raises(LimitError, match="text 1 has 11 tokens, which exceeds max_num_tokens 10: shorten it"):
        embedder.submit(_texts([1], [2] * 11))
    for wrong in ({"priority": 101}, {"priority": 0.5}, {"timeout": 0}, {"timeout": "soon"}):
        given: Any = wrong
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            embedder.submit(_texts([1]), **given)
    assert not embedder.pump.loop.submitted


def test_a_refused_call_leaves_nothing(paused: Embedder) -> None:
    paused.pump.loop.max_requests = 3
    first = paused.submit(_texts([1], [2]))
    with pytest.raises(OverloadedError):
        paused.submit(_texts([3], [4]))
    paused.pump.loop.allow(9)
    assert len(first.result()) == 2


def test_a_failed_text_fails_its_call_and_ends_the_others(paused: Embedder) -> None:
    paused.pump.loop.fail = "an embedding is not finite"
    handle, other = paused.submit(_texts([1], [2], [3])), paused.submit(_texts([4]))
    paused.pump.loop.allow(1)
    with pytest.raises(EngineError, match="text 0 was not embedded: an embedding is not finite"):
        handle.result()
    paused.pump.loop.fail = None
    paused.pump.loop.allow(9)
    assert other.result()[0].tolist() == [4, 1]


@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        ("CANCELLED", EngineError, "the text was cancelled"),
        ("TIMED_OUT", LimitError, "timeout: the text was not embedded within 0.5 s: wait longer, or send less"),
    ],
)
def test_ends_without_an_embedding(paused: Embedder, reason: str, error: Any, message: str) -> None:
    handle = paused.submit(_texts([1]), timeout=0.5)
    paused.pump.loop.cancel(1, reason)
    with pytest.raises(error, match=re.escape(message)):
        handle.result()


def test_texts_that_nobody_waits_for_are_cancelled(paused: Embedder) -> None:
    told: list[Any] = []
    all_told = threading.Event()

    def tell(reason: Any, timings: Any) -> None:
        told.append((reason and reason.value, timings.num_prompt_tokens))
        if len(told) == 3:
            all_told.set()

    handle = paused.submit(_texts([1], [2, 2], [3, 3, 3]), on_end=tell)
    del handle
    gc.collect()
    assert all_told.wait(60)
    assert told == [("cancelled", 1), ("cancelled", 2), ("cancelled", 3)]


def test_a_pump_that_fails_ends_all_calls(paused: Embedder) -> None:
    handle = paused.submit(_texts([1], [2]))
    assert not paused.is_broken
    with paused.pump.loop.changed:
        paused.pump.loop.broken = RuntimeError("nothing can be polled")
        paused.pump.loop.changed.notify()
    with pytest.raises(EngineError, match=r"the thread that delivers results failed .*nothing can be polled"):
        handle.result()
    with pytest.raises(EngineError, match="the thread that delivers results failed"):
        paused.submit(_texts([1]))
    assert paused.is_broken


def test_a_device_that_fails_breaks_the_embedder(embedder: Embedder) -> None:
    embedder.pump.loop.device_failed = True
    assert embedder.is_broken


def test_an_embedder_that_is_closed_cancels_what_waits(paused: Embedder) -> None:
    handle = paused.submit(_texts([1]))
    paused.close()
    with pytest.raises(EngineError, match="cancelled"):
        handle.result()
    with pytest.raises(LimitError, match="shut down"):
        paused.submit(_texts([1]))
