"""CPU engines give a request the same bits alone and in any batch, whatever the format of the weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_speculation import described
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.unit.quantize.made_up import made_up
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.schemes import FULL_PRECISION, SCHEMES
from trtllm_lite.runtime.session.request import Request

LIMITS: dict[str, Any] = {"max_batch_size": 12, "max_input_len": 64, "max_seq_len": 96, "max_num_tokens": 100}
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}
KINDS = (
    SamplingParams(temperature=0.0, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.5, seed=7, ignore_eos=True, logprobs=2),
)


def requests() -> list[Request]:
    """Prompts of 1 to 43 tokens: every second one shares a prefix with others, and one text repeats itself."""
    generator = np.random.default_rng(0)
    shared = np.tile(generator.integers(0, VOCAB_SIZE, 8), 8)
    made = []
    for row in range(24):
        prompt = generator.integers(0, VOCAB_SIZE, int(generator.integers(1, 44)))
        if row % 2:
            prompt[: len(prompt) * 3 // 4] = shared[: len(prompt) * 3 // 4]
        params = replace(KINDS[row % 2], max_tokens=int(generator.integers(36, 52)), detokenize=False)
        made.append(Request(prompt.astype(np.int32), params))
    return made


@pytest.mark.parametrize(
    ("qformat", "cache"),
    [(FULL_PRECISION, None), (FULL_PRECISION, "fp8"), (FULL_PRECISION, "int8"), *((name, None) for name in SCHEMES)],
)
def test_requests_get_the_same_bits_in_any_company(qformat: str, cache: str | None, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", **SHAPE)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    scale = None if cache is None else 0.03125
    recipe = Recipe(qformat, group_size=32, kv_cache_dtype=cache, kv_cache_scale=scale)
    model, _ = quantize_network(checkpoint.model, recipe, made_up(checkpoint.model))
    how: dict[str, Any] = {"tokens_per_block": 16, "max_draft_len": 4, "deterministic": True}
    build_engine(replace(checkpoint, model=model), tmp_path / "engine", **how, **LIMITS)
    assert read_engine(tmp_path / "engine").manifest.deterministic
    asked = requests()
    with LLM(tmp_path / "engine", num_threads=1, kv_cache_config={"enable_block_reuse": False}) as llm:
        expected = [described(llm.session.submit(request).result()) for request in asked]
    small = {"max_tokens": 256}
    policy = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    for options in (
        {},
        {"max_num_tokens": 17, "num_threads": 2},
        {"speculative_config": NGRAM},
        {"kv_cache_config": small, "scheduler_config": policy},
    ):
        order = np.random.default_rng(1).permutation(len(asked))
        with LLM(tmp_path / "engine", **options) as llm:
            handles = llm.session.submit_all([asked[row] for row in order])
            found = dict(zip(order.tolist(), [described(handle.result()) for handle in handles], strict=True))
            stats = llm.get_stats()
        assert [found[row] for row in range(len(asked))] == expected
        assert stats.prefix_hit_rate > 0
        assert ("speculative_config" in options) == (stats.speculation.num_accepted[0] > 0)
        assert "scheduler_config" not in options or stats.num_recompute_preemptions + stats.num_swap_preemptions > 0


def test_tensorrt_promises_nothing(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    with pytest.raises(BuildError, match="deterministic is given for sm_120: TensorRT promises no order of additions"):
        build_engine(
            tmp_path / "checkpoint",
            tmp_path / "engine",
            target="sm_120",
            backend="tensorrt",
            deterministic=True,
            **LIMITS,
        )
