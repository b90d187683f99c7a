"""Memory of the CUDA executor on a fake driver: allocation, release, swaps, sharing, and exhaustion."""

import ctypes
from pathlib import Path

import pytest

from tests.unit.csrc.tiny_engine import cache_group
from tests.unit.cuda.fake_device.requests import LIMITS, check, greedy, random_prompts, run
from tests.unit.cuda.toy_engine import (
    MAX_SEQ_LEN,
    PAGE,
    make_toy_engine,
    to_bytes,
)
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, FinishReason
from trtllm_lite.errors import EngineError, LimitError


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
    assert "copies of logits: expected 1 MiB of host memory that can be page-locked" in asking.end.message


def test_small_weights_are_sent_through_little_page_locked_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MAX_PINNED", str(1 << 20))
    loop = EventLoop(CudaExecutor(engine), **LIMITS)
    [answer] = run(loop, [([3], greedy(5))])
    check(answer, [3], 5)


def test_swapped_and_recomputed_requests_go_on(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    answers = run(loop, [(prompt, greedy(20)) for prompt in prompts], fake_driver)
    for answer, prompt in zip(answers, prompts, strict=True):
        check(answer, prompt, 20)
    assert loop.stats()["num_swap_preemptions"] > 0


def test_prefixes_are_shared(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS, enable_block_reuse=True)
    prompt = [5, 4, 3, 2, 1] * 5
    for _ in range(3):
        [answer] = run(loop, [(prompt, greedy(4))])
        check(answer, prompt, 4)
    assert loop.stats()["hit_tokens"] > 0


def test_evicted_prefixes_come_back_from_the_host(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, enable_block_reuse=True)
    prompts = [[5, 4, 3, 2, 1, 6] * 4, [9, 8, 7] * 8, [2, 2, 4, 4] * 6]
    for prompt in prompts * 2:
        [answer] = run(loop, [(prompt, greedy(4))], fake_driver)
        check(answer, prompt, 4)
    stats = loop.stats()
    assert stats["hit_tokens"] == sum((len(prompt) - 1) // PAGE * PAGE for prompt in prompts)
    assert 0 < stats["host_tokens"][0] <= stats["hit_tokens"]
    assert stats["evicted_blocks"] == 0


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
            tensor["offset"] = (tensor["name"] == "value_cache.0") << 41
    groups = [cache_group("full", ((1 << 20) // PAGE, 1 << 20), "bfloat16")]
    toy.manifest["kv_cache"] = toy.manifest["kv_cache"] | {"bytes_per_block": 1 << 42, "groups": groups}
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


def test_too_much_host_memory_names_what_to_lower(engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=1 << 17)
    with pytest.raises(LimitError, match=r"KV cache on the host: expected 2048 MiB .*; lower host_cache_size"):
        EventLoop(executor, **LIMITS, num_host_blocks=1 << 27, max_utilization=True)
