"""Requests that leave the GPU for want of KV cache, and come back from host memory or are computed again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.gpu.test_engine import LIMITS, SHAPE, Case, assert_same_until_a_near_tie, prompts
from tests.models import save_tiny_model
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

TARGET = "sm_90"
NUM_NEW_TOKENS = 90  # three blocks
LONGEST_PROMPT = 33
# Steps of few tokens, so that computing a block again takes longer than copying it.
SMALL = {"max_batch_size": 8, "max_num_tokens": 24, "max_tokens_in_paged_kv_cache": 3 * LIMITS["max_seq_len"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Case]:
    """An engine's directory, and the engine with all the memory that it can use."""
    directory = tmp_path_factory.mktemp("preemption")
    reference = save_tiny_model("llama", directory / "model", dtype=torch.float16, head_dim=16, **SHAPE)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", "float16")
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS, target=TARGET)
    return directory / "engine", Case("float16", ModelRunner.from_dir(directory / "engine"), reference.float())


def continuations(runner: ModelRunner, batch: list[list[int]]) -> list[np.ndarray]:
    """The new tokens of each prompt, greedily."""
    ids = runner.generate(batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, temperature=0)
    return [row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS] for row, prompt in zip(ids, batch, strict=True)]


@pytest.mark.parametrize("host_cache_size", [None, 2**24], ids=["recomputed", "swapped"])
def test_preempted_requests_go_on_where_they_were(model: tuple[Path, Case], host_cache_size: int | None) -> None:
    directory, case = model
    small = ModelRunner.from_dir(
        directory, host_cache_size=host_cache_size, capacity_scheduler_policy="MAX_UTILIZATION", **SMALL
    )
    batch = [prompt for prompt in prompts() if len(prompt) <= LONGEST_PROMPT][: SMALL["max_batch_size"]]
    undisturbed = continuations(case.runner, batch)
    for prompt, tokens, others in zip(batch, continuations(small, batch), undisturbed, strict=True):
        assert_same_until_a_near_tie(case, prompt, tokens, others)
    stats = small.session.stats()
    preemptions = stats.num_swap_preemptions if host_cache_size else stats.num_recompute_preemptions
    assert preemptions > 0
