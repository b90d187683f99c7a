"""Which rows of the caches a step computes, and that it leaves the others as they are."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.models import VOCAB_SIZE, tiny_tokenizer
from tests.unit.tensorrt.fake_tensorrt import FakeTensorRt
from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams
from trtllm_lite.runtime.tensorrt import network
from trtllm_lite.runtime.text.tokenizer import Tokenizer

_MAX_BATCH_SIZE, _MAX_SEQ_LEN = 8, 64


def _next(history: Sequence[int]) -> int:
    """The next token, which depends on every token of the history."""
    value = 17
    for token in history:
        value = (value * 31 + int(token) + 1) % 1_000_003
    return value % VOCAB_SIZE


class _Histories:
    """A network whose caches hold the tokens themselves."""

    def __init__(self, num_rows: int) -> None:
        self.memory = {"weights": 0, "kv_cache": 0, "workspace": 0}
        self.rows = np.full((num_rows, _MAX_SEQ_LEN), -1, np.int32)
        self.batches: list[int] = []

    def step(self, generation: bool, first_row: int, past: Any, tokens: Any, *last: Any) -> None:
        wanted, outputs, to = last
        count, width = tokens.shape
        assert width == 1 if generation else count == 1
        assert len(wanted) == max(1, len(outputs))
        for row in range(count):
            self.rows[first_row + row, past[row] : past[row] + width] = tokens[row]
        for index, output in zip(wanted, outputs, strict=False):
            row, position = divmod(int(index), width)
            to[output] = 0
            to[output, _next(self.rows[first_row + row, : past[row] + position + 1])] = 1
        if generation:
            self.batches.append(count)

    def copy_row(self, source: int, to: int) -> None:
        self.rows[to] = self.rows[source]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, trt: FakeTensorRt, build: Callable[..., Path]) -> SimpleNamespace:
    """An engine whose network is a :class:`_Histories`."""
    del trt
    made = SimpleNamespace(network=None)

    def open_network(engine: Any, manifest: Any, num_rows: int) -> _Histories:
        del engine, manifest
        made.network = _Histories(num_rows)
        return made.network

    monkeypatch.setattr(network, "open_network", open_network)
    made.llm = LLM(build(max_batch_size=_MAX_BATCH_SIZE, max_seq_len=_MAX_SEQ_LEN))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_every_request_gets_its_own_tokens(seed: int, runs: SimpleNamespace) -> None:
    """Prompts in chunks beside generation, rows that fall idle and are taken again, requests that are given up."""
    draw = random.Random(seed)
    futures = []
    for _ in range(60):
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.choice([1, 2, 5, 16, 17, 32]))]
        length = draw.choice([1, 2, 9, _MAX_SEQ_LEN - len(prompt)])
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        futures.append((prompt, length, runs.llm.generate_async(prompt, params)))
        if draw.randrange(6) == 0:
            futures.pop(draw.randrange(len(futures)))[2].abort()
    for prompt, length, future in futures:
        history = list(prompt)
        for _ in range(length):
            history.append(_next(history))
        assert future.result().outputs[0].token_ids == history[len(prompt) :]
    assert max(runs.network.batches) == _MAX_BATCH_SIZE


def test_a_lone_request_computes_one_row(runs: SimpleNamespace) -> None:
    """The request may also lie in the last row."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    runs.llm.generate([[number] for number in range(_MAX_BATCH_SIZE)], params)
    runs.network.batches.clear()
    runs.llm.generate([[5, 6]], params)
    assert runs.network.batches == [1, 1, 1]


def test_a_grammar_guides_its_request_alone(runs: SimpleNamespace) -> None:
    runs.llm.session.tokenizer = Tokenizer(tiny_tokenizer(), {})
    free = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    form = GuidedDecodingParams(choice=["the fox", "a lazy dog"])
    guided = SamplingParams(temperature=0, max_tokens=20, guided_decoding=form)
    outputs = runs.llm.generate([[5], [6], [7]], [free, guided, free])
    assert outputs[1].outputs[0].text in form.choice
    assert outputs[1].outputs[0].finish_reason == "stop"
    assert [outputs[row].outputs[0].token_ids[0] for row in (0, 2)] == [_next([5]), _next([7])]
