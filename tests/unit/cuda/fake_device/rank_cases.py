"""Engines of several ranks on a fake driver of as many GPUs."""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cuda.fake_device.requests import LIMITS, Answer, check, greedy, random_prompts, run
from tests.unit.cuda.toy_engine import make_toy_engine_of_ranks, make_toy_engine_of_stages, to_bytes
from trtllm_lite import _core
from trtllm_lite._core import FinishReason
from trtllm_lite.errors import DeviceError

GIVEN_UP = "a rank of this engine did not come back from an earlier step: load the engine again"


def loop_of(directory: Path, count: int) -> _core.EventLoop:
    """An event loop over an engine of so many ranks."""
    return _core.EventLoop(open_ranks(directory, count), **LIMITS)


def open_ranks(directory: Path, count: int, **options: Any) -> _core.DeviceExecutor:
    engines = []
    for rank in range(count):
        path = directory / f"rank{rank}.engine"
        path.write_bytes(to_bytes(make_toy_engine_of_ranks(count, rank)))
        engines.append(_core.Engine(str(path)))
    return _core.open_executor(engines, **options)


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs that reach each other's memory."""
    monkeypatch.setenv("FAKE_GPUS", "4")
    monkeypatch.setenv("FAKE_PEER_ACCESS", "1")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_give_the_models_tokens(tmp_path: Path, count: int) -> None:
    loop = loop_of(tmp_path, count)
    prompts = random_prompts(3, 30)
    lengths = [1 + number % 12 for number in range(len(prompts))]
    answers = run(loop, [(prompt, greedy(length)) for prompt, length in zip(prompts, lengths, strict=True)])
    for answer, prompt, length in zip(answers, prompts, lengths, strict=True):
        check(answer, prompt, length)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_rank_whose_queue_is_full_waits_for_ranks_that_are_put_on_streams_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("FAKE_MAX_PENDING", "1")
    loop = loop_of(tmp_path, count)
    prompts = random_prompts(4, 12)
    for answer, prompt in zip(run(loop, [(prompt, greedy(7)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 7)


def test_one_thread_launches_the_graphs_of_all_ranks(fake_driver: ctypes.CDLL, tmp_path: Path) -> None:
    def counts() -> dict[str, int]:
        names = ("graphs", "captured", "launched", "graph_threads")
        return {name: fake_driver.fake_count(name.encode()) for name in names}

    begin = counts()
    loop = loop_of(tmp_path, 2)
    before = counts()
    num_sizes = 4  # 1, 2, 4 and 8 rows, of five launches each; the rank that draws has the whole and all but the last
    assert before["captured"] - begin["captured"] == (5 + 4 + 4) * num_sizes
    assert before["launched"] - begin["launched"] == (5 + 4) * num_sizes
    [answer] = run(loop, [([1, 2, 3], greedy(11))])
    loop.shut_down()
    check(answer, [1, 2, 3], 11)
    done = {name: number - before[name] for name, number in counts().items()}
    assert (done["captured"], done["launched"]) == (0, 5 + 4)  # the prompt's
    assert done["graphs"] in (2 * 10, 2 * 11)  # a step more may be under way when the last token is known
    assert done["graph_threads"] == 1


@pytest.mark.parametrize("num_pending", ["0", "1"])  # kernels that a queue holds; 0: any number
@pytest.mark.parametrize("accepted", [0, 2, 6, 9])  # launches; a prompt takes 5, or where tokens are drawn 6
@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_a_rank_whose_launch_is_refused_ends_the_waiting_of_others(
    fake_driver: ctypes.CDLL,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusing: int,
    accepted: int,
    num_pending: str,
) -> None:
    """Steps in flight end with the same error: what their ranks computed without waiting nobody reads."""
    loop = loop_of(tmp_path, 3)
    monkeypatch.setenv("FAKE_MAX_PENDING", num_pending)
    before = fake_driver.fake_count(f"launches_of_{refusing}".encode())
    monkeypatch.setenv("FAKE_MAX_LAUNCHES", str(before + accepted))
    monkeypatch.setenv("FAKE_REFUSING_GPU", str(refusing))
    first, *others = map(error, run(loop, [([1, 2, 3], greedy(20))] * 4, fake_driver))
    assert re.match(rf"rank {refusing} on GPU {refusing}: launching .*: CUDA_ERROR_FAKE", first)
    assert set(others) <= {first, GIVEN_UP}  # which those hear that were in no step yet
    assert fake_driver.fake_num_waiting() == 0
    monkeypatch.delenv("FAKE_REFUSING_GPU")
    [later] = run(loop, [([1, 2, 3], greedy(5))])
    assert error(later) == GIVEN_UP


def error(answer: Answer) -> str:
    """Why a request failed."""
    assert answer.end is not None
    assert answer.end.reason == FinishReason.ERROR
    return answer.end.message


@pytest.mark.parametrize("refusing", [0, 1])
def test_ranks_that_are_not_all_captured_leave_none_waiting(
    fake_driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: int
) -> None:
    executor = open_ranks(tmp_path, 2)
    before = fake_driver.fake_count(f"launches_of_{refusing}".encode())
    monkeypatch.setenv("FAKE_MAX_LAUNCHES", str(before + 3))
    monkeypatch.setenv("FAKE_REFUSING_GPU", str(refusing))
    with pytest.raises(DeviceError, match=rf"rank {refusing} on GPU {refusing}: launching "):
        _core.EventLoop(executor, **LIMITS)
    assert fake_driver.fake_num_waiting() == 0


def test_ranks_reach_their_stage_the_next_one_and_the_rank_that_draws(
    fake_driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three stages of two ranks, the fifth draws."""
    monkeypatch.setenv("FAKE_GPUS", "6")
    pairs = [(rank, other) for rank in range(6) for other in range(6)]
    names = {pair: "access_of_{}_to_{}".format(*pair).encode() for pair in pairs}
    before = {pair: fake_driver.fake_count(name) for pair, name in names.items()}
    paths = [tmp_path / f"rank{rank}.engine" for rank in range(6)]
    for rank, path in enumerate(paths):
        path.write_bytes(to_bytes(make_toy_engine_of_stages(3, rank // 2, 2, rank % 2)))
    _core.open_executor([_core.Engine(str(path)) for path in paths])
    found = {pair for pair, name in names.items() if fake_driver.fake_count(name) > before[pair]}
    stages = {(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)}
    assert found == {*stages, (0, 2), (1, 3), (2, 4), (3, 5), (0, 4), (1, 4), (3, 4)}


def test_gpus_that_do_not_reach_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PEER_ACCESS", "0")
    with pytest.raises(DeviceError, match=r"GPU 0 \(Fake GPU\): expected access to the memory of GPU 1, found no way"):
        open_ranks(tmp_path, 2)
