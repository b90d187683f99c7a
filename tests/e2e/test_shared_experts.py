"""Experts that all rows share are computed with the others, and engines give the logits of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_generate import TINY_LIMITS, check_greedy, generate, random_prompts
from tests.e2e.test_quantize import feeds_of, logits
from tests.e2e.test_quantized_experts import even, quantized
from tests.models import GROUP_SIZE, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.quantize.activations import recognise
from trtllm_lite.quantize.network import Recipe
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.sequence_runner import SequenceRunner

# The config keys by which a shared MLP is as wide as some experts, and the shared experts of each layer with a mixture.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "deepseek_v2": ({"n_shared_experts": 2}, (2, 2)),
    "deepseek_v3": ({"n_shared_experts": 1}, (1, 1)),
    "granitemoe": ({"shared_intermediate_size": 111}, (3, 3, 3)),
    "granitemoehybrid": ({"shared_intermediate_size": 74}, (2, 2, 2)),
    "kimi_linear": ({"num_shared_experts": 1}, (1, 1)),
    "llama4": ({}, (1, 1)),
    "nemotron_h": (
        {"moe_latent_size": None, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 96},
        (2,),
    ),
    "qwen2_moe": ({"shared_expert_intermediate_size": 74}, (2, 2)),
    "qwen3_5_moe": ({"shared_expert_intermediate_size": 37}, (1, 1, 1)),
    "qwen3_next": ({"shared_expert_intermediate_size": 111}, (3, 3, 3)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    sizes, shared = FAMILIES[family]
    model = save_tiny_model(family, tmp_path / "model", **sizes)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    assert read_engine(tmp_path / "engine").plan.shared_experts == shared
    prompts = random_prompts(6, 4)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 6)
    for prompt, (tokens, found) in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, tokens, found)


@pytest.mark.parametrize("qformat", ["fp8_wo", "int8_wo", "int4_wo"])
def test_weights_keep_their_form(qformat: str, tmp_path: Path) -> None:
    """A row's one scale is that of each expert, and blocks of its weights are divided among experts."""
    source = even(tmp_path, shared_expert_intermediate_size=96)
    after = quantized(source, Recipe(qformat, group_size=GROUP_SIZE))
    feeds = feeds_of(source)
    build_engine(after, tmp_path / "engine", max_batch_size=2, max_seq_len=64, gather_context_logits=True)
    assert read_engine(tmp_path / "engine").plan.shared_experts == (2, 2)
    runner = SequenceRunner(tmp_path / "engine")
    computed = np.stack([np.concatenate(list(runner.logits(row, 7))) for row in feeds["input_ids"].astype(np.int32)])
    assert_close(computed, logits(after.model, feeds))


@pytest.mark.parametrize(("qformat", "shared"), [("fp8_rowwise", (2, 2)), ("int4_awq", (0, 0))])
def test_schemes_without_calibration_store_them_like_experts(
    qformat: str, shared: tuple[int, ...], tmp_path: Path
) -> None:
    """So they are computed with the others, although the scheme rounds the inputs of other products."""
    source = even(tmp_path, shared_expert_intermediate_size=96)
    after = quantized(source, Recipe(qformat, group_size=GROUP_SIZE))
    build_engine(after, tmp_path / "engine", **TINY_LIMITS)
    assert read_engine(tmp_path / "engine").plan.shared_experts == shared


def test_a_shared_expert_of_another_width_is_stored_like_other_products(tmp_path: Path) -> None:
    after = quantized(even(tmp_path, shared_expert_intermediate_size=64), Recipe("fp8_rowwise"))
    products = [node for node in after.model.graph if ".shared_expert." in str(node.name) and node.op_type == "MatMul"]
    assert all(recognise(node.inputs[0]) for node in products if str(node.name).endswith("_proj"))


@pytest.mark.parametrize("options", [{"tp_size": 2}, {"tp_size": 2, "moe_ep_size": 2}, {"max_lora_rank": 8}], ids=str)
def test_ranks_and_adapters_have_products_for_them(options: dict[str, int], tmp_path: Path) -> None:
    source = even(tmp_path, shared_expert_intermediate_size=96)
    build_engine(source, tmp_path / "engine", **options, **TINY_LIMITS)
    (first, *_) = sorted((tmp_path / "engine").glob("*.engine"))
    assert read_engine(first).plan.shared_experts == (0, 0)
