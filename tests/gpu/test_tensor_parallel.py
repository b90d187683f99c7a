"""Engines on two GPUs, by tensor or pipeline parallelism, compute what one GPU computes."""

import re
import subprocess
import sys
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.test_tensor_parallel import EVEN, LIMITS
from tests.models import save_tiny_model
from tests.tolerances import BYTE_TOLERANCES, GPU_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.common.files import library_directories
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, DeviceError
from trtllm_lite.runtime import ModelRunner

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")

PROMPTS = [[5, 6, 7, 8] * 4, [9, 10], list(range(30)), [3] * 17]


def has_nccl() -> bool:
    return any(Path(directory, "libnccl.so.2").exists() for directory in library_directories()) or bool(
        find_library("nccl")
    )


BY_NCCL = pytest.param(
    {"tp_size": 2, "allreduce_strategy": "NCCL"},
    marks=pytest.mark.skipif(not has_nccl(), reason="there is no libnccl.so.2: pip install nvidia-nccl-cu13"),
)
OF_TWO = pytest.mark.parametrize("two", [{"tp_size": 2}, {"pp_size": 2}, BY_NCCL], ids=str)

OWN_SHAPES = {
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "moe_intermediate_size": 64},
    # All experts are chosen, so that rounding changes no choice. Each rank has 8 value heads.
    "qwen3_next": {
        **{"head_dim": 32, "partial_rotary_factor": 0.5, "linear_num_value_heads": 16, "linear_key_head_dim": 16},
        **{"linear_value_head_dim": 24, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64},
        "shared_expert_intermediate_size": 64,
    },
}
PARAMS = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
WITH_LOGITS = replace(PARAMS, return_context_logits=True, return_generation_logits=True)
DRAWN = replace(PARAMS, temperature=0.8, seed=5)
WITH_LOGPROBS = replace(PARAMS, logprobs=2)
BEAMS = SamplingParams(max_tokens=12, n=2, use_beam_search=True)


