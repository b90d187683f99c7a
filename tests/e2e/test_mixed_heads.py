"""CPU engines whose layers differ in key/value heads and in the size of heads, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_beam_search import BLOCK, LIMITS, MAX_TOKENS, Loop
from tests.e2e.test_pipeline_parallel import steps_of
from tests.e2e.test_tensor_parallel import LIMITS as OF_STEPS
from tests.models import VOCAB_SIZE
from tests.onnx_runner import OnnxRunner
from tests.tolerances import assert_close
from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.networks import Shape
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.inspect import inspect_engine
from trtllm_lite.engine.manifest import KvCache
from trtllm_lite.engine.reader import read_engine

WINDOW = 19  # longer than a block
_SIZES: dict[str, Any] = {"max_seq": LIMITS["max_seq_len"], "vocab": VOCAB_SIZE}
SHAPES = {
    "one group": Shape(layers=3, windows=(0,) * 3, layer_kv_heads=(2, 1, 3), layer_head_dims=(6, 10), **_SIZES),
    "windows": Shape(
        layers=4,
        windows=(WINDOW, 0, WINDOW, 0),
        layer_kv_heads=(2, 1),
        layer_head_dims=(6, 14, 10),
        qk_norm=True,
        **_SIZES,
    ),
}
# The bytes of keys and values of a token in float32, by layer: 8 times heads times the size of heads.
BYTES = {"one group": [96, 80, 144], "windows": [96, 112, 160, 48]}
# Layers of each group, the largest first, and the bytes of a token in the largest group.
GROUPS = {"one group": [(2, 0, 1)], "windows": [(1, 3), (2,), (0,)]}
LARGEST = {"one group": 144 + 96 + 80, "windows": 160}


class Case:
    """A random network, its engine, and prompts of which some begin alike."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory, self.shape = name, directory, SHAPES[name]
        save_checkpoint(directory / "checkpoint", self.shape)
        how = {"tokens_per_block": BLOCK, "gather_context_logits": True, **LIMITS}
        build_engine(directory / "checkpoint", directory / "engine", **how)
        random = np.random.default_rng(3)
        common = random.integers(3, self.shape.vocab, 2 * BLOCK + 3).tolist()
        self.prompts = [
            common[: number % 3 * BLOCK] + random.integers(3, self.shape.vocab, random.integers(1, 29)).tolist()
            for number in range(12)
        ]

    @property
    def cache(self) -> KvCache:
        return read_engine(self.directory / "engine").manifest.kv_cache

    def loop(self, **options: Any) -> Loop:
        return Loop(self.directory / "engine", **options)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits of the network after each of ``tokens``, by onnxruntime."""
        (rows,) = OnnxRunner(self.directory / "checkpoint", batch=1, max_seq=self.shape.max_seq).step([tokens])
        return rows

    def log_probabilities(self, prompt: list[int], tokens: list[int]) -> np.ndarray:
        """The log probability of each of ``tokens`` after ``prompt``."""
        rows = self.logits(prompt + tokens[:-1])[len(prompt) - 1 :].astype(np.float64)
        rows -= np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) + rows.max(-1, keepdims=True)
        return rows[np.arange(len(tokens)), tokens]


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("engines"))


def test_blocks_are_as_large_as_their_largest_groups(case: Case) -> None:
    cache, expected = case.cache, BYTES[case.name]
    assert [group.layers for group in cache.groups] == GROUPS[case.name]
    for group in cache.groups:
        found = [sum(one.num_bytes for one in kept) for kept in group.by_layer.values()]
        assert found == [expected[layer] for layer in group.layers]
    assert cache.bytes_per_block == BLOCK * LARGEST[case.name]
    use = inspect_engine(case.directory / "engine").cache_use
    assert use is not None
    for used, group in zip(use.groups, cache.groups, strict=True):
        of_layers = sum(expected[layer] for layer in group.layers)
        assert (used.token_bytes, used.idle_bytes) == (LARGEST[case.name], LARGEST[case.name] - of_layers)
        assert ("idle" in used.describe()) == (used.idle_bytes > 0)
    assert use.full_bytes == LIMITS["max_seq_len"] * sum(expected)


def test_prompts_in_chunks_have_the_logits_and_tokens_of_onnxruntime(case: Case) -> None:
    loop = case.loop()
    requests = [loop.submit(prompt, context_logits=True) for prompt in case.prompts]
    outcomes = loop.finish()
    for request, prompt in zip(requests, case.prompts, strict=True):
        tokens = outcomes[request].tokens
        assert len(tokens) == MAX_TOKENS
        expected = case.logits(prompt + tokens[:-1])
        assert_close(np.concatenate(outcomes[request].context_logits), expected[: len(prompt)])
        assert tokens == expected[len(prompt) - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("num_host_blocks", [0, 24])
def test_preempted_and_swapped_requests_change_nothing(case: Case, num_host_blocks: int) -> None:
    """Prefixes are reused, and searches copy blocks which their beams share."""
    beams = [{"num_beams": 3} if number % 3 == 0 else {} for number in range(len(case.prompts))]
    plenty = case.loop()
    requests = [plenty.submit(prompt, **how) for prompt, how in zip(case.prompts, beams, strict=True)]
    outcomes = plenty.finish()
    expected = [(outcomes[request].tokens, outcomes[request].hypotheses) for request in requests]
    num_blocks = 12 * len(case.cache.groups)
    options = {"max_utilization": True, "enable_block_reuse": True, "num_host_blocks": num_host_blocks}
    scarce = case.loop(num_blocks=num_blocks, **options)
    requests = [scarce.submit(prompt, **how) for prompt, how in zip(case.prompts, beams, strict=True)]
    outcomes = scarce.finish()
    assert [(outcomes[request].tokens, outcomes[request].hypotheses) for request in requests] == expected
    stats = scarce.loop.stats()
    assert stats["hit_tokens"] > 0
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0
    assert (stats["num_swap_preemptions"] > 0) == (num_host_blocks > 0)


def test_scores_of_beams_are_those_of_onnxruntime(case: Case) -> None:
    loop = case.loop()
    requests = [loop.submit(prompt, num_beams=3) for prompt in case.prompts[:4]]
    outcomes = loop.finish()
    for request, prompt in zip(requests, case.prompts, strict=False):
        hypotheses = outcomes[request].hypotheses
        assert len({tuple(tokens) for tokens, _ in hypotheses}) == 3
        found = np.array([score for _, score in hypotheses])
        expected = [case.log_probabilities(prompt, tokens).mean() for tokens, _ in hypotheses]
        assert_close(found, np.array(expected), what="scores")


@pytest.mark.parametrize("divided", [{"pp_size": 2}, {"tp_size": 6}], ids=str)
def test_stages_and_ranks_compute_what_one_engine_does(case: Case, divided: dict[str, int], tmp_path: Path) -> None:
    """Six ranks have one key/value head of every layer each, which several ranks share."""
    build_engine(case.directory / "checkpoint", tmp_path / "one", **OF_STEPS)
    build_engine(case.directory / "checkpoint", tmp_path / "many", **divided, **OF_STEPS)
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        assert_close(found, expected)
