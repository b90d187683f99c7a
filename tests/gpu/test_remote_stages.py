"""Stages in processes of their own, each on GPUs of its own, compute what one GPU computes.

The processes are children of this one, in place of the actors of Ray, which the machine need not have. The last stage
is here, on the first GPUs.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.test_tensor_parallel import BEAMS, DRAWN, PARAMS, PROMPTS, WITH_LOGITS, WITH_LOGPROBS, made, tokens
from tests.stage_processes import StageChildren
from tests.tolerances import GPU_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams, _core
from trtllm_lite.common.files import library_directories
from trtllm_lite.errors import DeviceError, EngineError
from trtllm_lite.runtime.remote import gpu_stages
from trtllm_lite.runtime.remote.engine_files import Digests
from trtllm_lite.runtime.session import remote

REMOTE: dict[str, Any] = {"distributed_executor_backend": "ray"}  # `processes` connects the stages instead of Ray
ENDLESS = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
TWO, THREE, FOUR = {"pp_size": 2}, {"pp_size": 3}, {"pp_size": 2, "tp_size": 2}


def needs(mapping: dict[str, int]) -> Any:
    """The mapping as a parameter, skipped on machines without a GPU for each rank."""
    count = mapping["pp_size"] * mapping.get("tp_size", 1)
    too_few = torch.cuda.device_count() < count
    return pytest.param(mapping, id=str(mapping), marks=pytest.mark.skipif(too_few, reason=f"needs {count} GPUs"))


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[StageChildren]:
    """The started processes: a child for each stage but the last, which sees the GPUs after those of earlier stages."""
    try:
        _core.nccl_ids(1, library_directories())
    except DeviceError as error:
        pytest.skip(str(error))
    started = []

    def start(stages: Sequence[Digests]) -> StageChildren:
        tp_size = len(stages[0])
        first = [tp_size * (1 + stage) for stage in range(len(stages))]
        seen = [",".join(map(str, range(begin, begin + tp_size))) for begin in first]
        started.append(StageChildren(stages, [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in seen]))
        return started[-1]

    monkeypatch.setattr(remote, "processes_of", start)
    return started


@pytest.mark.parametrize("mapping", [needs(TWO), needs(THREE), needs(FOUR)])
@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("qwen3", "float16")])
def test_stages_compute_what_one_gpu_computes(
    family: str, dtype: str, mapping: dict[str, int], tmp_path: Path, processes: list[StageChildren]
) -> None:
    one, divided = made(tmp_path, family, dtype, {}, mapping, gather_context_logits=True)
    found = []
    for directory, options in ((one, {}), (divided, REMOTE)):
        with LLM(directory, **options) as llm:
            found.append(llm.generate(PROMPTS, WITH_LOGITS, use_tqdm=False))
            on_card = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert list(map(tokens, on_card)) == list(map(tokens, found[-1]))
    for expected, actual in zip(*found, strict=True):
        alike = np.cumprod(np.equal(tokens(expected), tokens(actual))).sum() + 1  # texts differ from there on
        pairs = [(actual.context_logits, expected.context_logits)]
        pairs.append([output.outputs[0].generation_logits[:alike] for output in (actual, expected)])
        for logits, logits_of_one in pairs:
            assert_close(np.asarray(logits), np.asarray(logits_of_one), dtype, table=GPU_TOLERANCES)
    assert not any(child.process.is_alive() for child in processes[-1].children)


@pytest.mark.parametrize("mapping", [needs(TWO), needs(THREE)])
def test_stages_take_drafts_and_beams_and_swapped_requests(mapping: dict[str, int], tmp_path: Path) -> None:
    prompts, found = [[5, 6, 7] * (1 + number % 4) for number in range(12)], []
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    swapping = {
        "kv_cache_config": {"max_tokens": 160, "host_cache_size": 1 << 20, "enable_block_reuse": False},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
    }
    one, divided = made(tmp_path, "llama", "float16", {}, mapping, max_draft_len=3)
    for directory, more in ((one, {}), (divided, REMOTE)):
        for options in (drafting, swapping):
            with LLM(directory, **options, **more) as llm:
                outputs = llm.generate(prompts, [PARAMS, WITH_LOGPROBS, BEAMS] * 4, use_tqdm=False)
                found.append([tokens(output) for output in outputs])
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("mapping", [needs(TWO), needs(FOUR)])
def test_draws_repeat_alone_and_no_request_is_lost_under_load(mapping: dict[str, int], tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", mapping)
    with LLM(directory, kv_cache_config={"enable_block_reuse": False}, **REMOTE) as llm:
        alone = [llm.generate(prompt, DRAWN, use_tqdm=False) for prompt in PROMPTS[:1] * 3]
        assert len({tuple(tokens(output)) for output in alone}) == 1
        for _ in range(20):
            together = llm.generate(PROMPTS, DRAWN, use_tqdm=False)
            assert all(len(tokens(output)) == 24 for output in together)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (signal.SIGKILL, r"stage 0 of 2, on node child 0, has ended: .* \(step \d+\): load the engine again"),
        (signal.SIGSTOP, r"stage 0 of 2, on node child 0, is not done after 4 s \(step \d+\): load the engine again"),
    ],
)
@pytest.mark.parametrize("mapping", [needs(TWO)])
def test_requests_end_with_the_name_of_a_stage_that_ends(
    mapping: dict[str, int], harm: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_stages, "RANK_SECONDS", 2.0)
    (directory,) = made(tmp_path, "llama", "bfloat16", mapping)
    with LLM(directory, **REMOTE) as llm:
        expected = tokens(llm.generate(PROMPTS[0], PARAMS, use_tqdm=False))
        os.kill(llm.session.stages.pids[0], harm)
        running = [llm.generate_async(prompt, ENDLESS) for prompt in PROMPTS]
        for generation in running:
            with pytest.raises(EngineError, match=message):
                generation.result()
        with pytest.raises(EngineError, match="load the engine again"):
            llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    with LLM(directory, **REMOTE) as again:  # the same GPUs, whose memory has been released
        assert tokens(again.generate(PROMPTS[0], PARAMS, use_tqdm=False)) == expected
