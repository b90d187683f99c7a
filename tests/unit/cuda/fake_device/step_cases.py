"""Steps of the CUDA executor under the event loop, on a fake driver: graphs, padding, packed inputs, kernels."""

import ctypes
from pathlib import Path

import pytest

from tests.unit.cuda.fake_device.requests import LIMITS, check, expected, greedy, random_prompts, run
from tests.unit.cuda.toy_engine import (
    KERNELS,
    boxed,
    launch,
    make_toy_engine,
    make_toy_engine_of_groups,
    pointer,
    to_bytes,
)
from trtllm_lite._core import CpuExecutor, CudaExecutor, Engine, EventLoop, FinishReason
from trtllm_lite.errors import EngineError, LimitError

# CUtensorMapDataType BFLOAT16 is 9, CUtensorMapSwizzle 128B 3, CUtensorMapL2promotion L2_256B 3; fill 0: zeros.
MAP_OF_PROBE = {
    **{"offset": 256, "data_type": 9, "columns": 32, "rows": 40, "row_bytes": 64},
    **{"box_columns": 16, "box_rows": 8, "swizzle": 3, "promotion": 3, "fill": 0, "neighbours": 3005},
}


def test_any_batch_gives_the_models_tokens(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(0, 40)
    lengths = [1 + number % 12 for number in range(len(prompts))]
    answers = run(loop, [(prompt, greedy(length)) for prompt, length in zip(prompts, lengths, strict=True)])
    for answer, prompt, length in zip(answers, prompts, lengths, strict=True):
        check(answer, prompt, length)


def test_tables_of_several_cache_groups(tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_of_groups()))
    executor = CudaExecutor(Engine(str(path)))
    loop = EventLoop(executor, **LIMITS)
    prompts = random_prompts(0, 40)
    for answer, prompt in zip(run(loop, [(prompt, greedy(9)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 9)


def test_decode_steps_are_graphs(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    def counts() -> dict[str, int]:
        names = ("graphs", "captured", "launched", "to_device", "to_host")
        return {name: fake_driver.fake_count(name.encode()) for name in names}

    begin = counts()
    loop = EventLoop(executor, **LIMITS)
    before = counts()
    num_sizes = 4  # 1, 2, 4 and 8 rows, of four launches each, which run once before they are captured
    assert before["launched"] - begin["launched"] == 4 * num_sizes
    assert before["captured"] - begin["captured"] == (4 + 3) * num_sizes  # with and without the sampling kernel
    [answer] = run(loop, [([1, 2, 3], greedy(11))])
    loop.shut_down()
    assert answer.tokens == expected([1, 2, 3], 11)
    done = {name: count - before[name] for name, count in counts().items()}
    # The prompt's kernels are launched singly. Each step copies inputs and tokens; sampling parameters are copied once.
    assert done["captured"] == 0
    assert done["launched"] == 4
    assert done["graphs"] in (10, 11)  # a step more may be under way when the last token is known
    assert done["to_device"] - 1 == done["to_host"] == done["graphs"] + 1


def test_graphs_are_made_as_the_loop_begins(executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured at the start, so that a lack of memory shows then, and not while requests run."""
    monkeypatch.setenv("FAKE_MAX_GRAPHS", "4")  # two of each size
    with pytest.raises(LimitError, match=r"capturing program decode_4: expected more free memory .*kv_cache_free_gpu_"):
        EventLoop(executor, **LIMITS)
    [answer] = run(EventLoop(executor, **LIMITS | {"max_batch_size": 2}), [([1, 2, 3], greedy(11))])
    assert answer.tokens == expected([1, 2, 3], 11)


def test_inputs_are_packed(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    before = fake_driver.fake_count(b"to_device_bytes"), fake_driver.fake_count(b"to_device")
    run(EventLoop(executor, **LIMITS), [([1], greedy(20))])
    num_bytes = fake_driver.fake_count(b"to_device_bytes") - before[0]
    assert num_bytes <= 1200 * (fake_driver.fake_count(b"to_device") - before[1])


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


def test_what_a_dead_device_leaves_behind_is_destroyed_quietly(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = CudaExecutor(engine)
    loop = EventLoop(executor, **LIMITS)
    monkeypatch.setenv("FAKE_DEAD", "1")
    [answer] = run(loop, [([3], greedy(4))])
    assert answer.end is not None
    assert answer.end.reason == FinishReason.ERROR
    assert "using the context of Fake GPU" in answer.end.message
    del loop, executor
