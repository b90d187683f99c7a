"""Guided decoding on tiny models, whose texts are noise apart from what grammars force, and on SmolLM2."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex

from tests.e2e.llm import LIMITS, random_prompts
from tests.models import EOS_ID, save_tiny_model
from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams
from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.session.request import Request, Response

GUIDED = (
    GuidedDecodingParams(regex="[0-9]{3}(-[a-c]{2}){2,9}"),
    GuidedDecodingParams(choice=["the quick brown fox", "the lazy dog", "naïve café"]),
    GuidedDecodingParams(grammar='start: "(" start ")" | /[a-z]{2,30}/'),
    GuidedDecodingParams(json={"type": "array", "items": {"type": "integer"}, "minItems": 3}),
)
KINDS = (
    SamplingParams(temperature=1.0, seed=5, logprobs=2),
    SamplingParams(temperature=0.0, return_generation_logits=True, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, seed=6, top_k=20, frequency_penalty=0.5, min_tokens=4),
    SamplingParams(temperature=0.0, ignore_eos=True, allowed_token_ids=[20, 21]),  # no grammar; repeats itself
)
# This grammar compiles: only after the first letter has it more rules than the parser follows at once.
TOO_WIDE = GuidedDecodingParams(
    grammar="\n".join(
        [f'start: "x" ({" | ".join(f"r{n}" for n in range(2100))})', *(f'r{n}: "{n}" "y"' for n in range(2100))]
    )
)


def requests() -> list[Request]:
    """Prompts with and without grammars, and parameters of all kinds."""
    made = []
    for row, prompt in enumerate(random_prompts(3, 16, longest=40)):
        params = replace(KINDS[row % len(KINDS)], max_tokens=50 + row, detokenize=False)
        if not params.ignore_eos:
            params = replace(params, guided_decoding=GUIDED[row // 4])
        made.append(Request(np.asarray(prompt, np.int32), params))
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


def test_company_preemption_and_drafts_change_nothing(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    limits: dict[str, Any] = {**LIMITS, "max_batch_size": 6}
    with LLM(tmp_path / "model", **limits) as llm:
        alone = [described(llm.session.submit(request).result()) for request in requests()]
    with LLM(
        tmp_path / "model",
        **limits,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 1,
            "enable_adaptive_verification": False,
        },
        kv_cache_config={"tokens_per_block": 16, "max_tokens": 112, "host_cache_size": 1 << 20},
        scheduler_config={"capacity_scheduler_policy": "MAX_UTILIZATION"},
    ) as llm:
        for _ in range(2):  # the second time no request waits for its grammar, so that all are in company
            handles = llm.session.submit_all(requests())
            assert [described(handle.result()) for handle in handles] == alone
        stats = llm.get_stats()
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
    assert stats.speculation.num_accepted[1] > 5
    ends = [rows[-1][1] for rows in alone]
    assert ends.count("end_id") > 3  # grammars that were completed
    assert ends.count("length") > 3


def test_texts_match_their_grammar(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=60, n=4, best_of=5, seed=1, guided_decoding=GUIDED[0])
    output = llm.generate("the quick", params)
    for each in output.outputs:
        assert each.finish_reason == "stop"
        assert each.token_ids[-1] == EOS_ID
        assert regex.fullmatch(GUIDED[0].regex, each.text)
    assert len({each.text for each in output.outputs}) == 4


def test_a_stream_is_the_same_text(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=2, guided_decoding=GUIDED[1])
    pieces = [output.outputs[0].text_diff for output in llm.generate_async("a dog", params, streaming=True)]
    assert "".join(pieces) == llm.generate("a dog", params).outputs[0].text
    assert "".join(pieces) in GUIDED[1].choice


def test_a_guided_request_can_be_cancelled_or_stopped(llm: LLM) -> None:
    endless = GuidedDecodingParams(regex="(ab)*")
    params = SamplingParams(temperature=0.0, max_tokens=64, min_tokens=60, guided_decoding=endless)
    many = replace(params, temperature=1.0, n=64)  # generating these takes far longer than cancelling them
    generation = llm.generate_async("fox", many, streaming=True)
    next(iter(generation))
    generation.cancel()
    assert generation.result().outputs[-1].finish_reason == "cancelled"
    stopped = llm.generate("fox", replace(params, stop="babab", min_tokens=0, logit_bias={EOS_ID: -100.0})).outputs[0]
    assert (stopped.text, stopped.finish_reason) == ("a", "stop")


def test_min_tokens_beyond_the_end_of_a_grammar_is_an_error(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, min_tokens=9, guided_decoding=GuidedDecodingParams(regex="ab"))
    with pytest.raises(EngineError, match=r"min_tokens, guided_decoding.* ban all"):
        llm.generate("fox", params)


def test_a_grammar_that_fails_is_an_error_of_its_request(llm: LLM) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    prompts = ["fox", "dog", "brown"]
    expected = llm.generate(prompts[0], free).outputs[0].token_ids
    kinds = [None, TOO_WIDE, GUIDED[1]]
    outputs = llm.generate(prompts, [replace(free, guided_decoding=guided) for guided in kinds])
    assert outputs[0].outputs[0].token_ids == expected
    assert "the grammar cannot be followed any further" in str(outputs[1].error)
    assert outputs[2].error is None
    with pytest.raises(ArgumentError, match="regex of guided_decoding"):
        llm.generate("fox", replace(free, guided_decoding=GuidedDecodingParams(regex="(")))


def test_an_engine_without_tokenizer_takes_no_grammar(model_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in model_dir.iterdir():
        if not file.name.startswith("tokenizer"):
            (bare / file.name).symlink_to(file)
    with LLM(bare, **LIMITS) as llm, pytest.raises(ArgumentError, match="this engine has no tokenizer"):
        llm.generate([5, 6], SamplingParams(guided_decoding=GUIDED[0]))


STRING = {"type": "string", "maxLength": 12}
INTEGER = {"type": "integer", "minimum": -9, "maximum": 99999}
PROPERTIES: tuple[dict[str, Any], ...] = (
    STRING,
    INTEGER,
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["red", "green", None, 7]},
    {"const": 'naïve "café"'},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$", "maxLength": 12},
    {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
    {"anyOf": [INTEGER, {"type": "object", "properties": {"x": STRING}, "additionalProperties": False}]},
    {"$ref": "#/$defs/node"},
)


def schemas() -> Iterator[dict[str, Any]]:
    """Schemas of objects with two properties, of all kinds."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    for number, first in enumerate(PROPERTIES):
        for second in (PROPERTIES[(number + 1) % 11], PROPERTIES[(number + 4) % 11]):
            yield {
                "type": "object",
                "properties": {"name": first, "value": second},
                "required": ["name", "value"],
                "additionalProperties": False,
                "$defs": {"node": node},
            }


def test_what_a_real_model_writes_is_valid(smollm2_engine: Path) -> None:
    made = list(schemas())
    params = [
        SamplingParams(temperature=1.0, seed=number, max_tokens=64, guided_decoding=GuidedDecodingParams(json=schema))
        for number, schema in enumerate(made)
    ]
    with LLM(smollm2_engine) as llm:
        outputs = llm.generate(["An example of a record as JSON:\n"] * len(made), params)
    written = [(schema, output.outputs[0]) for schema, output in zip(made, outputs, strict=True)]
    finished = [(schema, output.text) for schema, output in written if output.finish_reason == "stop"]
    assert len(finished) > len(made) // 2  # the other requests reached max_tokens
    for schema, text in finished:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
