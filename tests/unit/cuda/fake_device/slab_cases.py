"""Memory that moves between the KV cache and adapters on a fake driver, where a step that reaches it late dies."""

import ctypes
import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cuda.fake_device.adapter_cases import adapter, continuation
from tests.unit.cuda.fake_device.requests import LIMITS, Answer, collect, greedy, random_prompts
from tests.unit.cuda.toy_engine import MAX_SEQ_LEN, NUM_LORAS, PAGE, make_toy_engine_of_adapters, to_bytes
from trtllm_lite._core import CudaExecutor, Engine, EventLoop
from trtllm_lite.errors import DeviceError, LimitError
from trtllm_lite.runtime.lora.slot_memory import SlotMemory

SLAB = 16 * 4096  # sixteen pages of the fake device
BLOCK_BYTES = 16
BLOCKS_OF_SLAB = SLAB // BLOCK_BYTES
NUM_BLOCKS = 6 * BLOCKS_OF_SLAB + MAX_SEQ_LEN // PAGE + 2
# Slots of one and a half slabs: the second one reaches into both slabs of its neighbours.
STRIDE = 3 * SLAB // 2 // 256


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """The toy engine, whose adapters need several slabs."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_of_adapters(stride=STRIDE)))
    return Engine(str(path))


def make_executor(engine: Engine, adapter_bytes: int = 0) -> CudaExecutor:
    """An executor with six slabs of blocks, of which three adapters borrow up to five."""
    return CudaExecutor(engine, num_blocks=NUM_BLOCKS, num_loras=NUM_LORAS, adapter_bytes=adapter_bytes)


def check_runs(loop: EventLoop, wants: list[tuple[list[int], object, int]]) -> None:
    """Run requests of (prompt, adapter, its value), each of which must get the right tokens."""
    ids = [loop.submit(np.array(prompt, np.int32), greedy(12), adapter=one) for prompt, one, _ in wants]
    answers = {request_id: Answer() for request_id in ids}
    collect(loop, answers)
    for request_id, (prompt, _, value) in zip(ids, wants, strict=True):
        assert answers[request_id].tokens == continuation(prompt, 12, value)


def test_adapters_borrow_memory_of_the_cache_and_give_it_back(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = make_executor(engine)
    loop = EventLoop(executor, **LIMITS, enable_block_reuse=True)
    slots, allocated = SlotMemory(executor, loop), fake_driver.fake_allocated()
    cache = executor.memory["kv_cache"]
    adapters = [adapter(engine, value) for value in (5, 11, 17)]
    prompts = random_prompts(3, 9)
    for slot, one in enumerate(adapters):
        slots.place(one, slot)
        check_runs(loop, [(prompt, one, (5, 11, 17)[slot]) for prompt in prompts])
        # A slot of one and a half slabs shares a slab with its neighbour.
        lent = (2, 3, 5)[slot]
        assert executor.memory["adapters"] == lent * SLAB
        assert executor.memory["kv_cache"] == cache - lent * SLAB
        stats = loop.stats()
        assert (stats["num_lent_slabs"], stats["num_blocks"]) == (
            lent,
            NUM_BLOCKS - lent * BLOCKS_OF_SLAB,
        )
        assert fake_driver.fake_allocated() == allocated
    assert slots.release(1)
    assert executor.memory["adapters"] == 4 * SLAB  # the first slot keeps a slab that the second one reached into
    assert slots.release(2)
    assert slots.release(0)
    assert slots.release(0)  # the cache lacks nothing
    assert (executor.memory["adapters"], executor.memory["kv_cache"]) == (0, cache)
    check_runs(loop, [(prompt, None, 0) for prompt in prompts])
    assert loop.stats()["num_lent_slabs"] == 0
    assert fake_driver.fake_allocated() == allocated


def test_slots_have_memory_of_their_own_first(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = make_executor(engine, adapter_bytes=3 * SLAB)
    loop = EventLoop(executor, **LIMITS)
    slots, allocated = SlotMemory(executor, loop), fake_driver.fake_allocated()
    assert executor.memory["adapters"] == 3 * SLAB
    for slot, lent in enumerate((0, 0, 2)):
        slots.place(adapter(engine, slot), slot)
        check_runs(loop, [([1, 2], None, 0)])
        assert loop.stats()["num_lent_slabs"] == lent
        assert executor.memory["adapters"] == (3 + lent) * SLAB
        assert fake_driver.fake_allocated() == allocated
    assert slots.release(0)  # memory of the cache goes back first, wherever it is
    check_runs(loop, [([1, 2], None, 0)])
    assert loop.stats()["num_lent_slabs"] == 1


def test_a_slot_that_is_emptied_makes_room_for_another(engine: Engine) -> None:
    executor = make_executor(engine)
    loop = EventLoop(executor, **LIMITS)
    slots = SlotMemory(executor, loop)
    slots.place(adapter(engine, 3), 0)
    assert not slots.must_wait(1)
    slots.empty(0)
    one = adapter(engine, 4)
    slots.place(one, 2)
    check_runs(loop, [([1, 2], one, 4)])
    assert loop.stats()["num_lent_slabs"] == 2
    ids = [loop.submit(np.array([number], np.int32), greedy(30)) for number in range(1, 5)]
    assert executor.num_missing_slabs(1) == 2
    collect(loop, {request_id: Answer() for request_id in ids})


def test_graphs_replay_while_memory_moves(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = make_executor(engine)
    loop = EventLoop(executor, **LIMITS, enable_block_reuse=True)
    slots, choose = SlotMemory(executor, loop), random.Random(3)
    graphs = fake_driver.fake_count(b"graphs")
    placed: dict[int, int] = {}
    for _ in range(40):
        slot, value = choose.randrange(NUM_LORAS), choose.randint(1, 30)
        if choose.random() < 0.3:
            slots.release(slot)
            placed.pop(slot, None)
            continue
        one = adapter(engine, value)
        others = [loop.submit(np.array(prompt, np.int32), greedy(12)) for prompt in random_prompts(value, 3)]
        slots.place(one, slot)  # while requests run
        placed[slot] = value
        check_runs_beside(loop, others, random_prompts(value, 3), one, value)
    assert fake_driver.fake_count(b"graphs") - graphs > 100
    check_runs(loop, [([1, 2], None, 0)])
    assert executor.memory["adapters"] // SLAB == loop.stats()["num_lent_slabs"]
    for slot in range(NUM_LORAS):
        slots.release(slot)
    check_runs(loop, [([1, 2], None, 0)])
    assert (executor.memory["adapters"], loop.stats()["num_lent_slabs"]) == (0, 0)


def check_runs_beside(loop: EventLoop, ids: list[int], prompts: list[list[int]], one: object, value: int) -> None:
    """Run a request with an adapter beside those that run already, and check all."""
    adapted = loop.submit(np.array([1, 2], np.int32), greedy(9), adapter=one)
    answers = {request_id: Answer() for request_id in [*ids, adapted]}
    collect(loop, answers)
    assert answers[adapted].tokens == continuation([1, 2], 9, value)
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert answers[request_id].tokens == continuation(prompt, 12, 0)


@pytest.mark.parametrize("function", ["cuMemMap", "cuMemSetAccess", "cuMemUnmap"])
@pytest.mark.parametrize("adapter_bytes", [0, 2 * SLAB, 5 * SLAB])
def test_no_memory_is_lost_when_a_call_fails(
    fake_driver: ctypes.CDLL, engine: Engine, adapter_bytes: int, function: str
) -> None:
    """Each call of the function fails once while adapters are placed and leave; after that all goes on as before."""
    executor = make_executor(engine, adapter_bytes)
    loop = EventLoop(executor, **LIMITS)
    slots, num_failures = SlotMemory(executor, loop), 0
    cache = executor.memory["kv_cache"]
    for call in range(1, 40):
        assert fake_driver.fake_fail(function.encode(), call) <= 0
        failed = False
        for slot in range(NUM_LORAS):
            try:
                slots.place(adapter(engine, 7), slot)
            except (DeviceError, LimitError):
                failed = True
        for slot in (*range(NUM_LORAS), 0):
            try:
                slots.release(slot)
            except DeviceError:
                failed = True
        slots.release(0)
        check_runs(loop, [([1, 2, 3], None, 0)])
        assert loop.stats()["num_lent_slabs"] == 0
        assert executor.memory["kv_cache"] == cache
        assert executor.memory["adapters"] == adapter_bytes
        num_failures += failed
        if not failed:
            break
    fake_driver.fake_fail(b"", 0)
    is_unused = function == "cuMemUnmap" and adapter_bytes == 5 * SLAB
    assert (num_failures > 0) != is_unused
    assert not failed


@pytest.mark.parametrize("function", ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_what_was_taken_is_given_back_if_a_call_fails_at_load(
    fake_driver: ctypes.CDLL, engine: Engine, function: str
) -> None:
    before = fake_driver.fake_allocated()
    for call in range(1, 40):
        fake_driver.fake_fail(function.encode(), call)
        try:
            executor = make_executor(engine, 2 * SLAB)
        except (DeviceError, LimitError):
            assert fake_driver.fake_allocated() == before
            continue
        assert executor.memory["adapters"] == 2 * SLAB
        break
    fake_driver.fake_fail(b"", 0)
    assert call > 1 + (function != "cuMemAddressReserve") * 5
