"""Llama 4's chunked attention and the temperature of its late positions, in engines against transformers."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_generate import TINY_LIMITS, TinyEngine, assert_identical, check_greedy, generate, random_prompts
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.reader import read_engine

CHUNKS = {"attention_chunk_size": 24, "floor_scale": 5, "attn_scale": 0.7}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return TinyEngine("llama4", tmp_path_factory.mktemp("llama4"), **CHUNKS)


def test_tokens_are_those_of_transformers(tiny: TinyEngine) -> None:
    """Prompts have one chunk or several, and answers cross chunk borders; blocks have 16 positions."""
    prompts = random_prompts(0, 6)
    for prompt, (tokens, logits) in zip(prompts, generate(tiny.runner(), prompts, 32), strict=True):
        check_greedy(tiny.model, prompt, tokens, logits)


@pytest.mark.parametrize("options", [{"max_num_tokens": 16}, {"num_threads": 1}], ids=str)
def test_a_request_has_the_same_bits_in_any_company(tiny: TinyEngine, options: dict[str, Any]) -> None:
    prompts = random_prompts(3, 5)
    together = generate(tiny.runner(), prompts, 8)
    assert_identical(generate(tiny.runner(**options), prompts, 8), together)


def test_layers_of_chunks_keep_no_more_than_a_window(tiny: TinyEngine) -> None:
    groups = read_engine(tiny.directory / "engine").manifest.kv_cache.groups
    assert [(group.window, group.layers) for group in groups] == [(0, (2,)), (24, (0,)), (24, (1,))]


def test_ranks_see_the_same_chunks(tiny: TinyEngine, tmp_path: Path) -> None:
    build_engine(tiny.directory / "checkpoint", tmp_path / "engine", tp_size=2, tokens_per_block=16, **TINY_LIMITS)
    many = TinyEngine.__new__(TinyEngine)
    many.directory = tmp_path
    prompts = random_prompts(4, 3)
    for prompt, (tokens, logits) in zip(prompts, generate(many.runner(), prompts, 16), strict=True):
        check_greedy(tiny.model, prompt, tokens, logits)
