"""Prompts of embeddings: rows of the model's table are its tokens, and other rows what transformers makes of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.e2e.llm import GREEDY, LIMITS, random_prompts
from tests.models import VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, KvCacheConfig, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.common.vocabulary import TOKEN_ROWS
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.modules import Port
from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.runtime.session.config import SchedulerConfig
from trtllm_lite.runtime.session.prompt_embeds import _STORED, PromptEmbeds

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "enable_adaptive_verification": False}
BEAMS = SamplingParams(max_tokens=8, use_beam_search=True, best_of=3, n=3, ignore_eos=True)


def opened(model_dir: Path, **options: Any) -> LLM:
    cache = options.pop("kv_cache_config", KvCacheConfig(tokens_per_block=16))
    return LLM(model_dir, enable_prompt_embeds=True, kv_cache_config=cache, **{**LIMITS, **options})


@pytest.fixture(scope="module")
def embeds_llm(model_dir: Path) -> Iterator[LLM]:
    with opened(model_dir) as llm:
        yield llm


@pytest.fixture(scope="module")
def table(reference: PreTrainedModel) -> np.ndarray:
    return reference.get_input_embeddings().weight.detach().numpy()


def tokens_of(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[list[list[int]]]:
    """The tokens of each sequence of each prompt."""
    return [[list(one.token_ids) for one in output.outputs] for output in llm.generate(prompts, params)]


def mixed(prompt: list[int], table: np.ndarray, seed: int) -> dict[str, Any]:
    """A prompt of which some tokens are rows of the table, in an order of their own."""
    generator, ids = np.random.default_rng(seed), np.array(prompt)
    chosen = generator.permutation(np.flatnonzero(generator.random(len(ids)) < 0.6))
    rows = table[ids[chosen]]
    ids[chosen] = VOCAB_SIZE + np.arange(len(chosen))
    return {"prompt_token_ids": ids, "prompt_embeds": rows} if len(chosen) else {"prompt_token_ids": ids}


@pytest.mark.parametrize("params", [GREEDY, BEAMS, replace(GREEDY, temperature=0.9, seed=3, n=2)])
def test_rows_of_the_table_are_tokens(llm: LLM, embeds_llm: LLM, table: np.ndarray, params: SamplingParams) -> None:
    """Whatever is sampled, also in chunks: steps have 64 tokens, prompts up to 90."""
    prompts = random_prompts(5, 12, longest=90)
    expected = tokens_of(llm, prompts, params)
    assert tokens_of(embeds_llm, [{"prompt_embeds": table[prompt]} for prompt in prompts], params) == expected
    assert (
        tokens_of(embeds_llm, [mixed(prompt, table, seed) for seed, prompt in enumerate(prompts)], params) == expected
    )


def test_other_rows_continue_as_in_transformers(embeds_llm: LLM, reference: PreTrainedModel) -> None:
    generator = np.random.default_rng(7)
    hidden = reference.config.hidden_size
    for length in (1, 2, 17, 65, 90):
        rows = generator.standard_normal((length, hidden)).astype(np.float32)
        with torch.inference_mode():
            expected = reference.generate(
                inputs_embeds=torch.from_numpy(rows)[None], max_new_tokens=12, do_sample=False, eos_token_id=-1
            )
        output = embeds_llm.generate({"prompt_embeds": rows}, GREEDY)
        assert list(output.outputs[0].token_ids) == expected[0].tolist()


def test_prefixes_are_told_apart_by_their_rows(embeds_llm: LLM, reference: PreTrainedModel) -> None:
    generator = np.random.default_rng(8)
    rows = generator.standard_normal((50, reference.config.hidden_size)).astype(np.float32)
    other = rows.copy()
    other[20, 3] += 0.5  # the second block differs
    cached = [
        embeds_llm.generate({"prompt_embeds": given}, GREEDY).metrics.num_cached_tokens
        for given in (rows, rows, other, other)
    ]
    assert cached == [0, 48, 16, 48]
    longer = {"prompt_token_ids": [*range(VOCAB_SIZE, VOCAB_SIZE + 50), 5, 6, 7], "prompt_embeds": rows}
    assert embeds_llm.generate(longer, GREEDY).metrics.num_cached_tokens == 48
    assert embeds_llm.generate([0] * 50, GREEDY).metrics.num_cached_tokens == 0  # placeholders are no rows


@pytest.mark.parametrize("host_cache_size", [None, 1 << 20])
def test_preempted_prompts_go_on(llm: LLM, model_dir: Path, table: np.ndarray, host_cache_size: int | None) -> None:
    prompts = random_prompts(9, 12, longest=60)
    cache = KvCacheConfig(tokens_per_block=16, max_tokens=160, host_cache_size=host_cache_size)
    scheduler = SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
    params = replace(GREEDY, max_tokens=40)
    with opened(model_dir, kv_cache_config=cache, scheduler_config=scheduler) as preempting:
        parts = [mixed(prompt, table, seed) for seed, prompt in enumerate(prompts)]
        assert tokens_of(preempting, parts, params) == tokens_of(llm, prompts, params)
        stats = preempting.get_stats()
        assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0


@pytest.mark.parametrize("options", [{"tensor_parallel_size": 2}, {"speculative_config": DRAFTS}])
def test_ranks_and_drafts(llm: LLM, model_dir: Path, table: np.ndarray, options: dict[str, Any]) -> None:
    prompts = [np.tile(prompt[:12], 4)[:40].tolist() for prompt in random_prompts(10, 8)]
    with opened(model_dir, **options) as other:
        parts = [mixed(prompt, table, seed) for seed, prompt in enumerate(prompts)]
        assert tokens_of(other, parts) == tokens_of(llm, prompts)


def test_penalties_count_no_rows(embeds_llm: LLM, reference: PreTrainedModel) -> None:
    """The token 0 stands for rows, and would be generated without a penalty: so it is not penalized."""
    rows = np.random.default_rng(11).standard_normal((5, reference.config.hidden_size)).astype(np.float32)
    params = SamplingParams(max_tokens=1, temperature=0, logit_bias={0: 50.0}, repetition_penalty=20.0)
    assert list(embeds_llm.generate({"prompt_embeds": rows}, params).outputs[0].token_ids) == [0]
    assert list(embeds_llm.generate([0, 0, 5], params).outputs[0].token_ids) != [0]


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38)])
def test_rows_are_rounded_to_the_engine(dtype: str, largest: float) -> None:
    rows = np.random.default_rng(12).standard_normal((3, 8)).astype(np.float32)
    rows[0, :3] = largest, -largest, 1 + 2**-8  # the last one is halfway between two numbers of bfloat16
    port = Port(TOKEN_ROWS, dtype, ("num_token_rows", 8))
    manifest: Any = SimpleNamespace(module=SimpleNamespace(inputs=(port,)))
    embeds = PromptEmbeds(np.arange(3, dtype=np.int32), rows)
    embeds.to_native(manifest)
    expected = torch.from_numpy(rows).to(getattr(torch, dtype)).view(torch.uint8).numpy()
    np.testing.assert_array_equal(_STORED[dtype](rows), expected)
    if dtype == "float16":
        with pytest.raises(ArgumentError, match="above 65504, the largest float16"):
            PromptEmbeds(np.arange(3, dtype=np.int32), rows * 2).to_native(manifest)


def test_what_does_not_fit_is_refused(llm: LLM, embeds_llm: LLM, table: np.ndarray) -> None:
    wrong = [
        ({"prompt_embeds": table[:3, :-1]}, "expected the model's hidden size"),
        ({"prompt_embeds": table[0]}, r"expected floats \[tokens"),
        ({"prompt_embeds": np.zeros((3, table.shape[1]), np.int32)}, r"dtype int32: expected floats"),
        ({"prompt_embeds": np.full((3, table.shape[1]), np.nan)}, "not finite"),
        ({"prompt_embeds": "text"}, "no array of numbers"),
        ({"prompt_embeds": torch.zeros(2, table.shape[1], requires_grad=True)}, r"pass tensor.detach\(\)"),
        ({"prompt_embeds": None}, "nothing but None"),
        ({"prompt_embeds": table[:2], "prompt": "text"}, "prompt and prompt_embeds: expected"),
        ({"prompt_embeds": table[:2], "more": 1}, "'more'"),
        ({"prompt_embeds": table[:2], "prompt_token_ids": [1, VOCAB_SIZE]}, "no token id stands for row 1"),
        ({"prompt_embeds": table[:2], "prompt_token_ids": [1, VOCAB_SIZE + 2]}, "stands for row 2 .* it has 2 rows"),
        ({"prompt_embeds": table[:1], "prompt_token_ids": [VOCAB_SIZE, -1]}, "token id -1"),
    ]
    for prompt, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            embeds_llm.generate(prompt, GREEDY)
    with pytest.raises(ArgumentError, match="this engine takes tokens alone: build it with --enable_prompt_embeds"):
        llm.generate({"prompt_embeds": table[:3]}, GREEDY)
    with pytest.raises(ArgumentError, match="which are no tokens: leave one of them out"):
        embeds_llm.generate({"prompt_embeds": table[:9]}, replace(GREEDY, prompt_logprobs=1))
    with pytest.raises(ArgumentError, match="leave it out"):
        embeds_llm.generate({"prompt_embeds": table[:9]}, replace(GREEDY, truncate_prompt_tokens=4))


def test_streams_that_are_scaled_are_refused(tmp_path: Path) -> None:
    save_tiny_model("granite", tmp_path / "model")
    with pytest.raises(BuildError, match="networks of granite scale their residual stream: leave enable_prompt_embeds"):
        opened(tmp_path / "model")


def test_engines_that_cannot_take_rows_are_not_built(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "checkpoint")
    with pytest.raises(BuildError, match="pp_size is 2: leave enable_prompt_embeds out"):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", enable_prompt_embeds=True, pp_size=2, target="cpu")


def test_engines_of_gpus_take_rows(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    save_tiny_model("llama", tmp_path / "model", dtype=torch.bfloat16, head_dim=16, **sizes)
    convert_checkpoint(tmp_path / "model", tmp_path / "checkpoint", "bfloat16")
    built = build_engine(tmp_path / "checkpoint", tmp_path / "engine", enable_prompt_embeds=True, target="sm_90")
    (port,) = built.module.inputs
    assert (port.name, port.dtype, port.size) == (TOKEN_ROWS, "bfloat16", 64)


def test_rows_are_what_the_first_layer_reads(tmp_path: Path) -> None:
    """Gemma 2 scales embeddings, and its layers have windows: rows are scaled already."""
    save_tiny_model("gemma2", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    prompts = random_prompts(13, 6)
    read: list[torch.Tensor] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    with torch.inference_mode():
        for prompt in prompts:
            model(torch.tensor([prompt]))
    with opened(tmp_path / "model") as llm:
        expected = tokens_of(llm, prompts)
        assert tokens_of(llm, [{"prompt_embeds": rows.numpy()} for rows in read]) == expected
