"""Stages in Ray actors on two nodes: they give the tokens of an undivided engine, and a dead actor is noticed."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_tensor_parallel import checkpoint_of
from trtllm_lite import LLM, KvCacheConfig, SamplingParams, SchedulerConfig
from trtllm_lite.builder import build_engine
from trtllm_lite.errors import ArgumentError, DeviceError, EngineError

pytest.importorskip("ray", reason="needs the ray extra")

from tests.ray_cluster import HEAD, WORKER, TwoNodes, two_nodes
from trtllm_lite.runtime.ray import placement, stages
from trtllm_lite.runtime.ray.stage import Stage
from trtllm_lite.runtime.remote.engine_files import header_digest

MAX_SEQ_LEN = 8192
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": MAX_SEQ_LEN, "max_num_tokens": 16}
TIGHT: dict[str, Any] = {  # so that requests are swapped out
    "kv_cache_config": KvCacheConfig(max_tokens=128, host_cache_size=1 << 20),
    "scheduler_config": SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION"),
}
ENDLESS = SamplingParams(max_tokens=MAX_SEQ_LEN - 64, ignore_eos=True)  # far more tokens than the test waits for


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Engines of one model: ``one``, undivided, and ``two``, with two stages."""
    directory = tmp_path_factory.mktemp("ray")
    checkpoint = checkpoint_of("llama", directory, max_position_embeddings=MAX_SEQ_LEN)
    build_engine(checkpoint, directory / "one", **LIMITS)
    build_engine(checkpoint, directory / "two", pp_size=2, **LIMITS)
    return directory


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes(num_cpus=1) as running:
        yield running


@pytest.fixture
def cluster(nodes: TwoNodes) -> TwoNodes:
    """Both nodes; a node that an earlier test killed is started again."""
    nodes.complete()
    return nodes


@pytest.fixture
def llm(engines: Path, cluster: TwoNodes) -> Iterator[LLM]:  # noqa: ARG001
    with LLM(engines / "two", num_threads=1, distributed_executor_backend="ray") as running:
        yield running


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of one chunk and of several, some alike; greedy, sampled, and beam searches that fork."""
    prompts = [[1 + (7 * row + i) % 90 for i in range(length)] for row, length in enumerate((3, 40, 17, 5, 33, 64))]
    prompts.append(prompts[1])
    params = [SamplingParams(max_tokens=40, ignore_eos=True) for _ in prompts]
    params[2] = SamplingParams(max_tokens=30, temperature=1.0, seed=7, ignore_eos=True, logprobs=2)
    params[3] = SamplingParams(max_tokens=12, use_beam_search=True, n=2)
    return prompts, params


def test_stages_on_two_nodes_give_the_tokens_of_an_undivided_engine(engines: Path, cluster: TwoNodes) -> None:  # noqa: ARG001
    with LLM(engines / "one", num_threads=1, **TIGHT) as undivided:
        expected = undivided.generate(*requests(), use_tqdm=False)
    with LLM(engines / "two", num_threads=1, distributed_executor_backend="ray", **TIGHT) as llm:
        found = llm.generate(*requests(), use_tqdm=False)
        assert llm.get_stats().num_swap_preemptions > 0
    for one, two in zip(expected, found, strict=True):
        assert [output.token_ids for output in two.outputs] == [output.token_ids for output in one.outputs]
    assert llm.session.limits == undivided.session.limits
    assert set(llm.session.stages.nodes) == {HEAD, WORKER}
    assert llm.session.stages.memory["weights"] > 0


def test_what_cannot_run_is_refused(engines: Path, cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="is 'mpi': expected ray"):
        LLM(engines / "two", distributed_executor_backend="mpi")
    monkeypatch.setattr(placement, "PLACING_SECONDS", 0.1)
    with pytest.raises(DeviceError, match="2 stages of 64 CPUs each find no place"):
        LLM(engines / "two", distributed_executor_backend="ray", num_threads=64)
    cluster.wait_until_free()


def test_a_stage_refuses_another_engine(engines: Path) -> None:
    path = engines / "two" / "rank1.engine"
    with pytest.raises(EngineError, match="differs from the engine on the node that takes requests"):
        Stage({path: header_digest(engines / "two" / "rank0.engine")}, num_blocks=4, num_threads=1)
    with pytest.raises(EngineError, match="rank9"):
        Stage({engines / "rank9.engine": ""}, num_blocks=4, num_threads=1)


def kill_process(llm: LLM, _: TwoNodes) -> None:
    os.kill(llm.session.stages.pids[1], signal.SIGKILL)


def stop_process(llm: LLM, _: TwoNodes) -> None:
    os.kill(llm.session.stages.pids[0], signal.SIGSTOP)


def kill_node(_: LLM, cluster: TwoNodes) -> None:
    cluster.kill_node()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (kill_process, r"stage 1 of 2, on node 127\.0\.0\.\d, has ended: .* \(step \d+\): load the engine again"),
        (stop_process, r"stage 0 of 2, on node 127\.0\.0\.\d, is not done after 2 s \(step \d+\)"),
        (kill_node, r"stage \d of 2, on node 127\.0\.0\.3, has ended: .* \(step \d+\): load the engine again"),
    ],
)
def test_a_stage_that_ends_ends_all_requests(
    harm: Callable[[LLM, TwoNodes], None],
    message: str,
    llm: LLM,
    cluster: TwoNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if harm is stop_process:
        monkeypatch.setattr(stages, "STEP_SECONDS", 2.0)
    running = [llm.generate_async([row + 1, 2, 3], ENDLESS, streaming=True) for row in range(6)]  # two must wait
    for generation in running[:4]:
        next(iter(generation))
    harm(llm, cluster)
    for generation in running:
        with pytest.raises(EngineError, match=message):
            generation.result()
    assert llm.session.is_broken
    with pytest.raises(EngineError, match="load the engine again"):
        llm.generate([1, 2], use_tqdm=False)
    cluster.wait_until_free()
