"""Tokens that a grammar forces are drafted: they come sooner, and the output is unchanged."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex

from tests.e2e.llm import LIMITS, random_prompts
from tests.e2e.test_guided_decoding import GUIDED, KINDS, described
from tests.models import EOS_ID, tiny_tokenizer
from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams
from trtllm_lite.runtime.session.request import Request

DRAFTS: dict[str, Any] = {"num_speculative_tokens": 5, "enable_adaptive_verification": False}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, **DRAFTS}
SUFFIX = {"method": "suffix", "suffix_decoding_max_spec_factor": 4.0, **DRAFTS}
# This drafter finds nothing in new prompts, so that only grammars draft.
NOTHING = {"method": "synthetic", "synthetic_acceptance_rates": (1.0,) * 5, **DRAFTS}
RECORD = GuidedDecodingParams(
    json={
        "type": "object",
        "properties": {"first_name": {"enum": ["brown", "lazy"]}, "jumps_over": {"type": "integer"}},
        "required": ["first_name", "jumps_over"],
        "additionalProperties": False,
    }
)
THINKING = GuidedDecodingParams(regex="[0-9]{2} = the quick brown fox", reasoning_end_str="a")


def requests() -> list[Request]:
    """Prompts, grammars that force many tokens, and parameters of all kinds; some share a prefix or lack a grammar."""
    made = []
    for row, prompt in enumerate(random_prompts(5, 20, longest=30)):
        params = replace(KINDS[row % len(KINDS)], max_tokens=50 + row, detokenize=False)
        if not params.ignore_eos:
            params = replace(params, guided_decoding=(*GUIDED, RECORD, THINKING)[row % 6])
        shared = [7, 8, 9] * 6 if row % 2 else []
        made.append(Request(np.asarray([*shared, *prompt], np.int32), params))
    return made


@pytest.mark.parametrize("config", [NOTHING, NGRAM, SUFFIX], ids=["alone", "ngram", "suffix"])
@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_forced_tokens_change_nothing(config: dict[str, Any], policy: str, model_dir: Path) -> None:
    limits: dict[str, Any] = {**LIMITS, "max_batch_size": 6}
    with LLM(model_dir, **limits) as llm:
        alone = [described(llm.session.submit(request).result()) for request in requests()]
        assert llm.get_stats().speculation.num_drafts == 0
    with LLM(
        model_dir,
        **limits,
        speculative_config=config,
        kv_cache_config={"tokens_per_block": 16, "max_tokens": 144},
        scheduler_config={"capacity_scheduler_policy": policy},
    ) as llm:
        handles = llm.session.submit_all(requests())
        together = [described(handle.result()) for handle in handles]
        stats = llm.get_stats()
    assert together == alone
    assert stats.prefix_hit_rate > 0
    assert (stats.num_recompute_preemptions > 0) == (policy == "MAX_UTILIZATION")
    assert stats.speculation.num_accepted[0] > 15
    assert stats.speculation.num_accepted[2] > 3


@pytest.fixture(scope="module")
def drafting(model_dir: Path) -> Iterator[LLM]:
    """An engine built for drafts, used without a speculative_config."""
    with LLM(model_dir, speculative_config=NOTHING, **LIMITS) as built, LLM(built.engine_dir) as llm:
        yield llm


def test_engines_that_take_drafts_have_those_of_grammars(drafting: LLM, model_dir: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=60, n=3, best_of=4, seed=1, guided_decoding=RECORD)
    with LLM(model_dir, **LIMITS) as plain:
        expected = plain.generate("the quick", params).outputs
    drafting.generate("the quick", params)  # compiles the grammar, which drafts only then
    before = drafting.get_stats().speculation
    drafting.generate("the quick", replace(params, guided_decoding=None))
    assert drafting.get_stats().speculation == before
    outputs = drafting.generate("the quick", params).outputs
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert sum(drafting.get_stats().speculation.since(before).num_accepted) > 0


def test_a_stream_is_the_same_text(drafting: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=60, seed=2, guided_decoding=RECORD)
    pieces = [output.outputs[0].text_diff for output in drafting.generate_async("a dog", params, streaming=True)]
    text = drafting.generate("a dog", params).outputs[0].text
    assert "".join(pieces) == text
    assert text.startswith("{")


def test_stop_strings_end_texts_within_drafts(drafting: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, guided_decoding=RECORD)
    text = drafting.generate("fox", params).outputs[0].text
    stopped = drafting.generate("fox", replace(params, stop="jumps_")).outputs[0]
    assert (stopped.text, stopped.finish_reason) == (text[: text.index("jumps_")], "stop")


def test_a_request_with_drafts_can_be_cancelled(drafting: LLM) -> None:
    endless = GuidedDecodingParams(regex="(the quick brown fox jumps[0-9]){99}")
    params = SamplingParams(temperature=1.0, max_tokens=100, n=64, guided_decoding=endless)
    generation = drafting.generate_async("fox", params, streaming=True)
    next(iter(generation))
    generation.cancel()
    assert generation.result().outputs[-1].finish_reason == "cancelled"


def test_texts_match_their_grammar_behind_the_reasoning(drafting: LLM) -> None:
    likely = {tiny_tokenizer().token_to_id("a"): 3.0}  # the token that ends reasoning
    params = SamplingParams(temperature=1.0, max_tokens=120, n=6, seed=4, logit_bias=likely, guided_decoding=THINKING)
    outputs = drafting.generate("12 + 12", params).outputs
    for output in outputs:
        assert output.finish_reason == "stop"
        assert output.token_ids.count(EOS_ID) == 1
        reasoning, _, answer = output.text.partition("a")
        assert "a" not in reasoning
        assert regex.search("[0-9]{2} = the quick brown fox$", answer)
    closed = drafting.generate("1a", params).outputs
    assert all(regex.fullmatch(THINKING.regex or "", output.text) for output in closed)
