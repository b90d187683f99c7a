"""Engines of several ranks on a fake driver of as many GPUs, which reach each other's memory, or have NCCL."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.csrc.tiny_engine import TinyEngine
from tests.unit.cuda.fake_device.requests import LIMITS, Answer, check, greedy, random_prompts, run
from tests.unit.cuda.toy_engine import (
    make_toy_engine_of_nccl,
    make_toy_engine_of_ranks,
    make_toy_engine_of_stages,
    to_bytes,
)
from trtllm_lite import _core
from trtllm_lite._core import FinishReason
from trtllm_lite.errors import DeviceError, EngineError

Make = Callable[[int, int], TinyEngine]

OF_EITHER_KIND = pytest.mark.parametrize("make", [make_toy_engine_of_ranks, make_toy_engine_of_nccl])

GIVEN_UP = "a rank of this engine did not come back from an earlier step: load the engine again"


def loop_of(directory: Path, make: Make, count: int, **options: Any) -> _core.EventLoop:
    """An event loop over an engine of ``count`` ranks."""
    return _core.EventLoop(open_ranks(directory, make, count, **options), **LIMITS)


def open_ranks(directory: Path, make: Make, count: int, **options: Any) -> _core.DeviceExecutor:
    engines = []
    for rank in range(count):
        path = directory / f"rank{rank}.engine"
        path.write_bytes(to_bytes(make(count, rank)))
        engines.append(_core.Engine(str(path)))
    return _core.open_executor(engines, **options)


@pytest.fixture
def fake_nccl() -> ctypes.CDLL:
    library = ctypes.CDLL("libnccl.so.2")
    library.fake_communicators.restype = library.fake_aborted.restype = ctypes.c_int64
    return library


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Four GPUs, which reach each other's memory unless they have NCCL."""
    monkeypatch.setenv("FAKE_GPUS", "4")
    callspec = getattr(request.node, "callspec", None)
    by_nccl = callspec is not None and callspec.params.get("make") is make_toy_engine_of_nccl
    monkeypatch.setenv("FAKE_PEER_ACCESS", "0" if by_nccl else "1")


@OF_EITHER_KIND
@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_give_the_models_tokens(tmp_path: Path, make: Make, count: int) -> None:
    loop = loop_of(tmp_path, make, count)
    prompts = random_prompts(3, 30)
    lengths = [1 + number % 12 for number in range(len(prompts))]
    answers = run(loop, [(prompt, greedy(length)) for prompt, length in zip(prompts, lengths, strict=True)])
    for answer, prompt, length in zip(answers, prompts, lengths, strict=True):
        check(answer, prompt, length)


