"""Sampling by the CUDA executor on a fake driver: on the device if it supports the parameters, else on the host."""

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.fake_device.requests import (
    LIMITS,
    check,
    continuation,
    expected,
    greedy,
    logits_after,
    random_prompts,
    run,
)
from tests.unit.cuda.toy_engine import (
    MAX_SEQ_LEN,
    PAGE,
    POISON,
    VOCAB,
    successor,
)
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, FinishReason, sampling


def test_poisoned_logits_end_their_request_only(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    bad, good, later = run(loop, [([1, POISON], greedy(4)), ([3], greedy(5)), ([POISON, 2], greedy(3))])
    assert bad.end is not None
    assert bad.end.reason == FinishReason.ERROR
    assert "NaN" in bad.end.message
    check(good, [3], 5)
    check(later, [POISON, 2], 3)


EDITS: list[dict[str, Any]] = [
    {"logit_bias": [(40, 3.0), (3, -2.0)]},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": 0.4},
    {"bad_words": [[7], [11], [POISON]], "frequency_penalty": 2.0},
    {"min_tokens": 5, "stop_token_ids": [1, 2, 4, 8, 16, 32], "end_ids": [30, 31], "ignore_eos": False},
    {"repetition_penalty": 0.7, "presence_penalty": -1.0, "logit_bias": [(12, 4.0)], "bad_words": [[40]]},
    {},
]


def check_edits(loop: EventLoop, prompts: list[list[int]], length: int, fake_driver: ctypes.CDLL | None = None) -> None:
    wants = [greedy(length, **EDITS[number % len(EDITS)]) for number in range(len(prompts))]
    answers = run(loop, list(zip(prompts, wants, strict=True)), fake_driver)
    for answer, prompt, want in zip(answers, prompts, wants, strict=True):
        tokens = continuation(prompt, want)
        stops = set() if want.ignore_eos else {*want.stop_token_ids, *want.end_ids}
        end = next((i for i, token in enumerate(tokens) if token in stops and i >= want.min_tokens), len(tokens))
        assert answer.tokens == tokens[: end + 1]


def test_penalties_bias_and_bans_happen_on_the_device(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    before = fake_driver.fake_count(b"to_host_bytes"), fake_driver.fake_count(b"to_host")
    check_edits(EventLoop(executor, **LIMITS), [prompt[:6] for prompt in random_prompts(3, 28)], 9)
    num_bytes = fake_driver.fake_count(b"to_host_bytes") - before[0]
    assert num_bytes <= 8 * 4 * (fake_driver.fake_count(b"to_host") - before[1])  # tokens only


@pytest.mark.parametrize(("num_others", "num_ended"), [(0, 1), (8, 1), (9, 0)])
def test_the_device_knows_what_ends_a_sequence(
    fake_driver: ctypes.CDLL, executor: CudaExecutor, num_others: int, num_ended: int
) -> None:
    """The next step is launched before the host sees the end. The device knows only the first of many stop tokens."""
    tokens = expected([1, 2, 3], 9)
    others = [token for token in range(VOCAB) if token not in tokens][:num_others]
    before = fake_driver.fake_count(b"ended")
    loop = EventLoop(executor, **LIMITS)
    [answer] = run(loop, [([1, 2, 3], greedy(9, stop_token_ids=[*others, tokens[4]]))])
    run(loop, [([4], greedy(1))])  # its step ends after the step that followed the end
    loop.shut_down()
    assert answer.tokens == tokens[:5]
    assert answer.end is not None
    assert answer.end.reason == FinishReason.END_ID
    assert fake_driver.fake_count(b"ended") - before == num_ended


def test_what_follows_an_end_is_shared_with_nobody(executor: CudaExecutor) -> None:
    """The end token fills a block, but the device has not computed the keys and values of this token correctly."""
    prompt, loop = [1, 2, 3], EventLoop(executor, **LIMITS, enable_block_reuse=True)
    tokens = expected(prompt, 2 * PAGE - len(prompt))
    [answer] = run(loop, [(prompt, greedy(9, stop_token_ids=[tokens[-1]]))])
    assert answer.tokens == tokens
    next_turn = [*prompt, *tokens, 7, 9]
    [answer] = run(loop, [(next_turn, greedy(4))])
    check(answer, next_turn, 4)
    assert loop.stats()["hit_tokens"] == PAGE


def test_sequences_of_more_tokens_than_the_device_counts(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    before = fake_driver.fake_count(b"to_host_bytes")
    check_edits(EventLoop(executor, **LIMITS), random_prompts(4, 14), 12)
    assert fake_driver.fake_count(b"to_host_bytes") - before > VOCAB * 4


def test_preempted_sequences_keep_their_counts(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    check_edits(loop, [prompt[:3] for prompt in random_prompts(6, 14)], 18, fake_driver)
    stats = loop.stats()
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0


@pytest.mark.parametrize("arguments", [{}, {"generation_logits": True}], ids=["device", "host"])
def test_log_probabilities(executor: CudaExecutor, arguments: dict[str, bool]) -> None:
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(1, 12)
    wants = [
        greedy(6, logprobs=number % 4, logit_bias=[(20, 5.0)]) if number % 3 else greedy(6) for number in range(12)
    ]
    answers = run(loop, list(zip(prompts, wants, strict=True)), **arguments)
    for answer, prompt, want in zip(answers, prompts, wants, strict=True):
        assert answer.tokens == continuation(prompt, want)[: len(answer.tokens)]
        assert answer.tokens
        for number, event in enumerate(event for event in answer.events if event.tokens):
            if want.logprobs is None:
                assert event.logprobs == []
                continue
            [found], [token] = event.logprobs, event.tokens
            logits = logits_after(prompt + answer.tokens[:number]).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            assert found.logprob == pytest.approx(logprobs[token], rel=1e-6)
            assert found.rank == 1 + (logits > logits[token]).sum()
            best = np.argsort(-logits, kind="stable")[: want.logprobs]
            assert [top for top, _ in found.top] == best.tolist()
            assert [value for _, value in found.top] == pytest.approx(logprobs[best].tolist(), rel=1e-6)


def test_rows_sampled_on_the_host_mix_with_others(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(1, 12)
    allowed = list(range(0, VOCAB, 2))
    wants = [greedy(6, allowed_token_ids=allowed) if number % 3 == 0 else greedy(6) for number in range(len(prompts))]
    for answer, prompt, want in zip(run(loop, list(zip(prompts, wants, strict=True))), prompts, wants, strict=True):
        assert answer.tokens == continuation(prompt, want)


def test_bad_words_of_several_tokens(executor: CudaExecutor) -> None:
    first, second = expected([2, 3], 2)
    [answer] = run(EventLoop(executor, **LIMITS), [([2, 3], want := greedy(4, bad_words=[[first, second]]))])
    assert answer.tokens[0] == first
    assert answer.tokens[1] != second
    assert answer.tokens == continuation([2, 3], want)


def test_logits_of_prompts(executor: CudaExecutor) -> None:
    prompt = [3, 1, 4, 1, 5] * 6  # longer than a step, so in two chunks
    [answer] = run(EventLoop(executor, **LIMITS), [(prompt, greedy(2))], context_logits=True, generation_logits=True)
    rows = np.concatenate([event.context_logits for event in answer.events if event.context_logits is not None])
    successors = [successor(prompt[: end + 1]) for end in range(len(prompt))]
    np.testing.assert_array_equal(rows.argmax(1), successors)
    generated = [event.generation_logits.argmax() for event in answer.events if event.tokens]
    assert generated == answer.tokens == expected(prompt, 2)


def test_logits_of_a_long_prompt_come_a_few_rows_at_a_time(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 24 tokens has more rows of logits than are page-locked at once."""
    loop = EventLoop(executor, **LIMITS)
    monkeypatch.setenv("FAKE_MAX_PINNED", str(16 * VOCAB * 4))
    prompt = [3, 1, 4, 1, 5] * 5
    want = greedy(2, prompt_logprobs=2)
    [answer] = run(loop, [(prompt, want)], context_logits=True)
    assert answer.tokens == expected(prompt, 2)
    logits = np.stack([logits_after(prompt[:end]) for end in range(1, len(prompt) + 1)])
    rows = np.concatenate([event.context_logits for event in answer.events if event.context_logits is not None])
    np.testing.assert_array_equal(rows, logits)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    found = [row.logprob for event in answer.events for row in event.prompt_logprobs]
    assert found == pytest.approx([exact[i, token] for i, token in enumerate(prompt[1:])], rel=1e-6)


def test_beam_searches_are_advanced_on_the_host(executor: CudaExecutor) -> None:
    beams = sampling.BeamSearchParams()
    beams.num_beams = 3
    prompts = [[4, 8, 15], [2], [30]]  # no beam comes near the poison
    wants = [(prompt, greedy(5, temperature=1.0)) for prompt in prompts]
    for answer, prompt in zip(run(EventLoop(executor, **LIMITS), wants, beams=beams), prompts, strict=True):
        assert answer.end is not None
        assert answer.end.reason == FinishReason.LENGTH, answer.end.message
        hypotheses = [found for event in answer.events for found in event.hypotheses]
        # A token's logit is minus its distance from the best token.
        assert hypotheses[0][0] == expected(prompt, 5)
        assert len(hypotheses) == 3
        assert all(better[1] >= worse[1] for better, worse in pairwise(hypotheses))
