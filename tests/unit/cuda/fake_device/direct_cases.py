"""The CUDA executor by itself, on a fake driver: steps by hand, timing, and engines for other GPUs."""

import copy
import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cuda.toy_engine import (
    ARENA_BYTES,
    MANIFEST,
    MAX_NUM_TOKENS,
    NUM_BLOCKS,
    NUM_SEQS,
    PAGE,
    VOCAB,
    launch,
    make_toy_engine,
    successor,
    to_bytes,
)
from trtllm_lite import _core, _testing
from trtllm_lite._core import CudaExecutor, Engine
from trtllm_lite.errors import ArgumentError, DeviceError, LimitError


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def engine_for(directory: Path, *targets: tuple[str, int]) -> Engine:
    """The toy engine with programs for several architectures, whose kernels take the given bytes of shared memory."""
    toy = make_toy_engine()
    kernels, programs = toy.plan["kernels"], toy.plan["programs"]
    toy.plan["kernels"], toy.plan["programs"] = [], []
    for number, (arch, shared_bytes) in enumerate(targets):
        toy.manifest["target"] = MANIFEST["target"] | {"archs": [name for name, _ in targets]}
        for kernel in kernels:
            toy.plan["kernels"].append(kernel | {"cubins": {arch: kernel["name"]}, "shared_bytes": shared_bytes})
        for program in copy.deepcopy(programs):
            for instruction in program["instructions"]:
                instruction["kernel"] += number * len(kernels)
            toy.plan["programs"].append(program | {"arch": arch})
    path = directory / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    return Engine(str(path))


def test_another_gpu_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"engine for Fake GPU \(sm_90\), found one for sm_80.*--target sm_90"):
        CudaExecutor(engine_for(tmp_path, ("sm_80", 0)))


def test_a_gpu_too_old_for_any_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CAPABILITY", "75")
    with pytest.raises(DeviceError, match=r"of sm_80 or later, found Fake GPU \(sm_75\), which is not supported"):
        CudaExecutor(engine_for(tmp_path, ("sm_80", 0)))


