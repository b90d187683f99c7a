"""Engines built for the GPU here, checkpoint to tokens, against transformers in float32."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.models import FAMILIES, VOCAB_SIZE, save_tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LIMITS = {"max_batch_size": 20, "max_input_len": 100, "max_seq_len": 128, "max_num_tokens": 160}
# Lengths around the edges of blocks (32 tokens) and of the kernels' tiles.
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 5, 7, 11, 97, 40, 50, 9, 8)
NUM_NEW_TOKENS = 24


@dataclass
class Case:
    """An engine, and the model that it was made of."""

    dtype: str
    runner: ModelRunner
    reference: PreTrainedModel

    def reference_logits(self, tokens: np.ndarray) -> np.ndarray:
        """float32[len(tokens), vocabulary]."""
        with torch.no_grad():
            return self.reference(torch.from_numpy(tokens).long()[None]).logits[0].numpy()


@pytest.fixture(scope="module", params=[(family, dtype) for family in FAMILIES for dtype in ("bfloat16", "float16")])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, dtype = request.param
    directory = tmp_path_factory.mktemp(f"{family}_{dtype}")
    shape = SHAPE | {"head_dim": 32 if family == "qwen3" else 16}
    model = save_tiny_model(family, directory / "model", dtype=getattr(torch, dtype), **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS, target="sm_90")
    return Case(dtype, ModelRunner.from_dir(directory / "engine"), model.float())


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def generate(runner: ModelRunner, batch: list[list[int]], **arguments: Any) -> list[np.ndarray]:
    """The new tokens of each prompt."""
    ids = runner.generate(batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, **arguments)
    return [row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS] for row, prompt in zip(ids, batch, strict=True)]


def test_logits_are_those_of_the_reference(case: Case) -> None:
    batch = prompts()
    result = case.runner.generate(
        batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, temperature=0, return_dict=True, output_generation_logits=True
    )
    for row, prompt in enumerate(batch):
        tokens = result["output_ids"][row, 0, : len(prompt) + NUM_NEW_TOKENS]
        expected = case.reference_logits(tokens)[len(prompt) - 1 : -1]
        found = result["generation_logits"][row][0]
        assert_close(found, expected, case.dtype, f"logits of prompt {row}", GPU_TOLERANCES)
        np.testing.assert_array_equal(found.argmax(1), tokens[len(prompt) :])


def assert_same_until_a_near_tie(case: Case, prompt: list[int], tokens: np.ndarray, others: np.ndarray) -> None:
    """Where two greedy continuations part, the reference finds the two tokens about equally likely."""
    different = np.flatnonzero(tokens != others)
    if not len(different):
        return
    first = different[0]
    logits = case.reference_logits(np.concatenate([prompt, tokens[:first]]).astype(np.int32))[-1]
    margin = abs(float(logits[tokens[first]] - logits[others[first]]))
    assert margin <= 2 * GPU_TOLERANCES[case.dtype].relative * np.abs(logits).max()


def test_tokens_do_not_depend_on_the_batch(case: Case) -> None:
    batch = prompts()
    together = generate(case.runner, batch, temperature=0)
    for size in (1, 2, 3, 5, 9):
        some = generate(case.runner, batch[:size], temperature=0)
        for prompt, tokens, others in zip(batch, some, together, strict=False):
            assert_same_until_a_near_tie(case, prompt, tokens, others)


def test_tokens_are_those_of_the_host_sampler(case: Case) -> None:
    batch = prompts()
    arguments = {"temperature": [0.0, 0.7, 1.0, 1.5] * 5, "top_k": [0, 20, 5, 0] * 5, "top_p": [1.0, 0.9, 1.0, 0.8] * 5}
    seeds = list(range(len(batch)))
    on_device = generate(case.runner, batch, random_seed=seeds, **arguments)
    on_host = case.runner.generate(
        batch,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        random_seed=seeds,
        return_dict=True,
        output_generation_logits=True,
        **arguments,
    )["output_ids"]
    same = sum(
        np.array_equal(tokens, row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS])
        for tokens, row, prompt in zip(on_device, on_host, batch, strict=True)
    )
    # Prompts meet in other steps, so that logits round differently: a draw may fall on the border of two tokens.
    assert same >= 0.8 * len(batch)


def test_same_seed_same_tokens(case: Case) -> None:
    prompt = prompts()[:1]
    first = generate(case.runner, prompt, temperature=1.0, random_seed=7)
    again = generate(case.runner, prompt, temperature=1.0, random_seed=7)
    other = generate(case.runner, prompt, temperature=1.0, random_seed=8)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
