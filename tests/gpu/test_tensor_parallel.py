"""Engines of two ranks on two GPUs compute what the engine of one rank computes."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.test_tensor_parallel import EVEN, LIMITS
from tests.models import save_tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, DeviceError
from trtllm_lite.runtime import ModelRunner

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")

PROMPTS = [[5, 6, 7, 8] * 4, [9, 10], list(range(30)), [3] * 17]


PARAMS = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
WITH_LOGITS = replace(PARAMS, return_context_logits=True, return_generation_logits=True)
DRAWN = replace(PARAMS, temperature=0.8, seed=5)


def made(directory: Path, family: str, dtype: str, *tp_sizes: int, **how: Any) -> list[Path]:
    """Engines of as many ranks."""
    shape = {**EVEN, **({"head_dim": 16} if family == "qwen3" else {})}
    save_tiny_model(family, directory / "model", **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    for tp_size in tp_sizes:
        out = directory / str(tp_size)
        build_engine(directory / "checkpoint", out, target="sm_90", tp_size=tp_size, **{**LIMITS, **how})
    return [directory / str(tp_size) for tp_size in tp_sizes]


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_gpus_compute_what_one_computes(family: str, dtype: str, tmp_path: Path) -> None:
    found = []
    for directory in made(tmp_path, family, dtype, 1, 2, gather_context_logits=True):
        with LLM(directory) as llm:
            found.append(llm.generate(PROMPTS, WITH_LOGITS, use_tqdm=False))
            on_card = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert list(map(tokens, on_card)) == list(map(tokens, found[-1]))
    for one, two in zip(*found, strict=True):
        pairs = [(two.context_logits, one.context_logits)]
        alike = np.cumprod(np.equal(tokens(one), tokens(two))).sum() + 1  # then texts differ
        pairs.append([output.outputs[0].generation_logits[:alike] for output in (two, one)])
        for actual, expected in pairs:
            assert_close(np.asarray(actual), np.asarray(expected), dtype, table=GPU_TOLERANCES)


def test_draws_under_load_are_those_of_each_request_alone(tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", 2)
    with LLM(directory, kv_cache_config={"enable_block_reuse": False}) as llm:
        alone = [llm.generate(prompt, DRAWN, use_tqdm=False) for prompt in PROMPTS[:1] * 3]
        assert len({tuple(tokens(output)) for output in alone}) == 1
        for _ in range(20):
            together = llm.generate(PROMPTS, DRAWN, use_tqdm=False)
            assert all(len(tokens(output)) == 24 for output in together)


def errors_of(directory: Path, failure: str) -> list[str]:
    """What nine requests hear, and one behind them."""
    command = [sys.executable, "-m", "tests.gpu.failing_rank", str(directory), failure]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    errors = done.stdout.splitlines()
    assert len(errors) == 10, done.stderr
    return errors


def test_requests_end_with_the_name_of_a_rank_that_ends(tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", 2)
    for error in errors_of(directory, "end"):
        assert "rank 1 on GPU 1" in error or "did not come back from an earlier step" in error, error


def test_requests_end_with_the_name_of_a_rank_that_stalls(tmp_path: Path) -> None:
    (directory,) = made(tmp_path, "llama", "bfloat16", 2)
    first, *others = errors_of(directory, "stall")
    assert re.match(r"rank 1 of 2 did not come to collective \d+ \(\S+\) of step \d+ within 1 s of the first", first)
    for error in others:
        assert error == first or "did not come back from an earlier step" in error, error


def test_devices_are_chosen(tmp_path: Path) -> None:
    one, two = made(tmp_path, "llama", "bfloat16", 1, 2)
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
