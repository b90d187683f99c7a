"""Speculative decoding by the CUDA executor on a fake driver."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.fake_device.requests import (
    LIMITS,
    Answer,
    check,
    continuation,
    expected,
    greedy,
    logits_after,
    run,
)
from tests.unit.cuda.toy_engine import MAX_SEQ_LEN, PAGE, POISON, VOCAB, make_toy_engine, to_bytes
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, FinishReason, NgramSizes

MAX_DRAFT_LEN = 2


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """The toy engine, built for drafts."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine(MAX_DRAFT_LEN)))
    return Engine(str(path))


def drafting(executor: CudaExecutor, **changes: Any) -> EventLoop:
    """An event loop whose prompt lookup drafts after a match of even one token."""
    drafts = {"max_draft_len": MAX_DRAFT_LEN, "paces_drafts": False, "drafting": NgramSizes(1, 3)}
    return EventLoop(executor, **LIMITS, **drafts, **changes)


def prompts_to_look_up(seed: int, count: int) -> list[list[int]]:
    """Prompts that often contain what the toy model generates: each token is twice the generated one before it."""
    generator = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        pieces = [[int(start) << power for power in range(4)] for start in generator.integers(1, VOCAB, 5)]
        prompt = [token % VOCAB for piece in pieces for token in piece]
        prompts.append([token for token in prompt if token != POISON][: generator.integers(12, 20)])
    return prompts


def num_kept(loop: EventLoop) -> int:
    """The number of accepted draft tokens, which is less than that of all draft tokens."""
    stats = loop.stats()
    kept, drafted = sum(stats["num_accepted"]), sum(stats["num_drafted"])
    assert 0 < kept < drafted
    return int(kept)


def check_all(answers: list[Answer], prompts: list[list[int]], wants: list[Any]) -> None:
    for answer, prompt, want in zip(answers, prompts, wants, strict=True):
        assert answer.tokens == continuation(prompt, want)[: len(answer.tokens)]
        assert answer.end is not None
        assert len(answer.tokens) == want.max_tokens or POISON in answer.tokens


def test_drafts_change_nothing_but_the_number_of_steps(executor: CudaExecutor) -> None:
    loop, prompts = drafting(executor), prompts_to_look_up(0, 40)
    for answer, prompt in zip(run(loop, [(prompt, greedy(18)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 18)
    assert num_kept(loop) > 40


def test_the_cache_is_read_once_for_a_row(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    """A row with drafts is one sequence; a padding sequence, of which a step has at most one here, has two at most."""
    loop, [prompt], num_tokens = drafting(executor), prompts_to_look_up(4, 1), 18
    names = (b"keys_read", b"to_host")
    before = [fake_driver.fake_count(name) for name in names]
    [answer] = run(loop, [(prompt, greedy(num_tokens))])
    num_read, num_steps = (fake_driver.fake_count(name) - was for name, was in zip(names, before, strict=True))
    check(answer, prompt, num_tokens)
    assert num_kept(loop) > 0
    assert 0 < num_read <= num_steps * (len(prompt) + num_tokens + 2)


def test_padding_has_no_more_sequences_than_rows_with_drafts(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    """Kernels have tables of as many; steps of padding alone run once for each graph."""
    before = fake_driver.fake_count(b"sequences")
    drafting(executor)
    sizes = make_toy_engine(MAX_DRAFT_LEN).plan["cuda"]["decode_batches"]
    num_runs = 3  # before a graph is captured, and to measure what it takes
    num_sequences = num_runs * sum(-(-size // (1 + MAX_DRAFT_LEN)) for size in sizes)
    assert fake_driver.fake_count(b"sequences") - before == num_sequences


@pytest.mark.parametrize(
    "edits",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.4, "logit_bias": [(12, 4.0)]},
        {"min_tokens": 5, "stop_token_ids": [1, 2, 4, 8], "ignore_eos": False},
        {"allowed_token_ids": list(range(0, VOCAB, 2))},  # the host samples this
    ],
    ids=["repetition", "presence", "min_tokens", "allowed"],
)
def test_what_changes_logits_counts_the_drafts_that_were_kept(executor: CudaExecutor, edits: dict[str, Any]) -> None:
    """Penalties and stops of every second request count accepted draft tokens as they count sampled ones."""
    loop, prompts = drafting(executor), prompts_to_look_up(1, 24)
    wants = [greedy(9, **(edits if number % 2 else {})) for number in range(len(prompts))]
    answers = run(loop, list(zip(prompts, wants, strict=True)))
    for answer, prompt, want in zip(answers, prompts, wants, strict=True):
        tokens = continuation(prompt, want)
        stops = set() if want.ignore_eos else {*want.stop_token_ids}
        end = next((i for i, token in enumerate(tokens) if token in stops and i >= want.min_tokens), len(tokens))
        assert answer.tokens == tokens[: end + 1]
    num_kept(loop)


@pytest.mark.parametrize("arguments", [{}, {"generation_logits": True}], ids=["device", "host"])
def test_log_probabilities_of_runs(executor: CudaExecutor, arguments: dict[str, bool]) -> None:
    loop, prompts = drafting(executor), prompts_to_look_up(2, 12)
    answers = run(loop, [(prompt, greedy(9, logprobs=2)) for prompt in prompts], **arguments)
    check_all(answers, prompts, [greedy(9)] * len(prompts))
    for answer, prompt in zip(answers, prompts, strict=True):
        found = [row for event in answer.events for row in event.logprobs]
        assert len(found) == len(answer.tokens)
        for number, (row, token) in enumerate(zip(found, answer.tokens, strict=True)):
            logits = logits_after(prompt + answer.tokens[:number]).astype(np.float64)
            assert row.logprob == pytest.approx((logits - np.log(np.exp(logits).sum()))[token], rel=1e-6)
    assert max(len(event.tokens) for answer in answers for event in answer.events) > 1
    num_kept(loop)


def test_preempted_sequences_draft_on(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop, prompts = drafting(executor, num_host_blocks=40, max_utilization=True), prompts_to_look_up(3, 14)
    answers = run(loop, [(prompt[:8], greedy(18)) for prompt in prompts], fake_driver)
    for answer, prompt in zip(answers, prompts, strict=True):
        check(answer, prompt[:8], 18)
    stats = loop.stats()
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0
    num_kept(loop)


def test_an_end_within_a_run(executor: CudaExecutor) -> None:
    prompt = [2, 4, 8, 16, 32, 14, 28, 6, 12, 24, 48, 46, 42, 34, 18, 36, 22, 44, 38, 26, 3, 5]
    tokens = expected(prompt, 12)
    loop = drafting(executor)
    [answer] = run(loop, [(prompt, greedy(12, stop_token_ids=[tokens[6]]))])
    assert answer.tokens == tokens[:7]
    assert answer.end is not None
    assert answer.end.reason == FinishReason.END_ID
