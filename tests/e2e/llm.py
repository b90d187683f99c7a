"""Helpers of the tests of LLM."""

import numpy as np

from tests.models import VOCAB_SIZE
from trtllm_lite import SamplingParams

LIMITS = {"max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 64}
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)


def random_prompts(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCAB_SIZE, generator.integers(1, longest + 1)).tolist() for _ in range(count)]
