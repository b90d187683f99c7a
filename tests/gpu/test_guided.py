"""Guided and other requests on the card: texts follow their grammar, and equal those of a CPU engine."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex
import torch
from transformers import PreTrainedModel

from tests.e2e.test_guided_decoding import schemas
from tests.gpu.test_engine import SHAPE
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import GPU_TOLERANCES
from trtllm_lite import LLM, GuidedDecodingParams, RequestOutput, SamplingParams

LIMITS: dict[str, Any] = {"max_batch_size": 20, "max_input_len": 80, "max_seq_len": 128, "max_num_tokens": 160}
INTEGERS = {"type": "array", "items": {"type": "integer", "maximum": 99999}, "minItems": 3, "maxItems": 6}
RECORD = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": ["red", "green"]}, "c": INTEGERS},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
GUIDED = (
    GuidedDecodingParams(regex="[0-9]{3}(-[a-c]{2}){2,9}"),
    GuidedDecodingParams(json=RECORD),
    GuidedDecodingParams(choice=["the quick brown fox", "the lazy dog", "naïve café"]),
    GuidedDecodingParams(json=INTEGERS),
    None,
)
# All prompts have two blocks, and the grammar never ends an answer. With five blocks, a request that has three admits
# no other, and two requests of two blocks cannot both get a third: when one ends, the next two in the queue start
# together, and the earlier preempts the later.
PAGE, NUM_LONG, LONG_PROMPT = 32, 8, 60
LONG = GuidedDecodingParams(regex="[0-9a-f]{999}")
# The device samples, with and without log probabilities and edits, or the host does.
BIAS = {5: 1.0}
KINDS: tuple[dict[str, Any], ...] = ({}, {"logprobs": 2}, {"logit_bias": BIAS}, {"return_generation_logits": True})
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": {"speculative_config": NGRAM},
    "preemption": {
        "kv_cache_config": {"tokens_per_block": PAGE, "max_tokens": 5 * PAGE},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
    },
    "reuse": {"kv_cache_config": {"enable_block_reuse": True}},
}
OF_TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
RANKS, STAGES = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
ALONE_AND_DIVIDED = [
    pytest.param({}, id="one GPU"),
    pytest.param(RANKS, id="ranks", marks=OF_TWO_GPUS),
    pytest.param(STAGES, id="stages", marks=OF_TWO_GPUS),
]


def questions(temperature: float) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts with repeated pieces, and parameters of all kinds under all grammars."""
    generator = np.random.default_rng(0)
    prompts, params = [], []
    for row in range(NUM_LONG + 60):
        piece = generator.integers(3, VOCAB_SIZE, generator.integers(2, 12))
        is_long = row < NUM_LONG
        prompts.append(np.tile(piece, 36)[: LONG_PROMPT if is_long else 36 + row % 30].tolist())
        guided = LONG if is_long else GUIDED[row % len(GUIDED)]
        kind = KINDS[row // len(GUIDED) % len(KINDS)]
        own = SamplingParams(temperature=temperature, seed=row, max_tokens=44, guided_decoding=guided, **kind)
        params.append(own if guided else replace(own, ignore_eos=True))
    return prompts, params


def check_guided(output: RequestOutput, guided: GuidedDecodingParams | None) -> bool:
    """Return whether the text ended by itself; if so, check that it follows its grammar."""
    assert output.error is None, output.error
    [written] = output.outputs
    if guided is None or written.finish_reason != "stop":
        assert written.finish_reason == "length"
        return False
    if guided.regex:
        assert regex.fullmatch(guided.regex, written.text)
    elif guided.choice:
        assert written.text in guided.choice
    else:
        jsonschema.validate(json.loads(written.text), guided.json)
    return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """A tiny model, and its reference."""
    directory = tmp_path_factory.mktemp("guided") / "model"
    return directory, save_tiny_model("llama", directory, dtype=torch.bfloat16, **SHAPE, head_dim=16).float()


@pytest.fixture(scope="module")
def of_cpu(model: tuple[Path, PreTrainedModel]) -> list[RequestOutput]:
    """Greedy answers of a CPU engine."""
    with LLM(model[0], target="cpu", **LIMITS) as llm:
        outputs: list[RequestOutput] = llm.generate(*questions(0.0), use_tqdm=False)
    return outputs


def check_same_until_a_near_tie(
    reference: PreTrainedModel, prompt: Sequence[int], bias: dict[int, float], runs: Sequence[list[int]]
) -> bool:
    """Whether both runs of tokens are the same; where they part, the reference's logits are about equal."""
    if runs[0] == runs[1]:
        return True
    place = next(i for i, (one, other) in enumerate(zip(*runs, strict=False)) if one != other)
    with torch.no_grad():
        logits = reference(torch.tensor([[*prompt, *runs[0][:place]]])).logits[0, -1].numpy()
    margin = 4 * GPU_TOLERANCES["bfloat16"].relative * np.abs(logits).max()
    one, other = (logits[run[place]] + bias.get(run[place], 0.0) for run in runs)
    assert abs(one - other) <= margin
    return False


@pytest.mark.parametrize("divided", ALONE_AND_DIVIDED)
@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_those_of_a_cpu(
    model: tuple[Path, PreTrainedModel], of_cpu: list[RequestOutput], way: str, divided: dict[str, int]
) -> None:
    directory, reference = model
    prompts, params = questions(0.0)
    with LLM(directory, target="sm_90", **LIMITS, **WAYS[way], **divided) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        again = llm.generate(prompts, params, use_tqdm=False) if way == "reuse" else []
        stats = llm.get_stats()
    num_same = num_ended = 0
    asked = list(zip(prompts, params, of_cpu, strict=True))
    for (prompt, own, expected), output in zip(asked * (2 if again else 1), [*outputs, *again], strict=True):
        num_ended += check_guided(output, own.guided_decoding)
        runs = [list(found.outputs[0].token_ids) for found in (output, expected)]
        num_same += check_same_until_a_near_tie(reference, prompt, own.logit_bias or {}, runs)
    assert num_ended > len(prompts) // 5
    assert num_same > len(prompts) // 2
    if way == "drafts":
        assert stats.speculation.num_accepted[0] > 10
    if way == "preemption":
        assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0


@pytest.mark.parametrize("divided", ALONE_AND_DIVIDED)
def test_sampled_texts_have_their_forms_while_others_are_cancelled(
    model: tuple[Path, PreTrainedModel], divided: dict[str, int]
) -> None:
    prompts, params = questions(1.0)
    endless = SamplingParams(max_tokens=80, guided_decoding=GuidedDecodingParams(regex="(ab)*"), logit_bias={1: -100.0})
    with LLM(model[0], target="sm_90", **LIMITS, speculative_config=NGRAM, **divided) as llm:
        cancelled = [llm.generate_async("fox", endless, streaming=True) for _ in range(4)]
        handles = [llm.generate_async(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
        for generation in cancelled:
            generation.cancel()
        ended = [
            check_guided(handle.result(), own.guided_decoding) for handle, own in zip(handles, params, strict=True)
        ]
        assert all(generation.result().outputs[0].finish_reason in ("cancelled", "length") for generation in cancelled)
    assert sum(ended) > len(prompts) // 5


def test_what_a_real_model_writes_is_valid(smollm2_gguf: Path) -> None:
    """Requests with many schemas run at once, next to requests without one."""
    made = [*schemas()]
    params = [
        SamplingParams(temperature=1.0, seed=number, max_tokens=64, guided_decoding=GuidedDecodingParams(json=schema))
        for number, schema in enumerate(made)
    ]
    free = SamplingParams(temperature=1.0, max_tokens=64, seed=7, ignore_eos=True)
    wants = [one for own in params for one in (own, free)]
    prompt = "An example of a record as JSON:\n"
    with LLM(smollm2_gguf, target="sm_90", max_batch_size=64, max_input_len=64, max_seq_len=128) as llm:
        outputs = llm.generate([prompt] * len(wants), wants, use_tqdm=False)
    written = [(schema, output.outputs[0]) for schema, output in zip(made, outputs[::2], strict=True)]
    finished = [(schema, output.text) for schema, output in written if output.finish_reason == "stop"]
    assert len(finished) > len(made) // 2  # the other requests reached max_tokens
    for schema, text in finished:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    assert all(len(output.outputs[0].token_ids) == free.max_tokens for output in outputs[1::2])
