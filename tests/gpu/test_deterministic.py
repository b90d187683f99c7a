"""Deterministic engines on the card: a request gets the same bits alone and in any batch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.unit.quantize.made_up import made_up
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.runtime.session.request import Request, Response

# The model is large enough for split-K, and prompts are long enough for several steps and several tiles of keys.
MODEL: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 512,
}
LIMITS: dict[str, Any] = {"max_batch_size": 64, "max_input_len": 400, "max_seq_len": 512, "max_num_tokens": 500}
NUM_REQUESTS, NUM_ALONE = 1000, 60
KINDS = (
    SamplingParams(temperature=0.0, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.7, seed=7, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.8, seed=8, top_k=20, top_p=0.9, ignore_eos=True, logprobs=0),
    SamplingParams(temperature=0.0, ignore_eos=True, repetition_penalty=1.1, allowed_token_ids=[20, 21], logprobs=1),
)
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}


def requests() -> list[Request]:
    """Prompts of 1 to 400 tokens, a third of which share a prefix and a third of which repeat themselves."""
    generator = np.random.default_rng(0)
    shared = generator.integers(3, VOCAB_SIZE, 200)
    made = []
    for row in range(NUM_REQUESTS):
        length = int(generator.integers(1, 400))
        prompt = generator.integers(3, VOCAB_SIZE, length)
        if row % 3 == 0:
            prompt = np.concatenate([shared, prompt])[:length]
        if row % 3 == 1:
            prompt = np.tile(prompt[:9], 50)[:length]
        params = replace(KINDS[row % len(KINDS)], max_tokens=int(generator.integers(1, 60)), detokenize=False)
        made.append(Request(prompt.astype(np.int32), params))
    return made


def described(responses: Sequence[Response]) -> list[tuple[Any, ...]]:
    """Tokens and their log probabilities, for exact comparison."""
    return [
        (one.token_id, one.logprobs and (one.logprobs.logprob, one.logprobs.rank, one.logprobs.top))
        for one in responses
    ]


def build(qformat: str, folder: Path) -> Path:
    """Build a deterministic engine; a scheme that needs statistics of activations gets made-up ones."""
    checkpoint = open_checkpoint(folder / "checkpoint")
    model, _ = quantize_network(checkpoint.model, Recipe(qformat), made_up(checkpoint.model))
    how: dict[str, Any] = {"target": "sm_90", "max_draft_len": 4, "deterministic": True}
    build_engine(replace(checkpoint, model=model), folder / "engine", **how, **LIMITS)
    return folder / "engine"


@pytest.mark.parametrize("qformat", ["full_prec", "int8_wo", "int4_wo", "int8_sq", "fp8_rowwise"])
def test_a_thousand_requests_in_random_company(qformat: str, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", dtype=torch.bfloat16, **MODEL)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    engine = build(qformat, tmp_path)
    asked = requests()
    alone = {"kv_cache_config": {"enable_block_reuse": False}}
    with LLM(engine, **alone) as llm:
        expected = [described(llm.session.submit(request).result()) for request in asked[:NUM_ALONE]]
    policy = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    small = {"kv_cache_config": {"max_tokens": 4096}, "scheduler_config": policy}
    first: list[Any] = []
    for options in ({}, {"max_num_tokens": 96}, {"speculative_config": NGRAM}, small):
        order = np.random.default_rng(len(first)).permutation(len(asked))
        with LLM(engine, **options) as llm:
            handles = llm.session.submit_all([asked[row] for row in order])
            found = dict(zip(order.tolist(), [described(handle.result()) for handle in handles], strict=True))
        assert [found[row] for row in range(NUM_ALONE)] == expected
        first = first or [found[row] for row in range(len(asked))]
        assert [found[row] for row in range(len(asked))] == first
