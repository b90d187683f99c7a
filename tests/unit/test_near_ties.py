"""The checks of GPU engines in ``tests/gpu/test_engine.py`` can fail, as continuations made on a CPU show."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.gpu.test_engine import SHAPE, Case, assert_same_until_near_ties, in_words_of, prompts
from tests.models import tiny_model
from trtllm_lite.runtime import ModelRunner

NUM_PROMPTS, NUM_TOKENS = 8, 6


def _case(family: str) -> tuple[Case, PreTrainedModel]:
    """The reference, and a model that rounds the results of its layers."""
    shape: dict[str, Any] = in_words_of(family, SHAPE | {"head_dim": 16})
    rounding = tiny_model(family, dtype=torch.bfloat16, **shape)
    reference = tiny_model(family, dtype=torch.bfloat16, **shape).float()
    return Case("bfloat16", cast(ModelRunner, None), reference), rounding


def _greedy(model: PreTrainedModel, prompt: list[int]) -> np.ndarray:
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    return cast(np.ndarray, ids[0, len(prompt) :].numpy())


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_rounding_passes_and_rows_of_others_do_not(family: str) -> None:
    (case, rounding), batch = _case(family), prompts()[3 : 3 + NUM_PROMPTS]
    exact = [_greedy(case.reference, prompt) for prompt in batch]
    rounded = [_greedy(rounding, prompt) for prompt in batch]
    assert_same_until_near_ties(case, batch, rounded, exact)
    with pytest.raises(AssertionError):
        assert_same_until_near_ties(case, batch, [*rounded[1:], rounded[0]], exact)
