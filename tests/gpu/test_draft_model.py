"""A draft model on the same card: the tokens are the target model's, and equal models accept all drafts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.gpu.test_engine import SHAPE
from tests.gpu.test_speculation import (
    FEW_BLOCKS,
    GREEDY,
    KINDS,
    LIMITS,
    MODEL,
    check_greedy,
    prompts,
    prompts_of_a_block,
    save_engine,
)
from tests.models import save_tiny_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime.session.request import Request


class Pair:
    """A model, its engine, and the engine of a smaller model with other weights."""

    def __init__(self, root: Path) -> None:
        how: dict[str, Any] = {"dtype": torch.bfloat16, **SHAPE, "head_dim": 16}
        self.directory = root / "model"
        self.model: PreTrainedModel = save_tiny_model("llama", self.directory, **how).float()
        self.same = save_engine(self.directory)
        save_tiny_model("llama", root / "small", seed=1, num_hidden_layers=1, **how)
        self.small = root / "small-engine"
        convert_checkpoint(str(root / "small"), root / "small-checkpoint")
        # The batch has one more row per sequence, so that steps after accepted drafts are captured, too.
        build_engine(root / "small-checkpoint", self.small, target="sm_90", max_draft_len=1, **LIMITS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("kept", ["some", "nearly all"])
def test_greedy_tokens_are_those_of_the_reference(pair: Pair, kept: str) -> None:
    """The device samples, with and without edits and log probabilities, or the host does."""
    draft = MODEL | {"model": pair.same if kept == "nearly all" else pair.small}
    requests = [Request(prompt, SamplingParams(**GREEDY, **KINDS[row % 4])) for row, prompt in enumerate(prompts())]
    with LLM(pair.directory, target="sm_90", speculative_config=draft, **LIMITS) as llm:
        responses = [handle.result() for handle in llm.session.submit_all(requests)]
        speculation = llm.get_stats().speculation
    assert speculation.num_drafts > 400
    if kept == "nearly all":
        assert min(speculation.acceptance[:4]) > 0.8  # rows of several tokens round differently from rows of one
    else:
        assert 0 < speculation.acceptance[0] < 0.6
    for request, response, kind in zip(requests, responses, KINDS * 15, strict=True):
        check_greedy(pair.model, request, response, kind)


def test_one_sequence_alone(pair: Pair) -> None:
    """The draft model's steps, of one row or two, are captured."""
    draft, [prompt, *_] = MODEL | {"model": pair.same}, prompts()
    request = Request(prompt, SamplingParams(**GREEDY))
    with LLM(pair.directory, target="sm_90", speculative_config=draft, **LIMITS) as llm:
        [handle] = llm.session.submit_all([request])
        response = handle.result()
        speculation = llm.get_stats().speculation
    assert speculation.tokens_per_step > 4
    check_greedy(pair.model, request, response, {})


def test_preempted_sequences_draft_on(pair: Pair) -> None:
    """Blocks of both caches go to the host and back."""
    requests = [Request(prompt, SamplingParams(**GREEDY)) for prompt in prompts_of_a_block()]
    draft = MODEL | {"model": pair.same}
    with LLM(pair.directory, target="sm_90", speculative_config=draft, **FEW_BLOCKS, **LIMITS) as llm:
        responses = [handle.result() for handle in llm.session.submit_all(requests)]
        stats = llm.get_stats()
    assert stats.num_swap_preemptions + stats.num_recompute_preemptions > 0
    assert stats.speculation.acceptance[0] > 0.8
    for request, response in zip(requests, responses, strict=True):
        check_greedy(pair.model, request, response, {})
