"""Mixtures of experts in CPU engines against transformers, in any batch, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.test_generate import (
    TINY_LIMITS,
    TinyEngine,
    assert_identical,
    check_greedy,
    generate,
    random_prompts,
    reference_logits,
)
from tests.models import MOE_FAMILIES, round_matrices, save_model, save_tiny_model, tiny_model
from tests.quantized_writer import LAYOUTS, write_quantized
from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder.build import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.runtime import ModelRunner


@pytest.fixture(scope="module", params=MOE_FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return TinyEngine(request.param, tmp_path_factory.mktemp(request.param))


def test_logits_and_tokens_are_those_of_transformers(tiny: TinyEngine) -> None:
    prompts = random_prompts(0, 8)
    result = tiny.runner().generate(
        prompts, max_new_tokens=1, end_id=-1, temperature=0, return_dict=True, output_context_logits=True
    )
    for prompt, logits in zip(prompts, result["context_logits"], strict=True):
        assert_close(logits, reference_logits(tiny.model, prompt))
    for prompt, (tokens, logits) in zip(prompts, generate(tiny.runner(), prompts, 24), strict=True):
        check_greedy(tiny.model, prompt, tokens, logits)


@pytest.mark.parametrize("options", [{"max_num_tokens": 16}, {"num_threads": 1}], ids=str)
def test_a_request_has_the_same_bits_in_any_company(tiny: TinyEngine, options: dict[str, Any]) -> None:
    prompts = random_prompts(3, 5)
    together = generate(tiny.runner(), prompts, 8)
    assert_identical(generate(tiny.runner(**options), prompts, 8), together)
    for prompt, output in zip(prompts, together, strict=True):
        assert_identical(generate(tiny.runner(), [prompt], 8), [output])


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss", "qwen3_moe"])
def test_a_request_whose_rows_are_nan_ends_alone(family: str, tmp_path: Path) -> None:
    model, bad = tiny_model(family), 7
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = float("nan")
    save_model(model, tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=5)
    good = [[number for number in prompt if number != bad] + [3] for prompt in random_prompts(7, 2)]
    with LLM(tmp_path / "engine") as llm:
        expected = [llm.generate(prompt, params, use_tqdm=False).outputs[0] for prompt in good]
        running = [llm.generate_async(prompt, params) for prompt in (good[0], [bad, 4], good[1], [11, 9, bad])]
        for request in running[1::2]:
            with pytest.raises(EngineError, match="the model's logits must be finite, but hold NaN"):
                request.result()
        assert [request.result().outputs[0].logprobs for request in running[::2]] == [one.logprobs for one in expected]


def test_experts_in_16_bits_are_those_of_the_rounded_model(tmp_path: Path) -> None:
    model = save_tiny_model("qwen2_moe", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float16")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    round_matrices(model, "float16")
    prompts = random_prompts(1, 4)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 8)
    for prompt, (tokens, logits) in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, tokens, logits, "float16")


def test_caches_of_latents_take_the_latent_and_one_rotated_key(tmp_path: Path) -> None:
    tiny = TinyEngine("deepseek_v3", tmp_path)
    cache = read_engine(tmp_path / "engine").manifest.kv_cache
    assert cache.bytes_per_block == 3 * cache.tokens_per_block * (20 + 8) * 4
    (group,) = cache.groups
    assert (group.kind, [kept.shape for kept in group.caches]) == ("latent", [(1, 8), (1, 20)] * 3)
    build_engine(tmp_path / "checkpoint", tmp_path / "half", kv_cache_dtype="float16", **TINY_LIMITS)
    half = read_engine(tmp_path / "half").manifest.kv_cache
    assert half.bytes_per_block == 3 * half.tokens_per_block * (20 + 8) * 2
    prompts = random_prompts(4, 3)
    runners = tiny.runner(), ModelRunner.from_dir(tmp_path / "half")
    for (_, expected), (_, found) in zip(*(generate(runner, prompts, 1) for runner in runners), strict=True):
        assert_close(found, expected, "float16", table=ROUNDED_TOLERANCES)


def test_latents_are_not_rounded_to_eight_bits(tmp_path: Path) -> None:
    TinyEngine("deepseek_v2", tmp_path)
    options = {"kv_cache_dtype": "int8", "kv_cache_scale": 0.01, **TINY_LIMITS}
    with pytest.raises(BuildError, match=r"kv_cache_dtype is int8, and layers\.0\.attention.* keeps a latent cache"):
        build_engine(tmp_path / "checkpoint", tmp_path / "rounded", **options)


def test_latents_of_a_checkpoint_in_fp8(tmp_path: Path) -> None:
    """DeepSeek-V3 is published in FP8: matrices that multiply latents are expanded, the others keep their FP8 tiles."""
    model = write_quantized(tiny_model("deepseek_v3"), tmp_path / "model", LAYOUTS["fp8 in tiles"])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    assert all(fusion.fused for fusion in manifest.fusions if fusion.pass_name in ("linear", "latent_attention"))
    prompts = random_prompts(5, 3)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 8)
    for prompt, (tokens, logits) in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, tokens, logits)
