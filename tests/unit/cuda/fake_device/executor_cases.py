"""The CUDA executor under the event loop, on a fake driver: graphs, padding, copies, tokens that stay on the device."""

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.toy_engine import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    MAX_SEQ_LEN,
    PAGE,
    POISON,
    VOCAB,
    make_toy_engine,
    successor,
    to_bytes,
)
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, Executor, FinishReason, RequestEnd, sampling
from trtllm_lite.errors import EngineError, LimitError

LIMITS = {
    "max_batch_size": MAX_BATCH_SIZE,
    "max_input_len": 30,
    "max_seq_len": MAX_SEQ_LEN,
    "max_num_tokens": MAX_NUM_TOKENS,
}


@dataclass
class Answer:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    end: RequestEnd | None = None


def greedy(max_tokens: int, **changes: Any) -> Any:
    params = sampling.SamplingParams()
    params.temperature, params.max_tokens, params.ignore_eos = 0.0, max_tokens, True
    for name, value in changes.items():
        setattr(params, name, value)
    return params


def run(loop: EventLoop, requests: list[tuple[list[int], Any]], **arguments: Any) -> list[Answer]:
    """Submit everything at once; returns when all have ended."""
    ids = [loop.submit(np.array(prompt, np.int32), params, **arguments) for prompt, params in requests]
    answers = {request_id: Answer() for request_id in ids}
    while any(answer.end is None for answer in answers.values()):
        polled = loop.poll(10.0)
        assert polled is not None
        for event in polled[0]:
            answers[event.request_id].events.append(event)
            if event.token is not None:
                answers[event.request_id].tokens.append(event.token)
        for end in polled[1]:
            answers[end.request_id].end = end
    return [answers[request_id] for request_id in ids]


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
    """How many tokens come before one that poisons the next."""
    tokens = expected(prompt, num_tokens)
    return tokens.index(POISON) + 1 if POISON in tokens else num_tokens


def check(answer: Answer, prompt: list[int], num_tokens: int) -> None:
    good = clean(prompt, num_tokens)
    assert answer.tokens == expected(prompt, num_tokens)[:good]
    assert answer.end is not None
    assert answer.end.reason == (FinishReason.LENGTH if good == num_tokens else FinishReason.ERROR)


