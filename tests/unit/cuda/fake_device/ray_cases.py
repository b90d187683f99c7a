"""Stages on the fake GPUs of two nodes of a Ray cluster, whose processes find the fake libraries as this one does."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ray_cluster import HEAD, WORKER, TwoNodes, two_nodes
from tests.unit.cuda.fake_device.requests import expected
from tests.unit.cuda.toy_engine import POISON, VOCAB, make_toy_engine, make_toy_engine_of_stages, to_bytes
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.errors import ArgumentError, DeviceError, EngineError
from trtllm_lite.runtime.ray import placement
from trtllm_lite.runtime.remote import gpu_stages
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import open_session

MODEL = {
    **{"producer": "handmade", "architecture": "Toy", "family": "toy", "dtype": "float16", "vocab_size": VOCAB},
    **{"hidden_size": 1, "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1},
    **{"num_key_value_heads": 1, "head_dim": 1, "max_position_embeddings": 64, "eos_token_ids": [], "generation": {}},
    **{"bos_token_id": None, "pad_token_id": None, "tokenizer": False, "ignored_config_keys": [], "format_version": 3},
    **{"labels": [], "problem_type": "", "second_text_offset": 0},
}
PROMPTS = [[1 + row, 2, 3] for row in range(9)]
ENDLESS = SamplingParams(max_tokens=36, temperature=0.0, ignore_eos=True)


def written(directory: Path, *engines: Any) -> Path:
    for rank, toy in enumerate(engines):
        toy.manifest["model"] = MODEL
        (directory / f"rank{rank}.engine").write_bytes(to_bytes(toy))
    return directory


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes(num_cpus=1, num_gpus=1) as running:
        yield running


@pytest.fixture
def cluster(nodes: TwoNodes) -> TwoNodes:
    """Both nodes; a node that an earlier test killed is started again."""
    nodes.complete()
    return nodes


@pytest.fixture(autouse=True)
def _visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last stage, which this process runs, use GPU 1: Ray gives out GPU 0 of both nodes, on this machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """An engine of three stages."""
    return written(tmp_path, *(make_toy_engine_of_stages(3, stage) for stage in range(3)))


def test_stages_on_two_nodes_give_the_models_tokens(three: Path, cluster: TwoNodes) -> None:
    with LLM(three, distributed_executor_backend="ray") as llm:
        for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, ENDLESS, use_tqdm=False), strict=True):
            tokens = expected(prompt, 36)
            assert output.outputs[0].token_ids == tokens[: tokens.index(POISON) + 1 if POISON in tokens else 36]
        assert set(llm.session.stages.nodes) == {HEAD, WORKER}
        assert llm.session.executor.memory["kv_cache"] > llm.session.stages.memory["kv_cache"] > 0
    cluster.wait_until_free()


def test_what_cannot_run_is_refused(
    three: Path, tmp_path_factory: pytest.TempPathFactory, cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = written(tmp_path_factory.mktemp("one"), make_toy_engine())
    with pytest.raises(ArgumentError, match="a GPU engine with one stage runs in this process"):
        LLM(one, distributed_executor_backend="ray")
    with pytest.raises(ArgumentError, match=r"device_ids are the GPUs of the last stage, .* expected 1 different ones"):
        open_session(three, 0, RunnerOptions(distributed_executor_backend="ray", device_ids=(0, 1, 2)))
    with pytest.raises(DeviceError, match="GPU 7: expected one of 1 that the driver shows"):
        open_session(three, 0, RunnerOptions(distributed_executor_backend="ray", device_ids=(7,)))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES")
        with pytest.raises(DeviceError, match=r"stage \d of 3 was placed on GPU 0 of .*, which the last stage takes"):
            LLM(three, distributed_executor_backend="ray")
    cluster.wait_until_free()
    monkeypatch.setattr(placement, "PLACING_SECONDS", 0.1)
    four = written(tmp_path_factory.mktemp("four"), *(make_toy_engine_of_stages(4, stage) for stage in range(4)))
    with pytest.raises(DeviceError, match=r"3 stages of 1 GPUs each find no place in the Ray cluster within .* GPUs"):
        LLM(four, distributed_executor_backend="ray")
    cluster.wait_until_free()


def kill_process(llm: LLM, _: TwoNodes) -> None:
    os.kill(llm.session.stages.pids[1], signal.SIGKILL)


def stop_process(llm: LLM, _: TwoNodes) -> None:
    os.kill(llm.session.stages.pids[0], signal.SIGSTOP)


def kill_node(_: LLM, cluster: TwoNodes) -> None:
    cluster.kill_node()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (kill_process, r"stage 1 of 3, on node 127\.0\.0\.\d, has ended: .* \(step \d+\): load the engine again"),
        (stop_process, r"stage 0 of 3, on node 127\.0\.0\.\d, is not done after 4 s \(step \d+\)"),
        (kill_node, r"stage \d of 3, on node 127\.0\.0\.3, has ended: .* \(step \d+\): load the engine again"),
    ],
)
def test_a_stage_that_ends_ends_all_requests(
    harm: Callable[[LLM, TwoNodes], None],
    message: str,
    three: Path,
    cluster: TwoNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if harm is stop_process:
        monkeypatch.setattr(gpu_stages, "RANK_SECONDS", 2.0)
    with LLM(three, distributed_executor_backend="ray") as llm:
        harm(llm, cluster)
        running = [llm.generate_async(prompt, ENDLESS) for prompt in PROMPTS]
        for generation in running:
            with pytest.raises(EngineError, match=message):
                generation.result()
        assert llm.session.is_broken
        with pytest.raises(EngineError, match="load the engine again"):
            llm.generate([1, 2], use_tqdm=False)
    cluster.wait_until_free()
