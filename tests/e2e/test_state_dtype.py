"""Engines with states of 16 bits: how far off transformers is, and that no way to a state changes a bit of a token."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_generate import expected_logits, generate
from tests.e2e.test_guided_decoding import described
from tests.e2e.test_recurrent_engine import WIDE_STATES
from tests.e2e.test_speculation import NGRAM
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import NARROW_STATE_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.request import Request

LIMITS = {"max_batch_size": 9, "max_input_len": 160, "max_seq_len": 224, "max_num_tokens": 224, "tokens_per_block": 16}
LENGTHS = (1, 15, 33, 64, 90, 150)
GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, detokenize=False)
# In some texts n-grams are found.
KINDS = (GREEDY, replace(GREEDY, allowed_token_ids=[20, 21, 22]), replace(GREEDY, temperature=0.6, seed=5))


class Case:
    """A tiny model, its engine with states of 16 bits, and what that answers to each prompt alone, all in one step."""

    def __init__(self, family: str, state_dtype: str, root: Path) -> None:
        self.model = save_tiny_model(family, root / "model", **WIDE_STATES[family])
        self.checkpoint, self.engine, self.dtype = root / "checkpoint", root / "engine", state_dtype
        convert_checkpoint(str(root / "model"), self.checkpoint)
        build_engine(self.checkpoint, self.engine, state_dtype=state_dtype, max_draft_len=5, **LIMITS)
        text = np.random.default_rng(3).integers(0, VOCAB_SIZE, max(LENGTHS)).tolist()
        self.prompts = [text[:length] for length in LENGTHS]
        self.requests = [Request(np.array(prompt, np.int32), KINDS[row % 3]) for row, prompt in enumerate(self.prompts)]
        self.long = [
            Request(np.array(text[row : row + 20], np.int32), replace(KINDS[row % 3], max_tokens=100))
            for row in range(9)
        ]
        with LLM(self.engine, kv_cache_config={"enable_block_reuse": False}) as llm:
            self.alone, self.long_alone = (
                [described(llm.session.submit(request).result()) for request in requests]
                for requests in (self.requests, self.long)
            )


@pytest.fixture(scope="module", params=[("qwen3_next", "float16"), ("bamba", "bfloat16"), ("kimi_linear", "float16")])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(*request.param, tmp_path_factory.mktemp(request.param[0]))


def test_logits_are_those_of_transformers_but_for_rounding(case: Case) -> None:
    outputs = generate(ModelRunner.from_dir(case.engine), case.prompts, 20)
    for prompt, (tokens, logits) in zip(case.prompts, outputs, strict=True):
        expected = expected_logits(case.model, prompt, tokens)
        assert_close(logits, expected, case.dtype, table=NARROW_STATE_TOLERANCES)


@pytest.mark.parametrize("ranks", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks_have_such_states_of_their_heads_and_layers(case: Case, ranks: dict[str, int], tmp_path: Path) -> None:
    build_engine(case.checkpoint, tmp_path / "engine", state_dtype=case.dtype, **ranks, **LIMITS)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), case.prompts, 20)
    for prompt, (tokens, logits) in zip(case.prompts, outputs, strict=True):
        expected = expected_logits(case.model, prompt, tokens)
        assert_close(logits, expected, case.dtype, table=NARROW_STATE_TOLERANCES)


WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks": {"max_num_tokens": 13},
    "drafts": {"speculative_config": NGRAM},
    "chunks and drafts": {"max_num_tokens": 40, "speculative_config": NGRAM},
    "without reuse": {"kv_cache_config": {"enable_block_reuse": False}},
}


@pytest.mark.parametrize("way", WAYS)
def test_no_bit_depends_on_how_a_state_came_about(case: Case, way: str) -> None:
    with LLM(case.engine, **WAYS[way]) as llm:
        for _ in range(2):  # the second time prefixes are known, where they are reused
            handles = llm.session.submit_all(case.requests)
            assert [described(handle.result()) for handle in handles] == case.alone
        stats = llm.get_stats()
    assert (stats.prefix_hit_rate > 0) == (way != "without reuse")


@pytest.mark.parametrize("host_cache_size", [None, 1 << 26])
@pytest.mark.parametrize("speculative_config", [None, NGRAM])
def test_no_bit_depends_on_preemption(case: Case, speculative_config: Any, host_cache_size: int | None) -> None:
    """Eight requests have room for their states and prompts, and not for their answers."""
    with LLM(
        case.engine,
        speculative_config=speculative_config,
        scheduler_config={"capacity_scheduler_policy": "MAX_UTILIZATION"},
        kv_cache_config={"max_tokens": 8 * LIMITS["tokens_per_block"], "host_cache_size": host_cache_size},
    ) as llm:
        handles = llm.session.submit_all(case.long)
        assert [described(handle.result()) for handle in handles] == case.long_alone
        stats = llm.get_stats()
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
    assert host_cache_size or not stats.num_swap_preemptions
