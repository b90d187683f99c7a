"""Engines with recurrent layers on the card: long prompts in chunks, preemption, and the same bits in any company."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.llm import LIMITS as GUIDED_LIMITS
from tests.e2e.test_guided_decoding import described as in_full
from tests.e2e.test_guided_decoding import requests
from tests.gpu.test_deterministic import described
from tests.gpu.test_engine import NUM_NEW_TOKENS, Case, assert_same_until_near_ties, check_logits, in_words_of
from tests.models import HYBRID_FAMILIES, VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.request import Request

LIMITS: dict[str, Any] = {"max_batch_size": 20, "max_input_len": 470, "max_seq_len": 512, "max_num_tokens": 700}
LENGTHS = (1, 2, 31, 32, 33, 63, 64, 65, 300, 470, 5, 7, 129)  # around blocks, and the tokens of a block of threads
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
# All experts are chosen, so that rounding changes no choice.
ALL_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 4}
# Sizes with which a state takes several blocks.
OWN_SHAPES: dict[str, dict[str, Any]] = {
    "kimi_linear": {**ALL_EXPERTS, "n_group": 1, "topk_group": 1, "linear_num_heads": 8, "linear_head_dim": 64},
    "lfm2": {"conv_L_cache": 16},
    "lfm2_moe": {**ALL_EXPERTS, "conv_L_cache": 16},
    "qwen3_next": {**ALL_EXPERTS, "linear_value_head_dim": 96},
    "qwen3_5": {"linear_value_head_dim": 96},
    "qwen3_5_moe": {**ALL_EXPERTS, "linear_value_head_dim": 96},
    "bamba": {"mamba_d_state": 128},
    # With random weights, sums over a few hundred tokens would exceed float16 if B and C were larger, or longer.
    "falcon_h1": {"mamba_d_state": 256, "ssm_multipliers": [0.7, 0.5, 0.4, 0.4, 0.6]},
    "granitemoehybrid": {"mamba_d_state": 128, "num_local_experts": 4, "num_experts_per_tok": 4},
    "nemotron_h": {
        **{"ssm_state_size": 40, "n_routed_experts": 4, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1},
    },
}
VOCAB = 400  # a multiple of 8, as deterministic products need


class Recurrent(Case):
    """A case without experts to choose."""

    is_mixture = False


@pytest.fixture(scope="module", params=HYBRID_FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    shape = in_words_of(request.param, SHAPE) | OWN_SHAPES[request.param] | {"vocab_size": VOCAB}
    model = save_tiny_model(request.param, directory / "model", dtype=torch.float16, **shape)
    torch.save(model, directory / "model.pt")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", "float16")
    build_engine(directory / "checkpoint", directory / "engine", target="sm_90", **LIMITS)
    return directory


@pytest.fixture(scope="module")
def case(directory: Path) -> Case:
    reference = torch.load(directory / "model.pt", weights_only=False).float()
    return Recurrent("float16", ModelRunner.from_dir(directory / "engine"), reference)


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def with_runner(case: Case, directory: Path, **options: Any) -> Case:
    return Recurrent(case.dtype, ModelRunner.from_dir(directory / "engine", **options), case.reference)


def test_logits_are_those_of_the_reference(case: Case) -> None:
    check_logits(case, prompts())


@pytest.mark.parametrize("max_num_tokens", [20, 37, 64, 200])
def test_prompts_in_chunks(case: Case, directory: Path, max_num_tokens: int) -> None:
    check_logits(with_runner(case, directory, max_num_tokens=max_num_tokens), prompts())


def test_prompts_go_on_from_kept_states(case: Case, directory: Path) -> None:
    """All but the last block of each prompt is known, with its state."""
    reusing = with_runner(case, directory, kv_cache_enable_block_reuse=True)
    for _ in range(3):
        check_logits(reusing, prompts())
    assert reusing.runner.session.stats().prefix_hit_rate > 0.5


@pytest.mark.parametrize("host_cache_size", [None, 1 << 26], ids=["recomputed", "swapped"])
def test_preempted_requests_go_on_from_their_states(case: Case, directory: Path, host_cache_size: int | None) -> None:
    limits, num_new_tokens, batch = case.runner.session.limits, 240, [prompt[:20] for prompt in prompts()]
    states = len(batch) * limits.cache_groups[1][2]
    small = with_runner(
        case,
        directory,
        max_batch_size=len(batch),
        max_tokens_in_paged_kv_cache=limits.tokens_per_block
        * max(limits.blocks_for(LIMITS["max_seq_len"]) + 3 * limits.blocks_for(40) - states, 8),
        host_cache_size=host_cache_size,
        capacity_scheduler_policy="MAX_UTILIZATION",
        max_num_tokens=24,
    )

    def continuations(runner: ModelRunner) -> Sequence[np.ndarray]:
        rows = runner.generate(batch, max_new_tokens=num_new_tokens, end_id=-1, temperature=0)
        ends = [len(prompt) + num_new_tokens for prompt in batch]
        return [row[0, len(prompt) : end] for row, prompt, end in zip(rows, batch, ends, strict=True)]

    assert_same_until_near_ties(case, batch, continuations(small.runner), continuations(case.runner))
    stats = small.runner.session.stats()
    assert (stats.num_swap_preemptions if host_cache_size else stats.num_recompute_preemptions) > 0


def test_requests_get_the_same_bits_alone_and_in_any_company(directory: Path, tmp_path: Path) -> None:
    build_engine(directory / "checkpoint", tmp_path / "engine", target="sm_90", deterministic=True, **LIMITS)
    params = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.8, seed=7, ignore_eos=True, logprobs=1)
    asked = [Request(np.array(prompt, np.int32), params) for prompt in prompts() * 6]

    def answers(runner: ModelRunner, batch: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
        return [described(handle.result()) for handle in runner.session.submit_all(batch)]

    together = answers(ModelRunner.from_dir(tmp_path / "engine"), asked)
    in_chunks = ModelRunner.from_dir(tmp_path / "engine", max_num_tokens=40)
    assert answers(in_chunks, asked) == together
    for number in range(len(LENGTHS)):
        assert answers(in_chunks, [asked[number]]) == [together[number]]


def test_grammars_and_company_change_nothing(directory: Path, tmp_path: Path) -> None:
    """A row whose masks were late would be computed again, from a state that has its token already."""
    limits = {**GUIDED_LIMITS, "max_batch_size": 6}
    build_engine(directory / "checkpoint", tmp_path / "engine", target="sm_90", deterministic=True, **limits)
    with LLM(tmp_path / "engine") as llm:
        alone = [in_full(llm.session.submit(request).result()) for request in requests()]
    with LLM(tmp_path / "engine") as llm:
        handles = llm.session.submit_all(requests())
        assert [in_full(handle.result()) for handle in handles] == alone