def test_the_nearest_of_several_architectures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for sm_80 take more shared memory than sm_89 has."""
    monkeypatch.setenv("FAKE_CAPABILITY", "89")
    executor = CudaExecutor(engine_for(tmp_path, ("sm_80", 166912), ("sm_86", 101376), ("sm_90a", 200000)))
    logits = _core.step(executor, ints(1, 2, 3), ints(3), ints(0), np.array([[9]], np.int32), ints(2))
    assert logits.argmax(1).tolist() == [successor([1, 2, 3])]


def test_blocks_too_large_for_a_gpu_of_the_same_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CAPABILITY", "89")
    message = r"engine for sm_80 has blocks with 166912 bytes.*\(sm_89\) they can have 101376; .* --target sm_89"
    with pytest.raises(DeviceError, match=message):
        CudaExecutor(engine_for(tmp_path, ("sm_80", 166912)))


def test_kernels_of_one_cubin_may_have_blocks_of_different_sizes(tmp_path: Path) -> None:
    toy = make_toy_engine()
    kernels, (first, *others) = toy.plan["kernels"], toy.plan["programs"]
    for program in others:
        for instruction in program["instructions"]:
            instruction["kernel"] += len(kernels)
    assert first["decode_only"]
    sizes = (200_000, 100_000)
    toy.plan["kernels"] = [kernel | {"shared_bytes": size} for size in sizes for kernel in kernels]
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    executor = CudaExecutor(Engine(str(path)))
    tables = np.array([[9]], np.int32)
    for tokens, past_len in ((ints(1, 2), 0), (ints(3), 2)):
        logits = _core.step(executor, tokens, ints(len(tokens)), ints(past_len), tables, ints(len(tokens) - 1))
    assert logits.argmax(1).tolist() == [successor([1, 2, 3])]


def test_time_step_lists_the_instructions(executor: CudaExecutor) -> None:
    """One attention kernel is for decode rows, of which this step has none; the other is for all other rows."""
    times = _core.time_step(executor, num_rows=3, num_tokens=2, past_len=5)
    assert [name for name, _ in times] == ["embed", "attend", "score", "sample"]
    with pytest.raises(LimitError, match="num_rows: expected 1 to 6, found 7"):
        _core.time_step(executor, num_rows=7)


def test_steps_by_hand(executor: CudaExecutor) -> None:
    """A prompt in two chunks beside another sequence, then a padded decode step; logits wherever they are wanted."""
    first, second = [1, 2, 3, 4, 5, 6], [7, 8]
    tables = np.array([[9, 2, 5], [4, 0, 0]], np.int32)
    logits = _core.step(executor, ints(*first[:5]), ints(5), ints(0), tables[:1], ints(4, 2))
    assert logits.argmax(1).tolist() == [successor(first[:5]), successor(first[:3])]
    logits = _core.step(executor, ints(first[5], *second), ints(1, 2), ints(5, 0), tables, ints(0, 1))
    assert logits.argmax(1).tolist() == [successor(first), successor(second[:1])]
    for tokens in range(3):  # graphs
        first.append(20 + tokens)
        second.append(30 + tokens)
        past_lens = ints(len(first) - 1, len(second) - 1)
        logits = _core.step(executor, ints(first[-1], second[-1]), ints(1, 1), past_lens, tables, ints(1))
        assert logits.argmax(1).tolist() == [successor(second)]
    read = [_testing.read_block(executor, block) for block in (9, 2, 5, 4)]
    blocks = [block.view(np.uint16).reshape(2, PAGE)[0].tolist() for block in read]
    assert blocks == [first[:4], first[4:8], [first[8], 0, 0, 0], second[:4]]


def test_what_a_step_computes_stays_on_the_device(executor: CudaExecutor) -> None:
    assert executor.output("logits").shape == (0, 4 * VOCAB)
    tokens, tables = [1, 2, 3, 4, 5], np.array([[9, 2], [4, 0]], np.int32)
    _core.compute(executor, ints(*tokens), ints(4, 1), ints(0, 0), tables, ints(*range(5)))
    logits = executor.output("logits").view(np.float32)
    expected = [successor(tokens[:1]), successor(tokens[:2]), successor(tokens[:3]), successor(tokens[:4]), tokens[4]]
    assert logits.argmax(1).tolist() == expected
    assert np.array_equal(executor.output("logits", 1, 3).view(np.float32), logits[1:3])
    with pytest.raises(LimitError, match="output logits: expected rows among the 5 of the last step, found 4 to 6"):
        executor.output("logits", 4, 6)
    with pytest.raises(ArgumentError, match="expected one that the engine's plan has, found sampling_slots"):
        executor.output("sampling_slots")
    with pytest.raises(LimitError, match="number of logits_indices: expected 0 to 24, found 25"):
        _core.compute(executor, ints(*tokens), ints(4, 1), ints(0, 0), tables, ints(*[0] * 25))


def test_steps_by_hand_stay_within_the_limits(executor: CudaExecutor) -> None:
    table = np.array([[0]], np.int32)
    with pytest.raises(LimitError, match=rf"token_ids\[1\]: expected 0 to {VOCAB - 1}, found {VOCAB}"):
        _core.step(executor, ints(0, VOCAB), ints(2), ints(0), table, ints(1))
    with pytest.raises(LimitError, match="columns of block_tables: expected 2 or more for sequence 0, found 1"):
        _core.step(executor, ints(1), ints(1), ints(PAGE), table, ints(0))
    with pytest.raises(LimitError, match=rf"block_tables\[0\]\[0\]: expected 0 to {NUM_BLOCKS - 1}, found"):
        _core.step(executor, ints(1), ints(1), ints(0), table + NUM_BLOCKS, ints(0))
    with pytest.raises(LimitError, match=f"block: expected 0 to {NUM_BLOCKS - 1}, found {NUM_BLOCKS}"):
        _testing.read_block(executor, NUM_BLOCKS)


def test_rows_between_wanted_ones_count_as_logits(tmp_path: Path) -> None:
    toy = make_toy_engine()
    toy.plan["symbols"]["num_logits"] = NUM_SEQS
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    executor = CudaExecutor(Engine(str(path)))
    tokens, table = ints(*range(NUM_SEQS + 3)), np.array([[0, 1, 2]], np.int32)
    arguments = (tokens, ints(len(tokens)), ints(0), table)
    assert _core.step(executor, *arguments, ints(3)).argmax() == successor([0, 1, 2, 3])
    message = rf"rows of logits .* at most {NUM_SEQS}, found {NUM_SEQS + 1}; ask for the last row"
    with pytest.raises(LimitError, match=message):
        _core.step(executor, *arguments, ints(2))


def test_programs_are_timed_by_name(executor: CudaExecutor) -> None:
    names = ["mixed", "decode_4", "decode_2"]
    for sustained in (False, True):  # the fake device takes equally long for both
        times = executor.time_programs(names, num_tokens=2, repeats=3, sustained=sustained)
        assert len(times) == len(names)
        assert all(time is not None and time > 0 for time in times)
    many = executor.time_programs(names * 3, num_tokens=2, sustained=True)
    assert [time is not None for time in many] == [True] * 6 + [False] * 3  # the first program, and five others
    assert executor.time_programs([], num_tokens=1) == []
    with pytest.raises(LimitError, match="expected the name of a program of this engine, found step_64"):
        executor.time_programs(["step_64"], num_tokens=1)
    with pytest.raises(LimitError, match="num_tokens: expected 1 to 2, found 3"):
        executor.time_programs(names, num_tokens=3)
    with pytest.raises(LimitError, match="repeats: expected 1 to 1000, found 0"):
        executor.time_programs(names, num_tokens=1, repeats=0)


def test_bytes_that_are_timed_are_numbers(fake_driver: ctypes.CDLL, tmp_path: Path) -> None:
    """Some bytes of 16-bit values are NaN as E4M3, and a product of zeros takes less power."""
    toy = make_toy_engine()
    rows = {"dtype": "float8_e4m3fn", "shape": ["num_tokens", 128], "layout": "row_major", "kind": "arena"}
    toy.plan["tensors"].append({"name": "rows", **rows, "offset": ARENA_BYTES})
    toy.plan["arena_bytes"] += MAX_NUM_TOKENS * 128
    matrix = {"tensor": len(toy.plan["tensors"]) - 1, "offset": 0, "rows": MAX_NUM_TOKENS, "columns": 128}
    boxes = {"tensor_map": {**matrix, "box_rows": 8, "box_columns": 128}}
    toy.plan["programs"][-1]["instructions"].append(
        launch("probe", 1, {"int": 3}, boxes, {"int": 5}, {"tensor": matrix["tensor"], "offset": 0})
    )
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(toy))
    CudaExecutor(Engine(str(path))).time_programs(["mixed"], num_tokens=8, repeats=1)
    assert fake_driver.fake_count(b"map_rows") == MAX_NUM_TOKENS
    assert fake_driver.fake_count(b"map_nans") == 0
    assert fake_driver.fake_count(b"map_zeros") < MAX_NUM_TOKENS


def test_products_are_timed_within_the_engines_limits(executor: CudaExecutor) -> None:
    assert executor.time_products(num_tokens=MAX_NUM_TOKENS) == []  # the toy engine has none
    with pytest.raises(LimitError, match=f"num_tokens: expected 1 to {MAX_NUM_TOKENS}, found {MAX_NUM_TOKENS + 1}"):
        executor.time_products(num_tokens=MAX_NUM_TOKENS + 1)
    with pytest.raises(LimitError, match="candidates: expected 1 to 1000, found 0"):
        executor.time_products(num_tokens=1, candidates=0)


def test_threads_that_run_steps_by_hand_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine()))
    executor = CudaExecutor(Engine(str(path)))

    def run_steps(thread: int) -> list[int]:
        tables = np.arange(thread * 6, thread * 6 + 6, dtype=np.int32)[None]
        tokens = ints(*range(thread, thread + 20))
        steps = [_core.step(executor, tokens, ints(20), ints(0), tables, ints(19)) for _ in range(20)]
        _testing.read_block(executor, thread)
        return [int(logits.argmax()) for logits in steps]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run_steps, range(4)))
    assert found == [[successor(list(range(thread, thread + 20)))] * 20 for thread in range(4)]
