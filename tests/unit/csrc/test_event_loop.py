"""EventLoop over the CPU executor: each request's tokens and outputs are those of a run alone, whatever else runs."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import rounds
from tests.unit.csrc.tiny_engine import MAX_NUM_TOKENS, MAX_SEQ_LEN, TOKENS_PER_BLOCK, VOCAB, make_tiny_engine
from trtllm_lite import _core, _testing
from trtllm_lite._core import CpuExecutor, Engine, EventLoop, FinishReason, RequestEnd, sampling
from trtllm_lite.errors import ArgumentError, EngineError, LimitError

MAX_BATCH_SIZE = 4
POISON = VOCAB - 1  # the token whose embedding is NaN
LIMITS = {
    "max_batch_size": MAX_BATCH_SIZE,
    "max_input_len": 24,
    "max_seq_len": MAX_SEQ_LEN,
    "max_num_tokens": MAX_NUM_TOKENS,
}
Prompt = list[int]


def write_engine(path: Path) -> None:
    """The tiny engine for batches of 4 that gathers the logits of whole prompts, with one poisoned token."""
    tiny = make_tiny_engine()
    tiny.set_limits(MAX_BATCH_SIZE, num_logits=MAX_NUM_TOKENS)
    tiny.poison(POISON)
    path.write_bytes(tiny.to_bytes())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The engine of :func:`write_engine`."""
    path = tmp_path_factory.mktemp("engine") / "rank0.engine"
    write_engine(path)
    return Engine(str(path))


@pytest.fixture(scope="module")
def reference(engine: Engine) -> "Reference":
    """The results that requests get alone."""
    return Reference(engine)


class Reference:
    """One request at a time, step by step over an executor: no scheduler, no cache manager."""

    def __init__(self, engine: Engine) -> None:
        self._executor = CpuExecutor(engine, num_threads=1)
        self._table = np.arange(MAX_SEQ_LEN // TOKENS_PER_BLOCK, dtype=np.int32)[None]

    def logits(self, tokens: Prompt) -> np.ndarray:
        """float32[len(tokens), VOCAB]."""
        chunks = [tokens[i : i + MAX_NUM_TOKENS] for i in range(0, len(tokens), MAX_NUM_TOKENS)]
        past, rows = 0, []
        for chunk in chunks:
            arrays = [np.array(values, np.int32) for values in (chunk, [len(chunk)], [past])]
            rows.append(_core.step(self._executor, *arrays, self._table, np.arange(len(chunk), dtype=np.int32)))
            past += len(chunk)
        return np.concatenate(rows)

    def generate(self, prompt: Prompt, params: Any) -> Prompt:
        """The tokens after ``prompt``."""
        sampler = _testing.Sampler(1, VOCAB)
        sampler.set_slot(0, params, prompt)
        tokens: Prompt = []
        while True:
            sampled = sampler.sample_rows([0], self.logits(prompt + tokens)[-1:])[0]
            tokens.append(sampled.token)
            if _testing.finish_reason(params, prompt, tokens) is not None:
                return tokens


@dataclass
class Heard:
    """The events of one request."""

    tokens: Prompt = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    end: RequestEnd | None = None


def make_params(max_tokens: int, temperature: float = 0.0, **fields: Any) -> Any:
    """SamplingParams from keywords. The poisoned token is never sampled."""
    params = sampling.SamplingParams()
    params.bad_words = [[POISON]]
    for name, value in {"max_tokens": max_tokens, "temperature": temperature, **fields}.items():
        setattr(params, name, value)
    return params


def open_loop(engine: Engine, num_blocks: int = 0, **options: Any) -> EventLoop:
    """An event loop over an executor of its own."""
    return EventLoop(CpuExecutor(engine, num_threads=2, num_blocks=num_blocks), **(LIMITS | options))


def submit(loop: EventLoop, prompt: Prompt, params: Any, **options: Any) -> int:
    """Submit the request; returns its id."""
    return loop.submit(np.array(prompt, np.int32), params, **options)


def listen(loop: EventLoop) -> Iterator[Any]:
    """Every event until the loop is closed."""
    while (events := loop.poll(60.0)) is not None:
        tokens, ends = events
        yield from (*tokens, *ends)


def drain(loop: EventLoop) -> dict[int, Heard]:
    """Return the events of every request; afterwards every block is free."""
    loop.shut_down(drain=True)
    heard: dict[int, Heard] = defaultdict(Heard)
    for event in listen(loop):
        request = heard[event.request_id]
        assert request.end is None
        if isinstance(event, RequestEnd):
            request.end = event
            continue
        request.events.append(event)
        if event.tokens:
            assert event.index == len(request.tokens)
            request.tokens += event.tokens
    stats = loop.stats()
    assert (stats["num_running"], stats["num_waiting"], stats["num_used_blocks"]) == (0, 0, 0)
    return heard


PROMPTS = st.lists(st.integers(0, POISON - 1), min_size=1, max_size=24)


@settings(deadline=None, max_examples=rounds(40))
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=8),
    shared=st.lists(st.integers(0, POISON - 1), max_size=20),
    counts=st.lists(st.integers(1, 20), min_size=8, max_size=8),
    temperature=st.sampled_from([0.0, 0.8]),
    num_blocks=st.integers(3, 12),
    num_host_blocks=st.sampled_from([0, 6]),
    max_num_tokens=st.integers(MAX_BATCH_SIZE, MAX_NUM_TOKENS),
    max_utilization=st.booleans(),
)
def test_tokens_depend_on_the_request_alone(
    engine,
    reference,
    prompts,
    shared,
    counts,
    temperature,
    num_blocks,
    num_host_blocks,
    max_num_tokens,
    max_utilization,
):
    """Batches, chunks and shared prefixes vary, and blocks are so few that requests wait, are recomputed or swapped."""
    loop = open_loop(
        engine,
        num_blocks,
        num_host_blocks=num_host_blocks,
        max_num_tokens=max_num_tokens,
        max_utilization=max_utilization,
        enable_block_reuse=True,
    )
    wanted = {}
    for row, (end, count) in enumerate(zip(prompts, counts, strict=False)):
        prompt = (shared + end)[:24]
        params = make_params(count, temperature, seed=row, repetition_penalty=1.1)
        wanted[submit(loop, prompt, params)] = reference.generate(prompt, params)
    heard = drain(loop)
    assert {name: request.tokens for name, request in heard.items()} == wanted
    assert all(request.end.reason == FinishReason.LENGTH for request in heard.values())


