"""Requests to an event loop over the toy engine, and the tokens that the toy model gives."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.unit.cuda.toy_engine import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    MAX_SEQ_LEN,
    POISON,
    VOCAB,
    successor,
)
from trtllm_lite import _testing
from trtllm_lite._core import EventLoop, FinishReason, RequestEnd, sampling

LIMITS = {
    "max_batch_size": MAX_BATCH_SIZE,
    "max_input_len": 30,
    "max_seq_len": MAX_SEQ_LEN,
    "max_num_tokens": MAX_NUM_TOKENS,
}
SECONDS_TO_AN_EVENT = 60.0  # enough for a busy machine


@dataclass
class Answer:
    """The result of a request."""

    tokens: list[int] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    end: RequestEnd | None = None


def greedy(max_tokens: int, **changes: Any) -> Any:
    params = sampling.SamplingParams()
    params.temperature, params.max_tokens, params.ignore_eos = 0.0, max_tokens, True
    for name, value in changes.items():
        setattr(params, name, value)
    return params


@contextmanager
def held(fake_driver: ctypes.CDLL) -> Iterator[None]:
    """Let no step end inside the block, so that requests submitted in it run side by side on any machine."""
    fake_driver.fake_hold(1)
    try:
        yield
    finally:
        fake_driver.fake_hold(0)


def run(
    loop: EventLoop,
    requests: list[tuple[list[int], Any]],
    fake_driver: ctypes.CDLL | None = None,
    each: list[dict[str, Any]] | None = None,
    **arguments: Any,
) -> list[Answer]:
    """Submit all requests, before the first step ends if ``fake_driver`` is given; return the ended answers.

    ``each`` holds additional arguments for each request.
    """
    own = [{}] * len(requests) if each is None else each
    with nullcontext() if fake_driver is None else held(fake_driver):
        ids = [
            loop.submit(np.array(prompt, np.int32), params, **arguments, **more)
            for (prompt, params), more in zip(requests, own, strict=True)
        ]
    answers = {request_id: Answer() for request_id in ids}
    collect(loop, answers)
    return list(answers.values())


def collect(loop: EventLoop, answers: dict[int, Answer], after_each: Callable[[], None] = lambda: None) -> None:
    """Wait until all requests of ``answers`` have ended; call ``after_each`` after each poll."""
    while any(answer.end is None for answer in answers.values()):
        polled = loop.poll(SECONDS_TO_AN_EVENT)
        assert polled is not None
        assert any(polled) or loop.short_of_blocks, f"no event within {SECONDS_TO_AN_EVENT} s"
        for event in polled[0]:
            answers[event.request_id].events.append(event)
            answers[event.request_id].tokens += event.tokens
        for end in polled[1]:
            answers[end.request_id].end = end
        after_each()


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(successor(tokens))
    return tokens[len(prompt) :]


def random_prompts(seed: int, count: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    tokens = [token for token in range(VOCAB) if token != POISON]
    return [generator.choice(tokens, generator.integers(1, 28)).tolist() for _ in range(count)]


def clean(prompt: list[int], num_tokens: int) -> int:
    """The number of tokens before one that poisons the next."""
    tokens = expected(prompt, num_tokens)
    return tokens.index(POISON) + 1 if POISON in tokens else num_tokens


def check(answer: Answer, prompt: list[int], num_tokens: int) -> None:
    good = clean(prompt, num_tokens)
    assert answer.tokens == expected(prompt, num_tokens)[:good]
    assert answer.end is not None
    assert answer.end.reason == (FinishReason.LENGTH if good == num_tokens else FinishReason.ERROR)


def logits_after(tokens: list[int]) -> np.ndarray:
    """The toy model's logits, float32[VOCAB]."""
    return -np.abs(np.arange(VOCAB, dtype=np.float32) - successor(tokens))


def continuation(prompt: list[int], params: Any) -> list[int]:
    """The greedy tokens that the CPU's logit processors leave."""
    generated: list[int] = []
    for _ in range(params.max_tokens):
        logits = logits_after(prompt + generated)
        generated.append(int(np.argmax(_testing.processed(params, prompt, generated, logits))))
        if generated[-1] == POISON:
            break
    return generated
