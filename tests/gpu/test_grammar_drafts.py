"""Grammar drafts on the card: texts follow their grammar, and equal those without drafts up to near-ties."""

from pathlib import Path

import pytest
import regex
import torch

from tests.gpu.test_engine import SHAPE
from tests.gpu.test_speculation import LIMITS, NGRAM
from tests.models import save_tiny_model, tiny_tokenizer
from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams

GUIDED = (
    GuidedDecodingParams(regex="[0-9]{2} = the quick brown fox jumps over [a-c]{3}"),
    GuidedDecodingParams(choice=["the lazy dog and the others", "the quick brown fox", "naïve café"]),
    GuidedDecodingParams(regex="(ab|cd){3}!", reasoning_end_str="a"),
)
PATTERNS = (GUIDED[0].regex, "|".join(GUIDED[1].choice or ()), "[^a]*a(.|\n)*(ab|cd){3}!")


@pytest.mark.parametrize("config", [NGRAM, {**NGRAM, "method": "suffix", "prompt_lookup_min": 2}])
def test_texts_under_grammars_do_not_depend_on_drafts(config: dict[str, object], tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", dtype=torch.bfloat16, **SHAPE, head_dim=16)
    prompts = [f"{row} + {row} is the fox " * 2 for row in range(30)]
    # A likely short token makes thoughts short. No longer token that starts with "a" begins an answer or ends thoughts.
    likely = {tiny_tokenizer().token_to_id("a"): 3.0}
    params = [
        SamplingParams(
            temperature=0.5,
            seed=row,
            max_tokens=80,
            guided_decoding=GUIDED[row % 3],
            logit_bias=likely if row % 3 == 2 else None,
        )
        for row in range(len(prompts))
    ]
    found = []
    for drafting in (None, config):
        with LLM(tmp_path / "model", target="sm_90", speculative_config=drafting, **LIMITS) as llm:
            found.append([output.outputs[0] for output in llm.generate(prompts, params)])
            speculation = llm.get_stats().speculation
    assert speculation.num_accepted[0] > 20
    ended = [(row % 3, output) for row, output in enumerate(found[1]) if output.finish_reason == "stop"]
    assert len(ended) > 15
    for kind, output in ended:
        assert regex.fullmatch(PATTERNS[kind], output.text)
    different = sum(one.token_ids != other.token_ids for one, other in zip(*found, strict=True))
    assert different <= 0.2 * len(prompts)