@pytest.mark.parametrize("max_num_tokens", [4, 7, 32])
def test_logits_and_logprobs(engine, reference, max_num_tokens):
    loop = open_loop(engine, max_num_tokens=max_num_tokens)
    prompt = list(range(3, 20))
    params = make_params(5, logprobs=3, prompt_logprobs=2)
    asked = submit(loop, prompt, params, context_logits=True, generation_logits=True)
    plain = submit(loop, [5, 6], make_params(9))
    heard = drain(loop)
    assert all(event.context_logits is None and not event.logprobs for event in heard[plain].events)
    tokens, events = heard[asked].tokens, heard[asked].events
    logits = reference.logits(prompt + tokens)
    logprobs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    chunks = [event.context_logits for event in events if event.context_logits is not None]
    np.testing.assert_array_equal(np.concatenate(chunks), logits[: len(prompt)])
    of_prompt = [entry for event in events for entry in event.prompt_logprobs]
    assert len(of_prompt) == len(prompt) - 1
    for position, entry in enumerate(of_prompt):
        assert entry.logprob == pytest.approx(logprobs[position, prompt[position + 1]], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-logprobs[position], kind="stable")[:2].tolist()
    sampled = [event for event in events if event.tokens]
    for row, event in zip(range(len(prompt) - 1, len(logits) - 1), sampled, strict=True):
        np.testing.assert_array_equal(event.generation_logits, logits[row : row + 1])
        assert event.logprobs[0].logprob == pytest.approx(logprobs[row, event.tokens[0]], abs=1e-5)
        assert len(event.logprobs[0].top) == 3


def test_logits_that_are_not_finite_end_their_request_only(engine, reference):
    loop = open_loop(engine)
    prompts = [[3, 4], [5, POISON, 6], [7]]
    ids = [submit(loop, prompt, make_params(12)) for prompt in prompts]
    heard = drain(loop)
    assert heard[ids[1]].end.reason == FinishReason.ERROR
    assert "NaN" in heard[ids[1]].end.message
    assert not heard[ids[1]].tokens
    for row in (0, 2):
        assert heard[ids[row]].tokens == reference.generate(prompts[row], make_params(12))


