"""Adapters on the CUDA executor, on a fake driver: slots, programs and graphs of their own, mixed batches."""

import copy
import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cuda.fake_device.draft_cases import prompts_to_look_up
from tests.unit.cuda.fake_device.requests import LIMITS, Answer, check, collect, greedy, held, random_prompts, run
from tests.unit.cuda.toy_engine import (
    ADAPTER_WIDTH,
    MAX_LORA_RANK,
    MAX_SEQ_LEN,
    NUM_LORAS,
    PAGE,
    POISON,
    VOCAB,
    make_toy_engine_of_adapters,
    to_bytes,
)
from trtllm_lite._core import Adapter, CudaExecutor, Engine, EventLoop, NgramSizes, adapter_shapes, time_step
from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.lora.peft import Pair


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """The toy engine, with room for adapters."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_of_adapters()))
    return Engine(str(path))


def adapter(engine: Engine, value: int, rank: int = 3) -> Adapter:
    """An adapter that increases sums by ``value``."""
    a, b = (np.full(shape, 77, np.float32) for shape in ((rank, ADAPTER_WIDTH), (ADAPTER_WIDTH, rank)))
    a[0, 0], b[1], b[1, -1] = value, 0, 1
    return Adapter(engine, {0: Pair("sum", a, b, 1.0)}, bytes([value]))


def continuation(prompt: list[int], num_tokens: int, value: int) -> list[int]:
    """The model's continuation with an adapter, up to a token that poisons the next."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens and tokens[-1] != POISON:
        tokens.append((sum(tokens) + value) % VOCAB)
    return tokens[len(prompt) :]


def run_mixed(
    loop: EventLoop, fake_driver: ctypes.CDLL, prompts: list[list[int]], adapters: list[Adapter | None], length: int
) -> list[Answer]:
    """Run all requests at once, each with its adapter."""
    with held(fake_driver):
        ids = [
            loop.submit(np.array(prompt, np.int32), greedy(length), adapter=one)
            for prompt, one in zip(prompts, adapters, strict=True)
        ]
    answers = {request_id: Answer() for request_id in ids}
    collect(loop, answers)
    return list(answers.values())


