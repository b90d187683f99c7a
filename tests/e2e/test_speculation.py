"""Speculative decoding on tiny models: drafts change how soon tokens come, and not which tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, BuildError, LimitError
from trtllm_lite.runtime.session.config import SpeculativeConfig
from trtllm_lite.runtime.session.request import Request, Response

LIMITS = {"max_batch_size": 6, "max_input_len": 48, "max_seq_len": 128, "max_num_tokens": 40}
# Every draft is verified: with adaptive verification, drafts would depend on times, which differ between runs.
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}
SUFFIX = {
    "method": "suffix",
    "num_speculative_tokens": 5,
    "suffix_decoding_max_spec_factor": 4.0,
    "enable_adaptive_verification": False,
}
KINDS = (
    SamplingParams(temperature=0.0, ignore_eos=True, allowed_token_ids=[20, 21]),  # repeats itself soon
    SamplingParams(temperature=0.3, seed=7, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.5, seed=8, top_k=6, top_p=0.9, logit_bias={5: 2.0}),
    SamplingParams(temperature=0.8, seed=10, top_n_sigma=0.8, ignore_eos=True),
    SamplingParams(temperature=0.0, repetition_penalty=1.1, frequency_penalty=0.1, return_generation_logits=True),
    SamplingParams(temperature=0.4, seed=9, min_tokens=20, stop_token_ids=[3, 4, 5], bad=[[7], [8, 9]]),
    SamplingParams(temperature=0.0, stop=[[11], [12, 13]], return_context_logits=True, prompt_logprobs=1),
)


def requests() -> list[Request]:
    """Prompts that repeat themselves, with parameters of all kinds."""
    generator = np.random.default_rng(0)
    made = []
    for row in range(18):
        piece = generator.integers(0, VOCAB_SIZE, int(generator.integers(2, 10)))
        prompt = np.tile(piece, 4)[: int(generator.integers(3, 40))].astype(np.int32)
        params = replace(KINDS[row % len(KINDS)], max_tokens=int(generator.integers(20, 70)), detokenize=False)
        made.append(Request(prompt, params))
    return made


def described(responses: list[Response]) -> list[tuple[Any, ...]]:
    """All data of each token, for comparison bit by bit."""
    return [
        (
            response.token_id,
            response.finish_reason,
            response.logprobs and (response.logprobs.logprob, response.logprobs.rank, response.logprobs.top),
            response.generation_logits is None or response.generation_logits.tobytes(),
        )
        for response in responses
    ]


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # gemma2 has windows, whose blocks are freed
@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_drafts_change_nothing(family: str, policy: str, tmp_path: Path) -> None:
    save_tiny_model(family, tmp_path / "model")
    options: dict[str, Any] = {
        **LIMITS,
        "gather_context_logits": True,
        "kv_cache_config": {"tokens_per_block": 16, "max_tokens": 256},
        "scheduler_config": {"capacity_scheduler_policy": policy},
    }
    outputs = []
    for config in (None, NGRAM, SUFFIX):
        with LLM(tmp_path / "model", speculative_config=config, **options) as llm:
            handles = llm.session.submit_all(requests())
            outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
        assert outputs[-1] == outputs[0]
        if config:
            assert speculation.num_drafts > 50
            assert 0.05 < speculation.acceptance[0] < 1
            assert speculation.num_accepted[4] > 5
            assert speculation.num_drafted[5:] == (0, 0, 0)
            assert 1.1 < speculation.tokens_per_step < 6


def test_synthetic_drafts_are_kept_as_often_as_is_asked_for(model_dir: Path) -> None:
    rates = (0.8, 0.5, 0.5, 0.0)
    config = {
        "method": "synthetic",
        "synthetic_acceptance_rates": rates,
        "enable_adaptive_verification": False,
    }
    params = SamplingParams(max_tokens=100, temperature=0.9, seed=1, ignore_eos=True)
    prompts = [{"prompt_token_ids": [row + 1, row + 2]} for row in range(12)]
    with LLM(model_dir, speculative_config=config, **LIMITS) as llm:
        plain = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        assert llm.get_stats().speculation.num_drafts == 0
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == plain
        assert not llm.generate(prompts[0], params, cache_salt="other").error
        speculation = llm.get_stats().speculation
    assert speculation.num_drafts > 350
    np.testing.assert_allclose(speculation.acceptance[:4], rates, atol=0.1)


def test_drafts_are_paced_unless_asked_otherwise(model_dir: Path) -> None:
    prompt = np.tile([20, 21, 22], 10).tolist()
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, allowed_token_ids=[20, 21, 22, 23])
    outputs = []
    for config in (None, {"method": "ngram"}):
        with LLM(model_dir, speculative_config=config, **LIMITS) as llm:
            outputs.append(llm.generate({"prompt_token_ids": prompt}, params).outputs[0].token_ids)
    assert SpeculativeConfig(method="ngram").enable_adaptive_verification
    assert outputs[0] == outputs[1]


def test_an_engine_takes_no_more_drafts_than_it_was_built_for(model_dir: Path) -> None:
    with LLM(model_dir, speculative_config={**NGRAM, "num_speculative_tokens": 2}, **LIMITS) as llm:
        engine = llm.engine_dir
        with pytest.raises(LimitError, match=r"num_speculative_tokens=3 exceeds .* \(2\).*--max_draft_len 3"):
            LLM(engine, speculative_config={**NGRAM, "num_speculative_tokens": 3})


def test_engines_of_tensorrt_take_no_drafts(model_dir: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model_dir), tmp_path / "checkpoint", "bfloat16")
    with pytest.raises(BuildError, match="max_draft_len is 5 for sm_120: engines of the backend tensorrt"):
        build_engine(
            tmp_path / "checkpoint", tmp_path / "engine", target="sm_120", backend="tensorrt", max_draft_len=5, **LIMITS
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "names no method"),
        ({"method": "medusa"}, "method of speculative_config is 'medusa': expected one of ngram, suffix, .*_model"),
        ({"method": "ngram", "num_speculative_tokens": 9}, "num_speculative_tokens is 9: .* 1 to 8"),
        ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min is 3: .* 1 to 2"),
        ({"method": "ngram", "draft_len": 3}, "draft_len"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "prompt_lookup_max is not an option of method suffix"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": 1}, "is 1: expected 0, or at least 2"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 0}, "max_spec_factor is 0: .* above 0"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "min_token_prob is 1.5: .* 0 to 1"),
        ({"method": "synthetic"}, "synthetic_acceptance_rates is .*: expected 4 numbers"),
        ({"method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6, 0, 0]}, "none above the one before"),
        ({"method": "ngram", "enable_adaptive_verification": 1}, "enable_adaptive_verification is 1"),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, Any], message: str, model_dir: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        LLM(model_dir, speculative_config=config)
