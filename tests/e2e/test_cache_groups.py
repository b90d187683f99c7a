"""Sequences longer than several attention windows: blocks that windows leave are freed, results are unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_generate import check_greedy, generate
from tests.models import VOCAB_SIZE, save_tiny_model
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime import ModelRunner

LIMITS = {"max_batch_size": 16, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 40, "tokens_per_block": 16}
NUM_NEW_TOKENS = 24
WINDOW = 19  # longer than a block
LAYERS = ["sliding_attention", "full_attention", *["sliding_attention"] * 3, "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"num_hidden_layers": 6, "layer_types": LAYERS},
    "gemma3": {"num_hidden_layers": 6, "layer_types": LAYERS},
    "mistral": {},  # one group, with a window
}
GROUPS = {
    "gemma2": [("full", (1, 5)), (f"window_{WINDOW}", (0, 3)), (f"window_{WINDOW}.1", (2, 4))],
    "gemma3": [("full", (1, 5)), (f"window_{WINDOW}", (0, 3)), (f"window_{WINDOW}.1", (2, 4))],
    "mistral": [(f"window_{WINDOW}", (0, 1, 2))],
}


class Case:
    """A tiny model of one family, its engine, and prompts with common prefixes."""

    def __init__(self, family: str, directory: Path) -> None:
        self.family, self.directory = family, directory
        self.model = save_tiny_model(family, directory / "model", sliding_window=WINDOW, **FAMILIES[family])
        convert_checkpoint(str(directory / "model"), directory / "checkpoint")
        build_engine(directory / "checkpoint", directory / "engine", **LIMITS)
        generator = np.random.default_rng(0)
        prefixes = generator.integers(0, VOCAB_SIZE, (2, 72)).tolist()
        self.prompts = [
            prefixes[row % 2][: int(generator.integers(0, 73))]
            + generator.integers(0, VOCAB_SIZE, int(generator.integers(1, 24))).tolist()
            for row in range(16)
        ]

    def runner(self, **options: Any) -> ModelRunner:
        return ModelRunner.from_dir(self.directory / "engine", kv_cache_enable_block_reuse=True, **options)

    def check(self, runner: ModelRunner) -> None:
        """Compare all prompts at once, in steps that mix chunks and decode tokens, with transformers."""
        outputs = generate(runner, self.prompts, NUM_NEW_TOKENS)
        for prompt, (tokens, logits) in zip(self.prompts, outputs, strict=True):
            check_greedy(self.model, prompt, tokens, logits)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def test_layers_of_one_window_share_tables_and_places(case: Case) -> None:
    manifest = read_engine(case.directory / "engine").manifest
    assert [(group.name, group.layers) for group in manifest.kv_cache.groups] == GROUPS[case.family]
    assert manifest.kv_cache.num_layers == len(GROUPS[case.family][0][1])
    full = LIMITS["max_batch_size"] * -(-LIMITS["max_seq_len"] // LIMITS["tokens_per_block"])
    assert manifest.kv_cache.num_blocks < full * len(manifest.kv_cache.groups)


def test_sequences_of_several_windows_are_those_of_transformers(case: Case) -> None:
    runner = case.runner()
    case.check(runner)
    case.check(runner)  # common prefixes are reused, up to a length whose windows are still cached
    assert runner.session.stats().prefix_hit_rate > 0.2


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_a_cache_for_few_sequences(case: Case, policy: str) -> None:
    limits = case.runner().session.limits
    num_blocks = limits.blocks_for(LIMITS["max_seq_len"]) + 9
    max_tokens = num_blocks // len(limits.cache_groups) * LIMITS["tokens_per_block"]
    runner = case.runner(max_tokens_in_paged_kv_cache=max_tokens, capacity_scheduler_policy=policy)
    case.check(runner)
    preemptions = runner.session.stats().num_recompute_preemptions
    grows = case.family != "mistral"  # if every layer has a window, sequences soon free their blocks
    assert (preemptions > 0) == (grows and policy == "MAX_UTILIZATION")