def test_each_request_has_its_adapter(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    assert adapter_shapes(engine) == (MAX_LORA_RANK, [(ADAPTER_WIDTH, ADAPTER_WIDTH)])
    executor = CudaExecutor(engine, num_loras=NUM_LORAS)
    values = [5, 11, 17]
    adapters = [adapter(engine, value) for value in values]
    for slot, one in zip((2, 0, 1), adapters, strict=True):
        executor.place_adapter(one, slot=slot)
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(3, 40)
    which = [number % 4 for number in range(len(prompts))]  # 3 means no adapter
    answers = run_mixed(loop, fake_driver, prompts, [[*adapters, None][one] for one in which], 9)
    for answer, prompt, one in zip(answers, prompts, which, strict=True):
        assert answer.tokens == continuation(prompt, 9, [*values, 0][one])


def test_an_adapter_of_no_projection_changes_nothing(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_loras=NUM_LORAS)
    executor.place_adapter(adapter(engine, 7), slot=1)
    empty = Adapter(engine, {}, b"empty")
    executor.place_adapter(empty, slot=1)  # takes the place of another adapter
    [answer] = run_mixed(EventLoop(executor, **LIMITS), fake_driver, [[1, 2]], [empty], 6)
    assert answer.tokens == continuation([1, 2], 6, 0)


def test_steps_without_adapters_run_as_they_do_without_room(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_loras=NUM_LORAS)
    before = fake_driver.fake_count(b"captured")
    loop = EventLoop(executor, **LIMITS)
    # A batch of 1, 2, 4 or 8 rows takes four launches, or five with adapters; all are captured without sampling, too.
    assert fake_driver.fake_count(b"captured") - before == 4 * (4 + 5) + 4 * (3 + 4)
    names = (b"launched", b"graphs", b"to_device_bytes")
    counts = []
    for one in (None, adapter(engine, 5)):
        if one is not None:
            executor.place_adapter(one, slot=0)
        start = [fake_driver.fake_count(name) for name in names]
        [answer] = run_mixed(loop, fake_driver, [[1, 2, 3]], [one], 11)
        assert answer.tokens == continuation([1, 2, 3], 11, 0 if one is None else 5)
        counts.append([fake_driver.fake_count(name) - first for name, first in zip(names, start, strict=True)])
    assert [launched for launched, *_ in counts] == [4, 5]  # launches of the prompt's step; others are graphs
    plain, adapted = (num_bytes / (1 + graphs) for _, graphs, num_bytes in counts)
    assert plain < adapted  # only steps with adapters copy lists of rows


def test_steps_with_adapters_are_timed(engine: Engine) -> None:
    executor, one = CudaExecutor(engine, num_loras=NUM_LORAS), adapter(engine, 5)
    executor.place_adapter(one, slot=2)
    names = [name for name, _ in time_step(executor, num_rows=3, num_tokens=2, adapters=[one])]
    assert names == ["embed", "attend", "adapt", "score", "sample"]


def test_adapters_are_placed_while_steps_run(engine: Engine) -> None:
    executor = CudaExecutor(engine, num_loras=NUM_LORAS)
    loop = EventLoop(executor, **LIMITS)
    first, second = adapter(engine, 5), adapter(engine, 11, MAX_LORA_RANK)
    executor.place_adapter(first, slot=0)
    loop.submit(np.array([1, 2], np.int32), greedy(20), adapter=first)
    executor.place_adapter(second, slot=1)
    loop.submit(np.array([4, 2], np.int32), greedy(20), adapter=second)
    tokens: dict[int, list[int]] = {}
    ended = 0
    while ended < 2:
        polled = loop.poll(10.0)
        assert polled is not None
        for event in polled[0]:
            tokens.setdefault(event.request_id, []).extend(event.tokens)
        ended += len(polled[1])
    assert list(tokens.values()) == [continuation([1, 2], 20, 5), continuation([4, 2], 20, 11)]


@pytest.mark.parametrize("num_loras", [1, NUM_LORAS, 7])
def test_slots_take_memory_that_is_told(fake_driver: ctypes.CDLL, engine: Engine, num_loras: int) -> None:
    before = fake_driver.fake_allocated()
    executor, slots = CudaExecutor(engine, num_loras=num_loras), num_loras
    executor.place_adapter(adapter(engine, 1), slot=slots - 1)
    memory = executor.memory
    assert memory["adapters"] > 0
    assert fake_driver.fake_allocated() - before == memory["kv_cache"] + memory["workspace"] + memory["adapters"]
    with pytest.raises(LimitError, match=f"slot of an adapter: expected 0 to {slots - 1}, found {slots}"):
        executor.place_adapter(adapter(engine, 1), slot=slots)


def test_an_adapter_of_another_engine_is_refused(engine: Engine, tmp_path: Path) -> None:
    toy = copy.deepcopy(make_toy_engine_of_adapters())
    for tensor in toy.plan["tensors"]:
        if tensor["name"] in ("adapter_a.0", "adapter_b.0"):
            tensor["dtype"] = "float16"
    path = tmp_path / "other.engine"
    path.write_bytes(to_bytes(toy))
    executor = CudaExecutor(engine, num_loras=NUM_LORAS)
    with pytest.raises(LimitError, match="expected an adapter that was made for this engine"):
        executor.place_adapter(adapter(Engine(str(path)), 1), slot=0)


def test_more_slots_than_fit_are_refused(engine: Engine) -> None:
    with pytest.raises(LimitError, match="max_loras: expected 0 to 256, found 257"):
        CudaExecutor(engine, num_loras=257)


def test_without_slots_such_an_engine_is_as_any_other(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    before = fake_driver.fake_count(b"captured")
    executor = CudaExecutor(engine)
    assert executor.memory["adapters"] == 0
    loop = EventLoop(executor, **LIMITS)
    assert fake_driver.fake_count(b"captured") - before == 4 * (4 + 3)  # with and without the sampling kernel
    [plain] = run(loop, [([1, 2], greedy(7))])
    check(plain, [1, 2], 7)
    [refused] = run(loop, [([1, 2], greedy(7))], adapter=adapter(engine, 3))
    assert refused.end is not None
    assert "expected an adapter in a slot of the device's memory" in refused.end.message


def test_drafts_of_rows_with_adapters(fake_driver: ctypes.CDLL, tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_of_adapters(max_draft_len=2)))
    engine = Engine(str(path))
    executor, one = CudaExecutor(engine, num_loras=NUM_LORAS), adapter(engine, 3)
    executor.place_adapter(one, slot=1)
    drafts = {"max_draft_len": 2, "paces_drafts": False, "drafting": NgramSizes(1, 3)}
    loop, prompts = EventLoop(executor, **LIMITS, **drafts), prompts_to_look_up(5, 20)
    which = [number % 2 for number in range(len(prompts))]
    answers = run_mixed(loop, fake_driver, prompts, [[one, None][which] for which in which], 12)
    for answer, prompt, value in zip(answers, prompts, [3 * (1 - number) for number in which], strict=True):
        assert answer.tokens == continuation(prompt, 12, value)
    assert sum(loop.stats()["num_drafted"]) > 0


def test_preempted_requests_keep_their_adapters(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor, one = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2, num_loras=2), adapter(engine, 9)
    executor.place_adapter(one, slot=1)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    answers = run_mixed(loop, fake_driver, prompts, [one, None] * 6, 20)
    for number, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        assert answer.tokens == continuation(prompt, 20, 0 if number % 2 else 9)
    stats = loop.stats()
    assert stats["num_swap_preemptions"] + stats["num_recompute_preemptions"] > 0


def test_plain_requests_of_such_an_engine(engine: Engine) -> None:
    loop = EventLoop(CudaExecutor(engine, num_loras=NUM_LORAS), **LIMITS)
    prompts = random_prompts(4, 12)
    for answer, prompt in zip(run(loop, [(prompt, greedy(7)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 7)