def test_any_batch_gives_the_models_tokens(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(0, 40)
    lengths = [1 + number % 12 for number in range(len(prompts))]
    answers = run(loop, [(prompt, greedy(length)) for prompt, length in zip(prompts, lengths, strict=True)])
    for answer, prompt, length in zip(answers, prompts, lengths, strict=True):
        check(answer, prompt, length)


def test_decode_steps_are_graphs(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    names = (b"graphs", b"captured", b"launched", b"to_device", b"to_host")
    before = {name: fake_driver.fake_count(name) for name in names}
    [answer] = run(loop, [([1, 2, 3], greedy(11))])
    loop.shut_down()
    assert answer.tokens == expected([1, 2, 3], 11)
    done = {name: fake_driver.fake_count(name) - before[name] for name in names}
    # The prompt's launches, and those of the first decode step, which is captured for the other nine. One copy of
    # inputs and one of tokens each.
    assert done[b"captured"] == 4
    assert done[b"launched"] == 8
    assert done[b"graphs"] in (9, 10)  # a step more may be under way when the last token is known
    assert done[b"to_device"] == done[b"to_host"] == done[b"graphs"] + 2


def test_inputs_are_packed(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    before = fake_driver.fake_count(b"to_device_bytes"), fake_driver.fake_count(b"to_device")
    run(EventLoop(executor, **LIMITS), [([1], greedy(20))])
    num_bytes = fake_driver.fake_count(b"to_device_bytes") - before[0]
    assert num_bytes <= 1200 * (fake_driver.fake_count(b"to_device") - before[1])


def test_poisoned_logits_end_their_request_only(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    bad, good, later = run(loop, [([1, POISON], greedy(4)), ([3], greedy(5)), ([POISON, 2], greedy(3))])
    assert bad.end is not None
    assert bad.end.reason == FinishReason.ERROR
    assert "NaN" in bad.end.message
    check(good, [3], 5)
    check(later, [POISON, 2], 3)


def test_rows_sampled_on_the_host_mix_with_others(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(1, 12)
    wants = [greedy(6, logprobs=1) if number % 3 == 0 else greedy(6) for number in range(len(prompts))]
    for answer, prompt, want in zip(run(loop, list(zip(prompts, wants, strict=True))), prompts, wants, strict=True):
        check(answer, prompt, 6)
        for event in answer.events:
            assert (event.logprobs is not None) == (want.logprobs is not None)


def test_logit_bias_is_applied_on_the_host(executor: CudaExecutor) -> None:
    [answer] = run(EventLoop(executor, **LIMITS), [([2, 3], greedy(3, logit_bias=[(40, 100.0)]))])
    assert answer.tokens == [40, 40, 40]


def test_logits_of_prompts(executor: CudaExecutor) -> None:
    prompt = [3, 1, 4, 1, 5] * 6  # longer than a step, so in two chunks
    [answer] = run(EventLoop(executor, **LIMITS), [(prompt, greedy(2))], context_logits=True, generation_logits=True)
    rows = np.concatenate([event.context_logits for event in answer.events if event.context_logits is not None])
    successors = [successor(prompt[: end + 1]) for end in range(len(prompt))]
    np.testing.assert_array_equal(rows.argmax(1), successors)
    generated = [event.generation_logits.argmax() for event in answer.events if event.token is not None]
    assert generated == answer.tokens == expected(prompt, 2)


def test_swapped_and_recomputed_requests_go_on(engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    answers = run(loop, [(prompt, greedy(20)) for prompt in prompts])
    for answer, prompt in zip(answers, prompts, strict=True):
        check(answer, prompt, 20)
    stats = loop.stats()
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0


def test_prefixes_are_shared(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS, enable_block_reuse=True)
    prompt = [5, 4, 3, 2, 1] * 5
    for _ in range(3):
        [answer] = run(loop, [(prompt, greedy(4))])
        check(answer, prompt, 4)
    assert loop.stats()["hit_tokens"] > 0


def test_memory_is_given_back(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    before = fake_driver.fake_allocated()
    executor = CudaExecutor(engine)
    run(EventLoop(executor, **LIMITS), [([1], greedy(4))])
    memory = executor.memory
    assert memory["weights"] == 0
    assert fake_driver.fake_allocated() - before == memory["kv_cache"] + memory["workspace"]
    del executor
    assert fake_driver.fake_allocated() == before


def test_too_large_a_cache_names_what_is_free(engine: Engine) -> None:
    with pytest.raises(LimitError, match=r"KV cache: expected \d+ MiB free on Fake GPU, found 10\d\d MiB of 1024 MiB"):
        CudaExecutor(engine, num_blocks=1 << 28)


def test_another_gpu_is_named(tmp_path: Path) -> None:
    toy = make_toy_engine()
    for kernel in toy.plan["kernels"]:
        kernel["cubins"] = {"sm_80": kernel["name"]}
    for program in toy.plan["programs"]:
        program["arch"] = "sm_80"
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    with pytest.raises(EngineError, match=r"engine for Fake GPU \(sm_90\), found one for sm_80.*--target sm_90"):
        CudaExecutor(Engine(str(path)))


def test_an_engine_runs_on_its_own_kind_of_device(engine: Engine) -> None:
    with pytest.raises(EngineError, match="built for cpu, found one for cuda"):
        Executor(engine)


def test_time_step_lists_the_instructions(executor: CudaExecutor) -> None:
    times = executor.time_step(num_rows=3, num_tokens=2, past_len=5)
    assert [name for name, _ in times] == ["embed", "attend", "attend", "score", "sample"]
    with pytest.raises(LimitError, match="num_rows: expected 1 to 6, found 7"):
        executor.time_step(num_rows=7)


def test_beam_searches_are_advanced_on_the_host(executor: CudaExecutor) -> None:
    beams = sampling.BeamSearchParams()
    beams.num_beams = 3
    prompts = [[4, 8, 15], [2], [30]]  # no beam comes near the poison
    wants = [(prompt, greedy(5, temperature=1.0)) for prompt in prompts]
    for answer, prompt in zip(run(EventLoop(executor, **LIMITS), wants, beams=beams), prompts, strict=True):
        assert answer.end is not None
        assert answer.end.reason == FinishReason.LENGTH, answer.end.message
        hypotheses = [found for event in answer.events for found in event.hypotheses]
        # The toy's best token leads its neighbours by one; every step away from it costs as much.
        assert hypotheses[0][0] == expected(prompt, 5)
        assert len(hypotheses) == 3
        assert all(better[1] >= worse[1] for better, worse in pairwise(hypotheses))


def test_products_are_timed_within_the_engines_limits(executor: CudaExecutor) -> None:
    assert executor.time_products(num_tokens=MAX_NUM_TOKENS) == []  # the toy engine has none
    with pytest.raises(LimitError, match=f"num_tokens: expected 1 to {MAX_NUM_TOKENS}, found {MAX_NUM_TOKENS + 1}"):
        executor.time_products(num_tokens=MAX_NUM_TOKENS + 1)
    with pytest.raises(LimitError, match="candidates: expected 1 to 1000, found 0"):
        executor.time_products(num_tokens=1, candidates=0)
