"""LoRA on the card: a row's logits equal those of the model with the row's adapter merged, or of the plain model."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.gpu.test_engine import LIMITS, NUM_NEW_TOKENS, SHAPE, generate, in_words_of, prompts
from tests.models import quantize_linear_layers, save_tiny_model
from tests.timing_caches import save_tiles_first
from tests.tolerances import ADAPTER_TOLERANCES, GPU_TOLERANCES, assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

MAX_RANK, MAX_LORAS, MAX_CPU_LORAS = 16, 3, 4
RANKS = (16, 5, 8, 1, 11)  # more adapters than slots, and than fit in memory


@dataclass
class Case:
    """An engine with room for adapters; ``models`` has the plain model, then one with each adapter merged."""

    dtype: str
    runner: ModelRunner
    models: list[PreTrainedModel]
    directories: list[Path]

    def logits(self, which: int, tokens: np.ndarray) -> np.ndarray:
        """float32[len(tokens), vocabulary], with adapter number ``which``, or without an adapter if it is -1."""
        with torch.no_grad():
            return self.models[which + 1](torch.from_numpy(tokens).long()[None]).logits[0].numpy()


def merged(model: PreTrainedModel, directory: Path, seed: int, rank: int) -> PreTrainedModel:
    """Write a random adapter in PEFT's format for most linear layers; returns the model with it in its weights."""
    model, generator, tensors = copy.deepcopy(model), torch.Generator().manual_seed(seed), {}
    alpha = 2 * rank
    for number, (name, module) in enumerate(model.named_modules()):
        is_adapted = isinstance(module, torch.nn.Linear) and not name.endswith(("lm_head", "shared_expert_gate"))
        if not is_adapted or number % 7 == seed:
            continue
        a = torch.randn(rank, module.in_features, generator=generator) * module.in_features**-0.5
        b = torch.randn(module.out_features, rank, generator=generator) * 0.2 * rank**-0.5
        prefix = f"base_model.model.{name}"
        tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
        with torch.no_grad():
            module.weight += alpha / rank * b @ a
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return model


def make_case(family: str, dtype: str, path: Path, *, tiled: bool = False, **built: Any) -> Case:
    """A small model of ``family``; ``tiled``: use tiled products wherever possible."""
    wide = {"intermediate_size": 128} if tiled or built else {}
    shape = in_words_of(family, SHAPE | {"head_dim": 32 if family == "qwen3" else 16} | wide)
    if family == "qwen3_next":  # all experts are chosen, so that rounding changes no choice
        shape |= {"num_experts": 4, "num_experts_per_tok": 4}
    model = save_tiny_model(family, path / "model", dtype=getattr(torch, dtype), **shape).float()
    convert_checkpoint(str(path / "model"), path / "checkpoint", dtype)
    if "qformat" in built:
        model = quantize_linear_layers(model, built["qformat"])
    cache = save_tiles_first(path / "checkpoint", path / "tiles.json", **LIMITS) if tiled else None
    how = {"target": "sm_90", "input_timing_cache": cache, "max_lora_rank": MAX_RANK, **built}
    build_engine(path / "checkpoint", path / "engine", **LIMITS, **how)
    directories = [path / f"adapter_{number}" for number in range(len(RANKS))]
    models = [
        merged(model, directory, seed, rank)
        for seed, (directory, rank) in enumerate(zip(directories, RANKS, strict=True))
    ]
    slots = {"max_loras": MAX_LORAS, "max_cpu_loras": MAX_CPU_LORAS}
    runner = ModelRunner.from_dir(path / "engine", lora_dir=directories, **slots)
    return Case(dtype, runner, [model, *models], directories)


def check(case: Case, which: list[int]) -> None:
    """Compare each greedy continuation of prompt i with adapter ``which[i]`` with the merged model, teacher-forced."""
    batch = prompts()[: len(which)]
    result = case.runner.generate(
        batch,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        temperature=0,
        return_dict=True,
        output_generation_logits=True,
        lora_uids=[str(one) for one in which],
    )
    for row, (prompt, one) in enumerate(zip(batch, which, strict=True)):
        tokens = result["output_ids"][row, 0, : len(prompt) + NUM_NEW_TOKENS]
        expected = case.logits(one, tokens)[len(prompt) - 1 : -1]
        assert_close(result["generation_logits"][row][0], expected, case.dtype, f"row {row}", ADAPTER_TOLERANCES)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "qwen3_next"])
def test_rows_have_the_weights_of_their_adapters(family: str, dtype: str, tiled: bool, tmp_path: Path) -> None:
    case = make_case(family, dtype, tmp_path, tiled=tiled)
    check(case, [row % 4 - 1 for row in range(20)])
    check(case, [2, 3, 4, -1, 2])  # other adapters take the slots
    check(case, [-1] * 5)


@pytest.mark.parametrize("qformat", ["int8_wo", "fp8_wo"])
def test_weights_may_be_quantized(qformat: str, tmp_path: Path) -> None:
    check(make_case("llama", "bfloat16", tmp_path, qformat=qformat), [0, -1, 1, 2, -1, 0])


def test_rows_without_adapters_are_as_in_plain_steps(tmp_path: Path) -> None:
    """The logits of a row next to a row with an adapter equal those of the row alone, up to rounding."""
    case = make_case("llama", "bfloat16", tmp_path)
    batch, how = prompts()[:5], {"max_new_tokens": 4, "end_id": -1, "temperature": 0, "return_dict": True}
    found = [
        case.runner.generate(batch, output_generation_logits=True, lora_uids=uids, **how)["generation_logits"]
        for uids in (["-1"] * 5, ["-1", "0", "-1", "1", "-1"])
    ]
    for row in (0, 2, 4):
        alone, beside = (logits[row][0][0] for logits in found)
        assert_close(beside, alone, "bfloat16", f"row {row}", GPU_TOLERANCES)


def test_drafts_of_rows_with_adapters(tmp_path: Path) -> None:
    """Greedy tokens equal those without drafts, up to near-ties of the merged model."""
    case = make_case("llama", "bfloat16", tmp_path, max_draft_len=3)
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    drafting = ModelRunner.from_dir(tmp_path / "engine", lora_dir=case.directories[:2], speculative_config=speculative)
    batch, uids = [[5, 6, 7] * 8, [9, 4] * 10, [8] * 12], ["0", "-1", "1"]
    plain = generate(case.runner, batch, temperature=0, lora_uids=uids)
    drafted = generate(drafting, batch, temperature=0, lora_uids=uids)
    assert drafting.session.stats().speculation.num_drafts > 0
    for prompt, tokens, others, which in zip(batch, plain, drafted, (0, -1, 1), strict=True):
        different = np.flatnonzero(tokens != others)
        if not len(different):
            continue
        first = different[0]
        logits = case.logits(which, np.concatenate([prompt, tokens[:first]]).astype(np.int32))[-1]
        margin = abs(float(logits[tokens[first]] - logits[others[first]]))
        assert margin <= 2 * GPU_TOLERANCES["bfloat16"].relative * np.abs(logits).max()
