"""Requests that are swapped out for lack of KV cache and return, and requests that share cached blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.test_engine import LIMITS, SHAPE, Case, assert_same_until_near_ties, prompts
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from trtllm_lite import SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.request import Request, Response

TARGET = "sm_90"
NUM_NEW_TOKENS = 90  # three blocks
LONGEST_PROMPT = 33
PAGE = 32
# Steps have few tokens, so that recomputing a block takes longer than copying it.
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


@pytest.fixture(scope="module")
def sharing(model: tuple[Path, Case]) -> ModelRunner:
    """The engine of ``model``; its requests reuse blocks of earlier requests."""
    return ModelRunner.from_dir(model[0], kv_cache_enable_block_reuse=True)


@pytest.mark.parametrize("host_cache_size", [None, 2**24], ids=["recomputed", "swapped"])
def test_preempted_requests_go_on_where_they_were(model: tuple[Path, Case], host_cache_size: int | None) -> None:
    directory, case = model
    small = ModelRunner.from_dir(
        directory, host_cache_size=host_cache_size, capacity_scheduler_policy="MAX_UTILIZATION", **SMALL
    )
    batch = [prompt for prompt in prompts() if len(prompt) <= LONGEST_PROMPT][: SMALL["max_batch_size"]]
    undisturbed = continuations(case.runner, batch)
    assert_same_until_near_ties(case, batch, continuations(small, batch), undisturbed)
    stats = small.session.stats()
    preemptions = stats.num_swap_preemptions if host_cache_size else stats.num_recompute_preemptions
    assert preemptions > 0


def ask(runner: ModelRunner, prompt: list[int], **options: Any) -> tuple[list[Response], int]:
    """The answer to the prompt, and how many of its tokens were in the KV cache."""
    params = SamplingParams(repetition_penalty=1.0, detokenize=False, **options)
    handle = runner.session.submit(Request(np.array(prompt, np.int32), params))
    return handle.result(), handle.timings.num_cached_tokens


def turn_that_ends_at_an_edge(case: Case, prompt: list[int]) -> tuple[list[int], dict[str, Any]]:
    """Tokens that fill a block and end with one that occurs nowhere before, and the parameters that sample them."""
    for seed in range(100):
        draw = {"max_tokens": 2 * PAGE, "temperature": 1.5, "seed": seed, "ignore_eos": True}
        tokens = [response.token_id for response in ask(case.runner, prompt, **draw)[0]]
        for n in range(len(tokens), 0, -1):
            if (len(prompt) + n) % PAGE == 0 and tokens[n - 1] not in tokens[: n - 1]:
                return tokens[:n], draw
    raise AssertionError("every block ends with a token that occurs before")


@pytest.mark.parametrize("prompt_len", [1, 20, PAGE, PAGE + 1])
def test_a_turn_that_follows_an_end_at_the_edge_of_a_block(
    model: tuple[Path, Case], sharing: ModelRunner, prompt_len: int
) -> None:
    """The device detects the end before the host; what kernels then write for the last token must not be reused."""
    _, case = model
    prompt = np.random.default_rng(prompt_len).integers(3, VOCAB_SIZE, prompt_len).tolist()
    tokens, draw = turn_that_ends_at_an_edge(case, prompt)
    first, _ = ask(sharing, prompt, **draw, stop_token_ids=[tokens[-1]])
    assert [response.token_id for response in first] == tokens
    next_turn = [*prompt, *tokens, 5, 6, 7]
    second, num_cached = ask(sharing, next_turn, max_tokens=1, temperature=0.0, return_generation_logits=True)
    assert num_cached == prompt_len + len(tokens) - PAGE
    expected = case.reference_logits(np.array(next_turn, np.int32))[-1]
    assert_close(second[0].generation_logits, expected, case.dtype, "logits of the second turn", GPU_TOLERANCES)
