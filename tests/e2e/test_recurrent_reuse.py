"""Prefixes of hybrids on CPUs: what later prompts are spared, and that it changes no bit of what follows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_guided_decoding import described
from tests.e2e.test_recurrent_engine import LIMITS, WIDE_STATES
from tests.models import HYBRID_FAMILIES, VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, KvCacheConfig, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.session import Session

PAGE = LIMITS["tokens_per_block"]
PARAMS = SamplingParams(
    max_tokens=6, temperature=0, ignore_eos=True, detokenize=False, return_generation_logits=True, logprobs=2
)


@pytest.fixture(scope="module", params=HYBRID_FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_of(request.param, tmp_path_factory.mktemp(request.param))


def engine_of(family: str, directory: Path, **limits: Any) -> Path:
    save_tiny_model(family, directory / "model", **WIDE_STATES[family])
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    build_engine(directory / "checkpoint", directory / "engine", **{**LIMITS, **limits})
    return directory / "engine"


def answer(session: Session, prompt: list[int]) -> tuple[list[tuple[Any, ...]], int]:
    """All bits of the answer to a prompt, and how many tokens of the prompt were in the cache."""
    result = session.submit(Request(np.array(prompt, np.int32), PARAMS))
    return described(result.result()), result.timings.num_cached_tokens


def answers(engine: Path, prompts: list[list[int]], **config: Any) -> tuple[list[list[tuple[Any, ...]]], list[int]]:
    """What :func:`answer` says of the prompts, one after the other, with the given configuration of the KV cache."""
    with LLM(engine, kv_cache_config=KvCacheConfig(**config)) as llm:
        both = [answer(llm.session, prompt) for prompt in prompts]
    return [bits for bits, _ in both], [num_cached for _, num_cached in both]


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCAB_SIZE, count).tolist()


def test_every_hit_leads_to_the_same_bits(engine: Path) -> None:
    """What a prompt says anywhere before or behind a hit counts as much as if there were no hit."""
    rng = np.random.default_rng(11)
    text = random_tokens(rng, 8 * PAGE + 1)
    offsets = range(0, 8 * PAGE + 1, PAGE)
    prompts = [text, *([*text[:offset], *random_tokens(rng, 1 + offset // PAGE * 3)] for offset in offsets)]
    expected, num_cached = answers(engine, prompts, enable_block_reuse=False)
    assert num_cached == [0] * len(prompts)
    assert len({str(bits) for bits in expected}) == len(prompts), "answers do not depend on their prompts"
    found, num_cached = answers(engine, prompts, state_snapshot_interval=1)
    assert num_cached == [0, *offsets]
    assert found == expected


def test_a_prompt_that_comes_again_is_computed_in_one_block_at_most(engine: Path) -> None:
    rng = np.random.default_rng(12)
    prompts = [random_tokens(rng, length) for length in (*range(1, 3 * PAGE + 2), 330)]
    twice = [prompt for prompt in prompts for _ in range(2)]
    found, num_cached = answers(engine, twice)
    assert found[1::2] == found[::2]
    num_computed = [len(prompt) - cached for prompt, cached in zip(prompts, num_cached[1::2], strict=True)]
    assert num_computed == [(len(prompt) - 1) % PAGE + 1 for prompt in prompts]


def test_the_third_prompt_goes_on_where_two_parted(engine: Path) -> None:
    """At any length of what they share, the third is spared all full blocks of it."""
    rng = np.random.default_rng(13)
    lengths = range(1, 4 * PAGE + 1)
    prompts = []
    for length in lengths:
        shared = random_tokens(rng, length)
        prompts += [[*shared, first, *random_tokens(rng, PAGE + int(rng.integers(2 * PAGE)))] for first in range(3)]
    found, num_cached = answers(engine, prompts)
    assert num_cached[2::3] == [length // PAGE * PAGE for length in lengths]
    assert found == answers(engine, prompts, enable_block_reuse=False)[0]


def test_evicted_states_come_back_from_host_memory(engine: Path) -> None:
    """The cache has room for a few prompts: others leave with their states, and come back bit for bit."""
    rng = np.random.default_rng(15)
    prompts = [random_tokens(rng, 5 * PAGE + length) for length in (1, 7, 16, 18, 3, 33, 20, 5)]
    whole = [(len(prompt) - 1) // PAGE * PAGE for prompt in prompts]
    expected, _ = answers(engine, prompts, enable_block_reuse=False)
    found = {}
    for host_cache_size in (None, 1 << 25):
        cache = KvCacheConfig(max_tokens=8 * PAGE, host_cache_size=host_cache_size)
        with LLM(engine, kv_cache_config=cache, max_batch_size=3) as llm:
            told = llm.session.told_reuse
            results = [answer(llm.session, prompt) for prompt in prompts * 3]
            stats = llm.get_stats()
        assert [bits for bits, _ in results] == expected * 3
        found[host_cache_size] = [num_cached for _, num_cached in results]
        assert ("33,554,432 bytes of host memory" in told) == (host_cache_size is not None)
    assert sum(found[None]) < sum(found[1 << 25])
    assert found[1 << 25] == [0] * len(prompts) + whole * 2
    assert stats.hit_tokens == 2 * sum(whole)
    assert all(0 < tokens <= stats.hit_tokens for tokens in stats.host_tokens)


@pytest.mark.parametrize("tokens_per_block", [16, 32, 64, 128])
@pytest.mark.parametrize("family", ["falcon_h1", "qwen3_next"])
def test_blocks_are_as_long_as_asked_for(family: str, tokens_per_block: int, tmp_path: Path) -> None:
    """States do not make blocks longer, and so do not make hits rarer."""
    engine = engine_of(family, tmp_path, tokens_per_block=tokens_per_block)
    assert read_engine(engine).manifest.kv_cache.tokens_per_block == tokens_per_block
    prompt = random_tokens(np.random.default_rng(14), 2 * tokens_per_block + 5)
    found, num_cached = answers(engine, [prompt, prompt])
    assert num_cached == [0, 2 * tokens_per_block]
    assert found[0] == found[1]
