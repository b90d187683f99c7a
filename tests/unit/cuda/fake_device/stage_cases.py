"""Stages in several processes with fake GPUs each, which send data through a fake NCCL."""

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stage_processes import StageChildren
from tests.unit.cuda.fake_device.guided_cases import arguments, check_guided, requests
from tests.unit.cuda.fake_device.requests import LIMITS, SECONDS_TO_AN_EVENT, check, greedy, held, random_prompts, run
from tests.unit.cuda.fake_device.sampling_cases import check_edits
from tests.unit.cuda.toy_engine import MAX_SEQ_LEN, NUM_BLOCKS, PAGE, make_toy_engine_of_stages, to_bytes
from trtllm_lite import _core
from trtllm_lite._core import FinishReason
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import DeviceError
from trtllm_lite.runtime.remote import gpu_stages
from trtllm_lite.runtime.remote.engine_files import stages_of
from trtllm_lite.runtime.remote.gpu_stages import GpuStages


@dataclass
class Pipeline:
    """An event loop over stages; all stages but the last are child processes."""

    children: StageChildren
    stages: GpuStages
    loop: Any = None


class Pipelines:
    """Opens pipelines in a directory, and closes them at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: list[Pipeline] = []
        self.before_connecting: Callable[[StageChildren], None] = lambda _: None

    def open(self, pp_size: int, tp_size: int = 1, num_blocks: int = NUM_BLOCKS, **options: Any) -> Pipeline:
        files = []
        for rank in range(pp_size * tp_size):
            files.append(self._directory / f"rank{rank}.engine")
            toy = make_toy_engine_of_stages(pp_size, rank // tp_size, tp_size, rank % tp_size)
            files[-1].write_bytes(to_bytes(toy))
        mapping = RankMapping(tp_size=tp_size, pp_size=pp_size)
        children = StageChildren(stages_of(files, mapping)[:-1])
        stages = GpuStages(children, mapping)
        self._opened.append(Pipeline(children, stages))
        assert all(free > 0 for free in stages.free_memory())
        stages.load(num_blocks, options.get("num_host_blocks", 0))
        engines = [_core.Engine(str(path)) for path in files[-tp_size:]]
        where = {"devices": list(range(tp_size)), "library_directories": []}
        last = _core.LastStage(engines, stages, num_blocks=num_blocks, rank_timeout=stages.rank_seconds, **where)
        for call in stages._loading:
            children.result(call, 60)
        self.before_connecting(children)
        stages.connect(last, engines[0])
        self._opened[-1].loop = _core.EventLoop(last, **{**LIMITS, **options})
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            pipeline = self._opened.pop()
            if pipeline.loop is not None:
                pipeline.loop.shut_down(drain=False)
            pipeline.stages.close()


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipelines]:
    monkeypatch.setenv("FAKE_GPUS", "2")
    monkeypatch.setenv("FAKE_PEER_ACCESS", "1")
    opened = Pipelines(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(("pp_size", "tp_size"), [(2, 1), (3, 1), (2, 2)])
def test_stages_give_the_models_tokens(pipelines: Pipelines, pp_size: int, tp_size: int) -> None:
    pipeline = pipelines.open(pp_size, tp_size)
    prompts = random_prompts(pp_size, 40)
    lengths = [1 + number % 12 for number in range(len(prompts))]
    answers = run(pipeline.loop, [(prompt, greedy(length)) for prompt, length in zip(prompts, lengths, strict=True)])
    for answer, prompt, length in zip(answers, prompts, lengths, strict=True):
        check(answer, prompt, length)


TIGHT: dict[str, Any] = {"num_blocks": MAX_SEQ_LEN // PAGE + 2, "num_host_blocks": 40, "max_utilization": True}


@pytest.mark.parametrize("pp_size", [2, 3])
def test_swapped_requests_go_on_in_all_stages(pipelines: Pipelines, fake_driver: ctypes.CDLL, pp_size: int) -> None:
    loop = pipelines.open(pp_size, **TIGHT).loop
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    answers = run(loop, [(prompt, greedy(20)) for prompt in prompts], fake_driver)
    for answer, prompt in zip(answers, prompts, strict=True):
        check(answer, prompt, 20)
    assert loop.stats()["num_swap_preemptions"] > 0


def test_prefixes_are_shared(pipelines: Pipelines) -> None:
    loop = pipelines.open(2, enable_block_reuse=True).loop
    prompt = [5, 4, 3, 2, 1] * 5
    for _ in range(3):
        [answer] = run(loop, [(prompt, greedy(4))])
        check(answer, prompt, 4)
    assert loop.stats()["hit_tokens"] > 0


@pytest.mark.parametrize("pp_size", [2, 3])
def test_guided_rows_and_rows_that_the_host_samples_mix_with_others(pipelines: Pipelines, pp_size: int) -> None:
    given, forms = requests(pp_size, 30)
    loop = pipelines.open(pp_size, **TIGHT).loop
    check_guided(run(loop, given, each=arguments(forms, generation_logits=True)), given, forms)


def test_sequences_end_and_edit_their_logits(pipelines: Pipelines) -> None:
    check_edits(pipelines.open(2).loop, random_prompts(5, 42), 12)


def kill(pipeline: Pipeline) -> None:
    os.kill(pipeline.stages.pids[0], signal.SIGKILL)


def stop(pipeline: Pipeline) -> None:
    os.kill(pipeline.stages.pids[0], signal.SIGSTOP)


def confuse(pipeline: Pipeline) -> None:
    """Send the stage a step that its engine does not support."""
    copies, inputs = np.empty((0, 3), np.int32), np.empty(7, np.uint8)
    pipeline.children.call(0, "step", 1, copies, (1, 1, 1, 1, 1, True), inputs)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (kill, r"has ended: its process or its node is gone \(step \d+\)"),
        (stop, r"is not done after 2 s \(step \d+\)"),
        (confuse, r"failed: step: inputs: expected \d+ bytes, found 7: the last stage runs another .* \(step \d+\)"),
    ],
)
def test_a_stage_that_ends_ends_all_requests(
    pipelines: Pipelines,
    fake_driver: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Pipeline], None],
    message: str,
) -> None:
    # A stage that has ended is noticed long before a step is late; a stopped one is noticed when a step is late.
    monkeypatch.setattr(gpu_stages, "RANK_SECONDS", 1.0 if harm is stop else SECONDS_TO_AN_EVENT)
    monkeypatch.setattr(gpu_stages, "_ANSWERING_SECONDS", 1.0)
    pipeline = pipelines.open(2)
    harm(pipeline)
    with held(fake_driver):  # no step ends before the failure is noticed
        answers = run(pipeline.loop, [([number + 1, 2, 3], greedy(30)) for number in range(9)])
    check_failed(answers, "stage 0 of 2, on node child 0, " + message)
    check_failed(run(pipeline.loop, [([1], greedy(3))]), "stage 0 of 2, .* load the engine again")
    assert pipeline.stages.failure is not None
    assert not pipeline.children.children[0].process.is_alive()


def test_a_last_stage_that_stalls_ends_the_others(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_stages, "RANK_SECONDS", 2.0)
    pipeline = pipelines.open(3)
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_STALLED_GPU", "0")
        check_failed(run(pipeline.loop, [([1, 2], greedy(30))]), r"step \d+ takes longer than twice the time by which")
        check_failed(run(pipeline.loop, [([1, 2], greedy(3))]), "did not come back from an earlier step")
        assert re.match(r"the last stage of 3 failed: step \d+ takes longer", pipeline.stages.failure or "")
        assert not any(child.process.is_alive() for child in pipeline.children.children)
        pipelines.close()
        del pipeline  # must not wait for work on the stalled GPU's streams


def check_failed(answers: list[Any], message: str) -> None:
    for answer in answers:
        assert answer.end is not None
        assert answer.end.reason == FinishReason.ERROR
        assert re.search(message, answer.end.message), answer.end.message


def test_a_stage_whose_file_is_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_of_stages(2, 0)))
    stages = GpuStages(StageChildren([{path: "another"}]), RankMapping(pp_size=2))
    with pytest.raises(DeviceError, match=r"stage 0 of 2, .* differs from the engine on .* \(loading\): load"):
        stages.free_memory()


def test_a_last_stage_that_does_not_connect_says_why(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines.before_connecting = lambda _: monkeypatch.setenv("FAKE_UNCONNECTED_RANK", "0")
    with pytest.raises(DeviceError, match=r"sending tokens to rank 0: no success \(NCCL 22700\)"):
        pipelines.open(2)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (signal.SIGKILL, r"stage 0 of 2, on node child 0, has ended: .* \(connecting\): load the engine again"),
        (signal.SIGSTOP, r"stage 0 of 2, on node child 0, is not connected after 1 s \(connecting\): load the engine"),
    ],
)
def test_a_stage_that_does_not_connect_is_named(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch, harm: int, message: str
) -> None:
    monkeypatch.setattr(gpu_stages, "CONNECTING_SECONDS", 1.0)
    pipelines.before_connecting = lambda children: os.kill(children.children[0].process.pid, harm)
    with pytest.raises(DeviceError, match=message):
        pipelines.open(2)
