"""Grammars whose masks take long to compute, on a CPU: their rows skip steps, and other requests go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.llm import LIMITS, random_prompts
from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams, _testing
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.session.request import Request, Response
from trtllm_lite.runtime.session.request_handle import RequestHandle

GUIDED = GuidedDecodingParams(regex="[0-9]{3}(-[a-c]{2}){2,9}")
SLOW = GuidedDecodingParams(regex="[a-f]{2}(x|yz){4,30}")  # the grammar that is delayed
DRAFTS: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}


@contextmanager
def held(num_free: int) -> Iterator[list[Any]]:
    """Compute SLOW's masks at once for the first ``num_free`` tokens; later ones wait for the grammars' release."""
    grammars: list[Any] = []
    compiled = Grammars.of

    def of(self: Grammars, guided: GuidedDecodingParams, prompt_ids: Any) -> Any:
        grammar = compiled(self, guided, prompt_ids)
        if guided is not SLOW:
            return grammar
        grammars.append(_testing.HeldGrammar(grammar, num_free))
        return grammars[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grammars, "of", of)
        try:
            yield grammars
        finally:
            for grammar in grammars:
                grammar.release()


def requests(**extras: Any) -> list[Request]:
    """Requests under SLOW with ``extras``, under GUIDED, and without a grammar."""
    base = SamplingParams(temperature=1.0, seed=3, max_tokens=20, logprobs=1, detokenize=False)
    kinds = [replace(base, guided_decoding=SLOW, **extras), replace(base, guided_decoding=GUIDED), base]
    return [
        Request(np.asarray(prompt, np.int32), params)
        for prompt, params in zip(random_prompts(8, 3, longest=30), kinds, strict=True)
    ]


def described(responses: list[Response]) -> list[Any]:
    return [
        (response.token_id, response.finish_reason, response.logprobs and response.logprobs.logprob)
        for response in responses
    ]


def num_late(llm: LLM) -> int:
    return llm.session.pump.loop.stats()["num_late_rows"]


def check(llm: LLM, num_free: int, **extras: Any) -> RequestHandle:
    """Compare all results with those of each request alone; returns the handle of the delayed request."""
    alone = [described(llm.session.submit(request).result()) for request in requests(**extras)]
    before = num_late(llm)
    with held(num_free) as grammars:
        late, *others = llm.session.submit_all(requests(**extras))
        together = [described(handle.result()) for handle in others]
        for grammar in grammars:
            grammar.release()
        together.insert(0, described(late.result()))
    assert num_late(llm) > before
    assert together == alone
    return late


@pytest.mark.parametrize("num_free", [0, 5], ids=["first", "sixth"])
def test_a_late_row_holds_nobody_up(llm: LLM, num_free: int) -> None:
    check(llm, num_free)


def test_drafts_of_a_late_row_are_taken_back(model_dir: Path) -> None:
    with LLM(model_dir, **LIMITS, speculative_config=DRAFTS) as llm:
        check(llm, 4)


def test_what_a_late_row_says_of_its_prompt_comes_once(llm: LLM) -> None:
    prompt = requests()[0].prompt_ids
    assert len(check(llm, 0, prompt_logprobs=1).prompt_logprobs) == len(prompt) - 1


def test_a_late_request_can_be_cancelled(llm: LLM) -> None:
    with held(2):
        late, *others = llm.session.submit_all(requests())
        for handle in others:
            handle.result()
        late.cancel()
        assert late.result()[-1].finish_reason == "cancelled"
    for request in requests()[1:]:
        assert llm.session.submit(request).result()[-1].finish_reason in ("length", "end_id")
