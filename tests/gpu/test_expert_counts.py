"""Routers' choices are counted on a GPU for every row of a request, and not for rows of padding."""

from pathlib import Path

import numpy as np

from tests.gpu.test_engine import NUM_NEW_TOKENS, generate, make_case
from tests.models import VOCAB_SIZE
from trtllm_lite.runtime.session.experts import counted_since

NUM_PROMPTS, LENGTH = 11, 7  # decode steps of 11 rows are padded to 16


def test_rows_of_requests_are_counted(tmp_path: Path) -> None:
    case = make_case("qwen3_moe", "bfloat16", tmp_path)
    config = case.reference.config
    batch = np.random.default_rng(0).integers(3, VOCAB_SIZE, (NUM_PROMPTS, LENGTH)).tolist()
    before = case.runner.expert_counts()
    generate(case.runner, batch, temperature=0)
    counts = counted_since(case.runner.expert_counts(), before)
    assert len(counts) == config.num_hidden_layers
    rows = NUM_PROMPTS * (LENGTH + NUM_NEW_TOKENS - 1)
    ahead = 2 * NUM_PROMPTS  # rows of steps that run while the host still receives the last tokens
    for layer in counts[:-1]:  # in the last layer prompts have one row each
        choices = int(layer.choices.sum())
        assert choices % config.num_experts_per_tok == 0
        assert rows <= choices // config.num_experts_per_tok <= rows + ahead
        assert layer.steps * config.num_experts_per_tok <= layer.experts_read[0] <= layer.steps * config.num_experts
        assert layer.busiest_choices == choices
