"""The CUDA executor under the event loop, on a fake driver: graphs, padding, copies, tokens that stay on the device."""

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.toy_engine import (
    KERNELS,
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    MAX_SEQ_LEN,
    PAGE,
    POISON,
    VOCAB,
    boxed,
    launch,
    make_toy_engine,
    pointer,
    successor,
    to_bytes,
)
from trtllm_lite import _testing
from trtllm_lite._core import CpuExecutor, CudaExecutor, Engine, EventLoop, FinishReason, RequestEnd, sampling
from trtllm_lite.errors import EngineError, LimitError

LIMITS = {
    "max_batch_size": MAX_BATCH_SIZE,
    "max_input_len": 30,
    "max_seq_len": MAX_SEQ_LEN,
    "max_num_tokens": MAX_NUM_TOKENS,
}


# CUtensorMapDataType BFLOAT16 is 9, CUtensorMapSwizzle 128B 3, CUtensorMapL2promotion L2_256B 3; fill 0: zeros.
MAP_OF_PROBE = {
    **{"offset": 256, "data_type": 9, "columns": 32, "rows": 40, "row_bytes": 64},
    **{"box_columns": 16, "box_rows": 8, "swizzle": 3, "promotion": 3, "fill": 0, "neighbours": 3005},
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
    def counts() -> dict[str, int]:
        names = ("graphs", "captured", "launched", "to_device", "to_host")
        return {name: fake_driver.fake_count(name.encode()) for name in names}

    begin = counts()
    loop = EventLoop(executor, **LIMITS)
    before = counts()
    num_sizes = 4  # 1, 2, 4 and 8 rows, of four launches each, which run once before they are captured
    assert before["captured"] - begin["captured"] == before["launched"] - begin["launched"] == 4 * num_sizes
    [answer] = run(loop, [([1, 2, 3], greedy(11))])
    loop.shut_down()
    assert answer.tokens == expected([1, 2, 3], 11)
    done = {name: count - before[name] for name, count in counts().items()}
    # The prompt's launches. One copy of inputs and one of tokens for each step, and the sequence's sampling parameters.
    assert done["captured"] == 0
    assert done["launched"] == 4
    assert done["graphs"] in (10, 11)  # a step more may be under way when the last token is known
    assert done["to_device"] - 1 == done["to_host"] == done["graphs"] + 1


def test_graphs_are_made_as_the_loop_begins(executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, that is when it shows, and not in the midst of requests."""
    monkeypatch.setenv("FAKE_MAX_GRAPHS", "2")
    with pytest.raises(LimitError, match=r"capturing program decode_4: expected more free memory .*kv_cache_free_gpu_"):
        EventLoop(executor, **LIMITS)
    [answer] = run(EventLoop(executor, **LIMITS | {"max_batch_size": 2}), [([1, 2, 3], greedy(11))])
    assert answer.tokens == expected([1, 2, 3], 11)


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


def logits_after(tokens: list[int]) -> np.ndarray:
    """float32[VOCAB], of the toy model."""
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


EDITS: list[dict[str, Any]] = [
    {"logit_bias": [(40, 3.0), (3, -2.0)]},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": 0.4},
    {"bad_words": [[7], [11], [POISON]], "frequency_penalty": 2.0},
    {"min_tokens": 5, "stop_token_ids": [1, 2, 4, 8, 16, 32], "end_ids": [30, 31], "ignore_eos": False},
    {"repetition_penalty": 0.7, "presence_penalty": -1.0, "logit_bias": [(12, 4.0)], "bad_words": [[40]]},
    {},
]


def check_edits(loop: EventLoop, prompts: list[list[int]], length: int) -> None:
    wants = [greedy(length, **EDITS[number % len(EDITS)]) for number in range(len(prompts))]
    for answer, prompt, want in zip(run(loop, list(zip(prompts, wants, strict=True))), prompts, wants, strict=True):
        tokens = continuation(prompt, want)
        stops = set() if want.ignore_eos else {*want.stop_token_ids, *want.end_ids}
        end = next((i for i, token in enumerate(tokens) if token in stops and i >= want.min_tokens), len(tokens))
        assert answer.tokens == tokens[: end + 1]


def test_penalties_bias_and_bans_happen_on_the_device(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    before = fake_driver.fake_count(b"to_host_bytes"), fake_driver.fake_count(b"to_host")
    check_edits(EventLoop(executor, **LIMITS), [prompt[:6] for prompt in random_prompts(3, 28)], 9)
    num_bytes = fake_driver.fake_count(b"to_host_bytes") - before[0]
    assert num_bytes <= 8 * 4 * (fake_driver.fake_count(b"to_host") - before[1])  # tokens only


@pytest.mark.parametrize(("num_others", "num_ended"), [(0, 1), (9, 1), (10, 0)])
def test_the_device_knows_what_ends_a_sequence(
    fake_driver: ctypes.CDLL, executor: CudaExecutor, num_others: int, num_ended: int
) -> None:
    """The step that follows the end is under way before the host sees it. Of many stop tokens it knows the first."""
    tokens = expected([1, 2, 3], 9)
    others = [token for token in range(VOCAB) if token not in tokens][:num_others]
    before = fake_driver.fake_count(b"ended")
    loop = EventLoop(executor, **LIMITS)
    [answer] = run(loop, [([1, 2, 3], greedy(9, stop_token_ids=[*others, tokens[4]]))])
    loop.shut_down()
    assert answer.tokens == tokens[:5]
    assert answer.end is not None
    assert answer.end.reason == FinishReason.END_ID
    assert fake_driver.fake_count(b"ended") - before == num_ended


def test_what_follows_an_end_is_shared_with_nobody(executor: CudaExecutor) -> None:
    """The end fills a block, whose last keys and values the device did not compute as the model would."""
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


def test_preempted_sequences_keep_their_counts(engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    for seed in range(6, 56):  # on a busy machine requests may come one after the other
        check_edits(loop, [prompt[:3] for prompt in random_prompts(seed, 14)], 18)
        stats = loop.stats()
        if stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0:
            return
    pytest.fail("no request was preempted")


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
        for number, event in enumerate(event for event in answer.events if event.token is not None):
            if want.logprobs is None:
                assert event.logprobs is None
                continue
            logits = logits_after(prompt + answer.tokens[:number]).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            assert event.logprobs.logprob == pytest.approx(logprobs[event.token], rel=1e-6)
            assert event.logprobs.rank == 1 + (logits > logits[event.token]).sum()
            best = np.argsort(-logits, kind="stable")[: want.logprobs]
            assert [token for token, _ in event.logprobs.top] == best.tolist()
            assert [value for _, value in event.logprobs.top] == pytest.approx(logprobs[best].tolist(), rel=1e-6)


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
    generated = [event.generation_logits.argmax() for event in answer.events if event.token is not None]
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


def test_memory_that_cannot_be_page_locked_fails_who_asks_for_it(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EventLoop(executor, **LIMITS)
    monkeypatch.setenv("FAKE_MAX_PINNED", "0")
    wants = [([3], greedy(20)), ([5], greedy(3, allowed_token_ids=[4, 5])), ([7], greedy(12, logprobs=1))]
    before, asking, after = run(loop, wants)
    check(before, [3], 20)
    check(after, [7], 12)
    assert asking.end is not None
    assert asking.end.reason == FinishReason.ERROR
    assert "window on the logits: expected 1 MiB of host memory that can be page-locked" in asking.end.message


def test_what_a_dead_device_leaves_behind_is_destroyed_quietly(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = CudaExecutor(engine)
    loop = EventLoop(executor, **LIMITS)
    monkeypatch.setenv("FAKE_DEAD", "1")
    [answer] = run(loop, [([3], greedy(4))])
    assert answer.end is not None
    assert answer.end.reason == FinishReason.ERROR
    assert "using the context of Fake GPU" in answer.end.message
    del loop, executor


def test_swapped_and_recomputed_requests_go_on(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    before = fake_driver.fake_count(b"slices")
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    answers = run(loop, [(prompt, greedy(20)) for prompt in prompts])
    for answer, prompt in zip(answers, prompts, strict=True):
        check(answer, prompt, 20)
    stats = loop.stats()
    num_swaps = stats["num_swap_preemptions"]
    assert num_swaps > 0
    # One call for a block's keys and values of all layers, when it leaves and when it returns.
    most_blocks = -(-(6 + 20 - 1) // PAGE)
    assert num_swaps < fake_driver.fake_count(b"slices") - before <= 2 * num_swaps * most_blocks


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


def test_sizes_do_not_wrap(tmp_path: Path) -> None:
    """A cache of 2^30 blocks of 2^42 bytes, and weights of 2^64."""
    toy = make_toy_engine()
    for tensor in toy.plan["tensors"]:
        if tensor["kind"] == "cache":
            tensor["shape"] = ["num_blocks", 1 << 29, 1 << 11]
    toy.manifest["kv_cache"] = toy.manifest["kv_cache"] | {"bytes_per_block": 1 << 42}
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    with pytest.raises(LimitError, match="expected a KV cache that fits in memory, found 1073741824 blocks"):
        CudaExecutor(Engine(str(path)), num_blocks=(1 << 30) - 1)
    toy = make_toy_engine()
    toy.manifest["stripped"] = True
    weight = {"dtype": "bfloat16", "shape": [1 << 29, 1 << 20], "layout": "row_major", "kind": "weight", "offset": 0}
    toy.plan["tensors"] += [{"name": f"weight.{number}", **weight} for number in range(1 << 14)]
    path.write_bytes(to_bytes(toy))
    with pytest.raises(EngineError, match="weights: expected tensors that fit in memory"):
        CudaExecutor(Engine(str(path)))


def test_a_kernel_with_more_parameters_than_the_plan_passes_is_refused(tmp_path: Path) -> None:
    toy = make_toy_engine()
    scores = [step for step in toy.plan["programs"][0]["instructions"] if step["kernel"] == KERNELS.index("score")]
    for step in scores:
        step["args"] = step["args"][:2]
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    with pytest.raises(EngineError, match=r"kernel score: expected 16 bytes of parameters, as .* passes, found 36"):
        CudaExecutor(Engine(str(path)))
    toy = make_toy_engine()
    toy.plan["programs"][0]["instructions"].append(launch("probe", 1, {"int": 3}, boxed(), {"int": 5}))
    path.write_bytes(to_bytes(toy))
    with pytest.raises(EngineError, match="kernel probe: expected 3 parameters, as the plan passes, found 4"):
        CudaExecutor(Engine(str(path)))


def test_too_much_host_memory_names_what_to_lower(engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=1 << 17)
    with pytest.raises(LimitError, match=r"swapped KV cache: expected 2048 MiB .*; lower host_cache_size"):
        EventLoop(executor, **LIMITS, num_host_blocks=1 << 27, max_utilization=True)


def test_tensor_maps_are_encoded_once(fake_driver: ctypes.CDLL, tmp_path: Path) -> None:
    toy = make_toy_engine()
    for program in toy.plan["programs"]:
        arguments = ({"int": 3}, boxed(columns=32, rows=40, box_columns=16), {"int": 5}, pointer("halves"))
        program["instructions"].append(launch("probe", 1, *arguments))
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    before = fake_driver.fake_count(b"maps")
    loop = EventLoop(CudaExecutor(Engine(str(path))), **LIMITS)
    for _ in range(3):
        [answer] = run(loop, [([1, 2], greedy(4))])
        check(answer, [1, 2], 4)
    assert fake_driver.fake_count(b"maps") - before == len(toy.plan["programs"])
    found = {name: fake_driver.fake_count(f"map_{name}".encode()) for name in MAP_OF_PROBE}
    assert found == MAP_OF_PROBE


def test_an_engine_runs_on_its_own_kind_of_device(engine: Engine) -> None:
    with pytest.raises(EngineError, match="built for cpu, found one for cuda"):
        CpuExecutor(engine)


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