def made(directory: Path, family: str, dtype: str, *mappings: dict[str, Any], **how: Any) -> list[Path]:
    """An engine for each of ``mappings``, such as {"tp_size": 2}."""
    shape = {**EVEN, "max_position_embeddings": 2048, **OWN_SHAPES.get(family, {})}
    save_tiny_model(family, directory / "model", **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    made = []
    for number, mapping in enumerate(mappings):
        made.append(directory / f"engine-{number}")
        build_engine(directory / "checkpoint", made[-1], target="sm_90", **{**LIMITS, **how, **mapping})
    return made


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


@OF_TWO
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_next"])
def test_two_gpus_compute_what_one_computes(family: str, dtype: str, two: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for directory in made(tmp_path, family, dtype, {}, two, gather_context_logits=True):
        with LLM(directory) as llm:
            found.append(llm.generate(PROMPTS, WITH_LOGITS, use_tqdm=False))
            on_card = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert list(map(tokens, on_card)) == list(map(tokens, found[-1]))
    for one, two in zip(*found, strict=True):
        pairs = [(two.context_logits, one.context_logits)]
        alike = np.cumprod(np.equal(tokens(one), tokens(two))).sum() + 1  # texts differ from there on
        pairs.append([output.outputs[0].generation_logits[:alike] for output in (two, one)])
        for actual, expected in pairs:
            assert_close(np.asarray(actual), np.asarray(expected), dtype, table=GPU_TOLERANCES)


@pytest.mark.parametrize("moe_ep_size", [1, 2])
def test_two_gpus_share_out_experts(moe_ep_size: int, tmp_path: Path) -> None:
    """Nearly equal scores may change order, and a text differs from there on; at least half of the texts agree."""
    texts = []
    for directory in made(tmp_path, "qwen3_moe", "float16", {}, {"tp_size": 2, "moe_ep_size": moe_ep_size}):
        with LLM(directory) as llm:
            texts.append(list(map(tokens, llm.generate(PROMPTS, PARAMS, use_tqdm=False))))
    assert 2 * sum(one == two for one, two in zip(*texts, strict=True)) >= len(PROMPTS)


@pytest.mark.parametrize("how", [{}, {"qformat": "fp8_rowwise"}, {"qformat": "int8_wo"}], ids=str)
def test_long_prompts_are_what_one_gpu_makes_of_them(how: dict[str, Any], tmp_path: Path) -> None:
    """Ranks store rows on their owners in large steps, and send rows in other steps."""
    limits = {"max_input_len": 1500, "max_seq_len": 1600, "max_num_tokens": 2048, "gather_context_logits": True}
    prompts, found = [[(7 * i + k) % 60 for i in range(1337 + k)] for k in range(3)] + PROMPTS, []
    for directory in made(tmp_path, "llama", "bfloat16", {}, {"tp_size": 2}, **limits, **how):
        with LLM(directory) as llm:
            found.append(llm.generate(prompts, WITH_LOGITS, use_tqdm=False))
    for one, two in zip(*found, strict=True):
        table = GPU_TOLERANCES if not how else BYTE_TOLERANCES
        assert_close(np.asarray(two.context_logits), np.asarray(one.context_logits), "bfloat16", table=table)


@OF_TWO
def test_draws_repeat_alone_and_no_request_is_lost_under_load(two: dict[str, Any], tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", two)
    with LLM(directory, kv_cache_config={"enable_block_reuse": False}) as llm:
        alone = [llm.generate(prompt, DRAWN, use_tqdm=False) for prompt in PROMPTS[:1] * 3]
        assert len({tuple(tokens(output)) for output in alone}) == 1
        for _ in range(20):
            together = llm.generate(PROMPTS, DRAWN, use_tqdm=False)
            assert all(len(tokens(output)) == 24 for output in together)


def errors_of(directory: Path, failure: str, rank: int) -> list[str]:
    """The errors of nine requests, and of one after them."""
    command = [sys.executable, "-m", "tests.gpu.failing_rank", str(directory), failure, str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    errors = done.stdout.splitlines()
    assert len(errors) == 10, done.stderr
    return errors


@pytest.mark.parametrize("two", [{"tp_size": 2}, BY_NCCL], ids=str)
def test_requests_end_with_the_name_of_a_rank_that_ends(two: dict[str, Any], tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", two)
    for error in errors_of(directory, "end", 1):
        assert "rank 1 on GPU 1" in error or "did not come back from an earlier step" in error, error


@pytest.mark.parametrize("rank", [0, 1])
def test_requests_end_with_the_name_of_a_rank_that_stalls(rank: int, tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", {"tp_size": 2})
    first, *others = errors_of(directory, "stall", rank)
    where = r"collective \d+ \(\S+\) of step \d+"
    assert re.match(rf"rank {rank} of 2 did not come to {where} within 1 s of the first", first)
    for error in others:
        assert error == first or "did not come back from an earlier step" in error, error


@pytest.mark.parametrize("two", [BY_NCCL], ids=str)
@pytest.mark.parametrize("rank", [0, 1])
def test_requests_end_with_the_step_of_which_a_rank_stalls_in_nccl(
    rank: int, two: dict[str, Any], tmp_path: Path
) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", two)
    first, *others = errors_of(directory, "stall", rank)
    assert re.match(r"step \d+ takes longer than twice the time by which a rank may be late", first)
    for error in others:
        assert error == first or "did not come back from an earlier step" in error, error


def test_stages_take_drafts_and_beams_and_swapped_requests(tmp_path: Path) -> None:
    """Sampling on the host, drafts and block copies constrain several steps in flight."""
    prompts, found = [[5, 6, 7] * (1 + number % 4) for number in range(12)], []
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    swapping = {
        "kv_cache_config": {"max_tokens": 160, "host_cache_size": 1 << 20, "enable_block_reuse": False},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
    }
    for directory in made(tmp_path, "llama", "float16", {}, {"pp_size": 2}, max_draft_len=3):
        for options in (drafting, swapping):
            with LLM(directory, **options) as llm:
                outputs = llm.generate(prompts, [PARAMS, WITH_LOGPROBS, BEAMS] * 4, use_tqdm=False)
                found.append([tokens(output) for output in outputs])
    assert all(each == found[0] for each in found)


def test_devices_are_chosen(tmp_path: Path) -> None:
    one, two = made(tmp_path, "llama", "bfloat16", {}, {"tp_size": 2})
    before = torch.cuda.mem_get_info(1)[0]
    runner = ModelRunner.from_dir(one, device_ids=[1])
    assert torch.cuda.mem_get_info(1)[0] < before
    runner.session.close()
    runners = [ModelRunner.from_dir(two, device_ids=ids) for ids in ([0, 1], [1, 0])]
    forth, back = (runner.generate(PROMPTS[:1], max_new_tokens=8) for runner in runners)
    np.testing.assert_array_equal(forth, back)
    for ids in ([0], [0, 0], [0, 1, 1]):
        with pytest.raises(ArgumentError, match="device_ids: expected 2 different GPUs, one for each rank"):
            ModelRunner.from_dir(two, device_ids=ids)
    with pytest.raises(DeviceError, match="GPU 99: expected one of"):
        ModelRunner.from_dir(two, device_ids=[0, 99])
