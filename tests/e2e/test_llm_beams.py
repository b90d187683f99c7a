"""Beam search through LLM and ModelRunner, against transformers' generate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.e2e.llm import GREEDY, LIMITS, random_prompts
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import LimitError
from trtllm_lite.runtime import ModelRunner

END_IDS = list(range(5, 397, 9))


def expected(model: PreTrainedModel, prompt: list[int], num_beams: int, **settings: Any) -> tuple[Any, Any]:
    """The tokens that transformers generates, cut after end tokens, and the scores of the sequences."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=num_beams,
        num_return_sequences=num_beams,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=END_IDS,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    sequences = []
    for row in output.sequences[:, len(prompt) :].tolist():
        end = next((place + 1 for place, token in enumerate(row) if token in END_IDS), len(row))
        sequences.append(row[:end])
    return sequences, output.sequences_scores.tolist()


@pytest.mark.parametrize(
    "settings", [{}, {"early_stopping": True, "length_penalty": 1.7}, {"early_stopping": "never"}], ids=str
)
def test_beams_are_those_of_transformers(llm: LLM, reference: PreTrainedModel, settings: dict[str, Any]) -> None:
    assert llm.tokenizer is not None
    params = SamplingParams(
        max_tokens=12, use_beam_search=True, n=2, best_of=3, ignore_eos=True, stop_token_ids=END_IDS, **settings
    )
    prompts = random_prompts(30, 3, longest=30)
    outputs = llm.generate([*prompts, prompts[0]], [params] * 3 + [GREEDY])
    for prompt, output in zip(prompts, outputs, strict=False):
        sequences, scores = expected(reference, prompt, 3, **settings)
        assert [entry.token_ids for entry in output.outputs] == sequences[:2]
        assert [entry.score for entry in output.outputs] == pytest.approx(scores[:2], rel=1e-4)
        for entry in output.outputs:
            ended = entry.token_ids[-1] in END_IDS
            assert (entry.finish_reason, entry.stop_reason) == (
                ("stop", entry.token_ids[-1]) if ended else ("length", None)
            )
            assert entry.text == llm.tokenizer.decode(entry.token_ids[: len(entry.token_ids) - ended])
    assert outputs[3].outputs == llm.generate(prompts[0], GREEDY).outputs


@pytest.mark.parametrize("length_penalty", [0.0, 1.3])
def test_a_search_knows_how_likely_its_sequences_are(llm: LLM, length_penalty: float) -> None:
    prompt = random_prompts(33, 1, longest=20)[0]
    params = replace(GREEDY, use_beam_search=True, n=3, length_penalty=length_penalty)
    for entry in llm.generate(prompt, params).outputs:
        forced = llm.generate(prompt + entry.token_ids, replace(GREEDY, max_tokens=1, prompt_logprobs=1))
        rows = forced.prompt_logprobs[len(prompt) :]
        total = sum(row[token].logprob for row, token in zip(rows, entry.token_ids, strict=True))
        assert entry.cumulative_logprob == pytest.approx(total, rel=1e-4)


def test_a_search_comes_at_its_end(llm: LLM) -> None:
    params = replace(GREEDY, use_beam_search=True, n=2)
    (output,) = llm.generate_async("the", params, streaming=True)
    assert output.finished
    assert [entry.text_diff for entry in output.outputs] == [entry.text for entry in output.outputs]
    generation = llm.generate_async("the", params)
    generation.cancel()
    assert generation.result().outputs[0].finish_reason in ("cancelled", "length")
    with pytest.raises(LimitError, match="5 beams exceeds max_beam_width 4"):
        llm.generate("the", replace(params, n=5))


def test_a_search_is_no_wider_than_the_engine_was_built_for(model_dir: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model_dir), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS, max_beam_width=2)
    params = replace(GREEDY, use_beam_search=True, n=2)
    with LLM(tmp_path / "engine", num_threads=1) as llm:
        assert len(llm.generate("the", params).outputs) == 2
        with pytest.raises(LimitError, match=r"3 beams exceeds max_beam_width 2: .* with a larger --max_beam_width"):
            llm.generate("the", replace(params, n=3))


def test_a_search_reports_on_its_prompt(llm: LLM) -> None:
    prompt = random_prompts(32, 1)[0]
    plain = replace(GREEDY, prompt_logprobs=1, return_context_logits=True)
    expected, found = llm.generate([prompt] * 2, [plain, replace(plain, use_beam_search=True, n=2)])
    assert found.prompt_logprobs == expected.prompt_logprobs
    np.testing.assert_array_equal(found.context_logits, expected.context_logits)


def test_model_runner_searches(llm: LLM) -> None:
    runner = ModelRunner.from_dir(llm.engine_dir, max_beam_width=3)
    prompts = random_prompts(31, 2, longest=30)
    result = runner.generate(prompts, max_new_tokens=12, end_id=-1, num_beams=3, return_dict=True, pad_id=0)
    assert result["output_ids"].shape[:2] == (2, 3)
    for row, prompt in enumerate(prompts):
        hypotheses = llm.generate(prompt, replace(GREEDY, use_beam_search=True, n=3)).outputs
        for beam, entry in enumerate(hypotheses):
            length = result["sequence_lengths"][row, beam]
            assert result["output_ids"][row, beam, :length].tolist() == prompt + entry.token_ids
            assert result["sequences_scores"][row, beam] == pytest.approx(entry.score)
    best = runner.generate("the", max_new_tokens=5, num_beams=3, num_return_sequences=1)
    assert isinstance(best, str)
    with pytest.raises(LimitError, match="max_beam_width 3"):
        runner.generate(prompts, num_beams=4)