@OF_EITHER_KIND
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_rank_whose_queue_is_full_waits_for_ranks_that_are_put_on_streams_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, count: int
) -> None:
    monkeypatch.setenv("FAKE_MAX_PENDING", "1")
    loop = loop_of(tmp_path, make, count)
    prompts = random_prompts(4, 12)
    for answer, prompt in zip(run(loop, [(prompt, greedy(7)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 7)


@OF_EITHER_KIND
def test_one_thread_launches_the_graphs_of_all_ranks(fake_driver: ctypes.CDLL, tmp_path: Path, make: Make) -> None:
    def counts() -> dict[str, int]:
        names = ("graphs", "captured", "launched", "graph_threads")
        return {name: fake_driver.fake_count(name.encode()) for name in names}

    begin = counts()
    loop = loop_of(tmp_path, make, 2)
    before = counts()
    num_sizes = 4  # 1, 2, 4 and 8 rows; one rank captures 5 kernels, and 4 without sampling; the other captures 4
    assert before["captured"] - begin["captured"] == (5 + 4 + 4) * num_sizes
    assert before["launched"] - begin["launched"] == (5 + 4) * num_sizes
    [answer] = run(loop, [([1, 2, 3], greedy(11))])
    loop.shut_down()
    check(answer, [1, 2, 3], 11)
    done = {name: number - before[name] for name, number in counts().items()}
    assert (done["captured"], done["launched"]) == (0, 5 + 4)  # kernels of the prompt's step
    assert done["graphs"] in (2 * 10, 2 * 11)  # a step more may be under way when the last token is known
    assert done["graph_threads"] == 1


def test_gpus_that_do_not_reach_each_other_are_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PEER_ACCESS", "0")
    refusal = r"GPU 0 \(Fake GPU\): expected access to the memory of GPU 1, .* --allreduce_strategy NCCL"
    with pytest.raises(DeviceError, match=refusal):
        open_ranks(tmp_path, make_toy_engine_of_ranks, 2)


def test_communicators_end_with_the_engine(fake_nccl: ctypes.CDLL, tmp_path: Path) -> None:
    before = fake_nccl.fake_communicators()
    loop = loop_of(tmp_path, make_toy_engine_of_nccl, 4)
    assert fake_nccl.fake_communicators() == before + 4
    del loop
    assert fake_nccl.fake_communicators() == before


def test_ranks_that_nccl_does_not_connect_are_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UNCONNECTED_RANK", "1")
    with pytest.raises(DeviceError, match=r"connecting 2 ranks: no success \(NCCL 22700\)"):
        open_ranks(tmp_path, make_toy_engine_of_nccl, 2)


def errors_of(answers: list[Answer]) -> list[str]:
    assert all(answer.end is not None and answer.end.reason == _core.FinishReason.ERROR for answer in answers)
    return [answer.end.message for answer in answers if answer.end is not None]


@pytest.mark.parametrize("stalled", [0, 1])
def test_a_step_of_which_a_rank_stalls_is_named_and_ends_all_requests(
    fake_nccl: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalled: int
) -> None:
    before, aborted = fake_nccl.fake_communicators(), fake_nccl.fake_aborted()
    loop = loop_of(tmp_path, make_toy_engine_of_nccl, 2, rank_timeout=0.5)
    monkeypatch.setenv("FAKE_STALLED_GPU", str(stalled))
    monkeypatch.setenv("FAKE_REMOTE_ERROR_RANK", "1")
    first, *others = errors_of(run(loop, [(prompt, greedy(9)) for prompt in random_prompts(5, 9)]))
    why = r"a GPU of the engine has failed, load it again \(rank 1 on GPU 1: a remote process exited\)"
    assert re.fullmatch(rf"step \d+ takes longer than twice the time by which a rank may be late: {why}", first)
    for error in others:
        assert error == first or "did not come back from an earlier step" in error
    (later,) = errors_of(run(loop, [([1, 2], greedy(3))]))
    assert "did not come back from an earlier step" in later
    del loop
    assert fake_nccl.fake_communicators() == before
    assert fake_nccl.fake_aborted() == aborted + 2


def test_a_rank_whose_gpu_fails_is_named_and_others_do_not_wait_for_it(
    fake_nccl: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = fake_nccl.fake_aborted()
    loop = loop_of(tmp_path, make_toy_engine_of_nccl, 2)
    monkeypatch.setenv("FAKE_DEAD_GPU", "1")
    first, *others = errors_of(run(loop, [(prompt, greedy(9)) for prompt in random_prompts(6, 9)]))
    assert first.startswith("rank 1 on GPU 1: using the context of Fake GPU")
    for error in others:
        assert error == first or "did not come back from an earlier step" in error
    del loop
    assert fake_nccl.fake_aborted() == aborted + 2


def test_ranks_do_not_wait_for_one_that_fails_when_graphs_are_made(
    fake_nccl: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, aborted = fake_nccl.fake_communicators(), fake_nccl.fake_aborted()
    executor = open_ranks(tmp_path, make_toy_engine_of_nccl, 2)
    monkeypatch.setenv("FAKE_REFUSING_GPU", "1")
    with pytest.raises(DeviceError, match="launching embed_of_rank: CUDA_ERROR_FAKE"):
        _core.EventLoop(executor, **LIMITS)
    del executor
    assert fake_nccl.fake_communicators() == before
    assert fake_nccl.fake_aborted() == aborted + 2


def test_a_machine_without_nccl_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    open_ranks(tmp_path, make_toy_engine_of_nccl, 2)
    directory = tmp_path / "driver"
    directory.mkdir()
    for entry in os.environ["LD_LIBRARY_PATH"].split(":"):
        driver = Path(entry) / "libcuda.so.1"
        if driver.exists():
            shutil.copy(driver, directory)
    program = (
        "import sys; from trtllm_lite import _core, errors\n"
        "ranks = [_core.Engine(path) for path in sys.argv[1:]]\n"
        "try: _core.open_executor(ranks)\n"
        "except errors.DeviceError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, *map(str, sorted(tmp_path.glob("*.engine")))]
    environment = os.environ | {"LD_LIBRARY_PATH": str(directory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "libnccl.so.2" in done.stdout
    assert "pip install 'trtllm_lite[nccl]'" in done.stdout


def test_engines_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    def refusal(change: Callable[[TinyEngine], None]) -> str:
        toy = make_toy_engine_of_nccl(2, 0)
        change(toy)
        path = tmp_path / "rank0.engine"
        path.write_bytes(to_bytes(toy))
        with pytest.raises(EngineError) as error:
            _core.Engine(str(path))
        return str(error.value)

    def collectives(toy: TinyEngine) -> list[dict[str, Any]]:
        return [step for step in toy.plan["programs"][-1]["instructions"] if step["kind"] == "collective"]

    assert "expected ranks that communicate by NCCL" in refusal(
        lambda toy: toy.manifest.update(allreduce_strategy="AUTO")
    )
    assert "expected a collective of GPUs" in refusal(lambda toy: collectives(toy)[0].update(op="all_gather"))
    assert "x and y with rows of equal size" in refusal(lambda toy: collectives(toy)[1].update(y_features=50))
    assert "to lie inside tensor part" in refusal(lambda toy: collectives(toy)[1].update(y=collectives(toy)[1]["x"]))
    assert "expected one called last_tokens" in refusal(lambda toy: toy.plan["outputs"].pop("last_tokens"))
    alone = {"tp_size": 1, "rank": 0, "pp_size": 2, "moe_ep_size": 1}
    assert "expected NCCL for the GPUs of one stage" in refusal(lambda toy: toy.manifest.update(mapping=alone))


@pytest.mark.parametrize("num_pending", ["0", "1"])  # kernels that a queue holds; 0: any number
@pytest.mark.parametrize("accepted", [0, 2, 6, 9])  # launches; a prompt takes 5, or 6 on the rank that samples
@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_a_rank_whose_launch_is_refused_ends_the_waiting_of_others(
    fake_driver: ctypes.CDLL,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusing: int,
    accepted: int,
    num_pending: str,
) -> None:
    """Steps in flight end with the same error; results that ranks computed without waiting for others are not read."""
    loop = loop_of(tmp_path, make_toy_engine_of_ranks, 3)
    monkeypatch.setenv("FAKE_MAX_PENDING", num_pending)
    before = fake_driver.fake_count(f"launches_of_{refusing}".encode())
    monkeypatch.setenv("FAKE_MAX_LAUNCHES", str(before + accepted))
    monkeypatch.setenv("FAKE_REFUSING_GPU", str(refusing))
    first, *others = map(error, run(loop, [([1, 2, 3], greedy(20))] * 4, fake_driver))
    assert re.match(rf"rank {refusing} on GPU {refusing}: launching .*: CUDA_ERROR_FAKE", first)
    assert set(others) <= {first, GIVEN_UP}  # the errors of ranks that had not reached the step
    assert fake_driver.fake_num_waiting() == 0
    monkeypatch.delenv("FAKE_REFUSING_GPU")
    [later] = run(loop, [([1, 2, 3], greedy(5))])
    assert error(later) == GIVEN_UP


def error(answer: Answer) -> str:
    """The error message of a failed request."""
    assert answer.end is not None
    assert answer.end.reason == FinishReason.ERROR
    return answer.end.message


@pytest.mark.parametrize("refusing", [0, 1])
def test_ranks_that_are_not_all_captured_leave_none_waiting(
    fake_driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: int
) -> None:
    executor = open_ranks(tmp_path, make_toy_engine_of_ranks, 2)
    before = fake_driver.fake_count(f"launches_of_{refusing}".encode())
    monkeypatch.setenv("FAKE_MAX_LAUNCHES", str(before + 3))
    monkeypatch.setenv("FAKE_REFUSING_GPU", str(refusing))
    with pytest.raises(DeviceError, match=rf"rank {refusing} on GPU {refusing}: launching "):
        _core.EventLoop(executor, **LIMITS)
    assert fake_driver.fake_num_waiting() == 0


def test_ranks_reach_their_stage_the_next_one_and_the_rank_that_draws(
    fake_driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three stages of two ranks, the fifth rank samples."""
    monkeypatch.setenv("FAKE_GPUS", "6")
    pairs = [(rank, other) for rank in range(6) for other in range(6)]
    names = {pair: "access_of_{}_to_{}".format(*pair).encode() for pair in pairs}
    before = {pair: fake_driver.fake_count(name) for pair, name in names.items()}
    opened_before = [fake_driver.fake_count(f"opened_to_{rank}".encode()) for rank in range(6)]
    paths = [tmp_path / f"rank{rank}.engine" for rank in range(6)]
    for rank, path in enumerate(paths):
        path.write_bytes(to_bytes(make_toy_engine_of_stages(3, rank // 2, 2, rank % 2)))
    _core.open_executor([_core.Engine(str(path)) for path in paths])
    found = {pair for pair, name in names.items() if fake_driver.fake_count(name) > before[pair]}
    stages = {(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)}
    assert found == {*stages, (0, 2), (1, 3), (2, 4), (3, 5), (0, 4), (1, 4), (3, 4)}
    for rank, before_it in enumerate(opened_before):  # caches, of one slab each, are open to whom memory is
        caches = [rank, *(other for one, other in found if one == rank)]
        assert fake_driver.fake_count(f"opened_to_{rank}".encode()) - before_it == len(caches)


@OF_EITHER_KIND
def test_counts_of_experts_are_read_from_all_ranks(tmp_path: Path, make: Make) -> None:
    """Here the tensor of the counts lies where the executor writes a rank's number and the number of ranks."""

    def counting(count: int, rank: int) -> TinyEngine:
        toy = make(count, rank)
        toy.manifest["mapping"]["moe_ep_size"] = 2
        table = next(tensor for tensor in toy.plan["tensors"] if tensor["name"] == "ranks")
        toy.plan["tallies"] = [len(toy.plan["tensors"])]
        toy.plan["tensors"].append({**table, "name": "tally", "shape": [5]})
        return toy

    (counts,) = open_ranks(tmp_path, counting, 4).expert_counts()
    assert counts["choices"] == [0, 4, 2, 4]
    assert counts["experts_read"] == [0, 0]
