"""Gemma 4 on CPUs: with experts, with caches that later layers read, and what is refused."""

from pathlib import Path

import pytest

from tests.e2e.test_generate import TINY_LIMITS, TinyEngine, check_greedy, generate, random_prompts
from tests.e2e.test_pipeline_parallel import steps_of
from tests.e2e.test_tensor_parallel import LIMITS, checkpoint_of
from tests.models import save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError

EXPERTS = {
    **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 36},
    **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
}


def test_experts_beside_mlps_give_the_tokens_of_transformers(tmp_path: Path) -> None:
    tiny = TinyEngine("gemma4", tmp_path, **EXPERTS)
    prompts = random_prompts(4, 6)
    for prompt, output in zip(prompts, generate(tiny.runner(), prompts, 12), strict=True):
        check_greedy(tiny.model, prompt, *output)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"tp_size": 2, "moe_ep_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks_share_experts_beside_mlps(sizes: dict[str, int], tmp_path: Path) -> None:
    checkpoint = checkpoint_of("gemma4", tmp_path, **EXPERTS)
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", **sizes, **LIMITS)
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        assert_close(found, expected)


def test_layers_that_share_keys_have_no_caches(tmp_path: Path) -> None:
    build_engine(checkpoint_of("gemma4", tmp_path), tmp_path / "engine", **LIMITS)
    groups = read_engine(tmp_path / "engine").manifest.kv_cache.groups
    assert sorted(layer for group in groups for layer in group.by_layer) == [0, 1, 2, 3]


def test_prompts_of_embeddings_are_refused_where_layers_look_tokens_up(tmp_path: Path) -> None:
    save_tiny_model("gemma4", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    with pytest.raises(BuildError, match="the network looks up a second embedding of each token"):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", enable_prompt_embeds=True, **TINY_LIMITS)