def test_end_tokens_and_stop_sequences(engine, reference):
    whole = reference.generate([9], make_params(12, 1.5, seed=4))
    cut = next(i for i in range(2, 12) if whole[i] not in whole[:i])
    loop = open_loop(engine)
    by_end = submit(loop, [9], make_params(12, 1.5, seed=4, end_ids=[whole[cut]]))
    by_stop = submit(loop, [9], make_params(12, 1.5, seed=4), stop_sequences=[whole[cut - 1 : cut + 1]])
    ignored = submit(loop, [9], make_params(12, 1.5, seed=4, end_ids=[whole[cut]], ignore_eos=True))
    heard = drain(loop)
    assert [heard[name].end.reason for name in (by_end, by_stop, ignored)] == [
        FinishReason.END_ID,
        FinishReason.STOP_SEQUENCE,
        FinishReason.LENGTH,
    ]
    assert heard[by_end].tokens == heard[by_stop].tokens == whole[: cut + 1]
    assert heard[ignored].tokens == whole


def test_cancelling_and_timeouts_leave_the_others_alone(engine, reference):
    loop = open_loop(engine)
    cancelled = submit(loop, [3], make_params(40))
    late = submit(loop, [4], make_params(40), timeout=1e-9)
    kept = submit(loop, [5], make_params(40))
    assert loop.cancel(cancelled)
    assert not loop.cancel(cancelled + 1000)
    heard = drain(loop)
    assert heard[cancelled].end.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    assert heard[late].end.reason == FinishReason.TIMED_OUT
    assert heard[kept].tokens == reference.generate([5], make_params(40))


def test_shutting_down_without_draining_ends_all_at_once(engine):
    loop = open_loop(engine)
    ids = {submit(loop, [3 + row], make_params(40)) for row in range(9)}
    loop.shut_down(drain=False)
    assert {event.request_id for event in listen(loop) if isinstance(event, RequestEnd)} == ids
    with pytest.raises(LimitError):
        submit(loop, [3], make_params(1))


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "prompt length"),
        ([0] * 25, {}, "max_input_len"),
        ([VOCAB], {}, "tokenizer"),
        ([1], {"max_tokens": MAX_SEQ_LEN}, "max_seq_len"),
    ],
)
def test_requests_beyond_a_limit_are_refused(engine, prompt, fields, message):
    loop = open_loop(engine)
    with pytest.raises(LimitError, match=message):
        submit(loop, prompt, make_params(**({"max_tokens": 2} | fields)))
    assert not drain(loop)


def test_bad_parameters_end_their_request_only(engine, reference):
    loop = open_loop(engine)
    bad = submit(loop, [3], make_params(4, top_p=7.0))
    good = submit(loop, [4], make_params(4))
    heard = drain(loop)
    assert heard[bad].end.reason == FinishReason.ERROR
    assert "top_p" in heard[bad].end.message
    assert heard[good].tokens == reference.generate([4], make_params(4))


@pytest.mark.parametrize("limits", [{"max_batch_size": 5}, {"max_seq_len": 49}, {"max_num_tokens": 3}])
def test_limits_beyond_the_engine_are_refused(engine, limits):
    with pytest.raises(LimitError, match=next(iter(limits))):
        open_loop(engine, **limits)


def test_an_engine_that_is_written_to_takes_no_more_requests(tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    write_engine(path)
    loop = open_loop(Engine(str(path)))
    submit(loop, [1, 2], make_params(2))
    path.rename(tmp_path / "moved")
    path.write_bytes(b"another file of the same name is nothing to us")
    submit(loop, [1, 2], make_params(2))
    os.utime(tmp_path / "moved", ns=(0, 0))
    with pytest.raises(EngineError, match="found that it has been written to since"):
        submit(loop, [1, 2], make_params(2))
    assert len(drain(loop)) == 2


def test_numbers_that_no_machine_has_are_refused_by_name(engine: Engine) -> None:
    with pytest.raises(ArgumentError, match=r"num_threads: expected 1 to 1024, or 0 for all cores, found 2147483648"):
        CpuExecutor(engine, num_threads=1 << 31)
    with pytest.raises(LimitError, match=r"host_cache_size in KV blocks: expected 0 to \d+, found 10{15};"):
        open_loop(engine, num_host_blocks=10**15)
    params = sampling.SamplingParams()
    for name in ("end_ids", "stop_token_ids"):
        for token in (1 << 31, 10**40):
            message = f"{name}: expected token ids of the vocabulary, found {token}, which"
            with pytest.raises(ArgumentError, match=message):
                setattr(params, name, [token])
