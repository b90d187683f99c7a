"""Expert parallelism on CPUs: ranks that each hold some of the experts compute what one rank computes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from tests.e2e.test_tensor_parallel import LIMITS, checkpoint_of, opened, two_steps
from tests.models import MOE_FAMILIES
from tests.tolerances import assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.builder.checkpoint import Checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, BuildError

SIZES = [(2, 2), (4, 2), (3, 3)]  # tp_size, moe_ep_size
EXPERTS = 12  # number of experts in every family, divisible by all of SIZES


_NAMES = {
    **dict.fromkeys(("gpt_oss", "granitemoe", "llama4", "mixtral", "phimoe"), "num_local_experts"),
    **dict.fromkeys(("dots1", "glm4_moe", "glm4_moe_lite", "mimo_v2_flash", "solar_open"), "n_routed_experts"),
}


def _mixture(family: str, directory: Path, **overrides: Any) -> Checkpoint:
    name = _NAMES.get(family, "num_experts")
    return checkpoint_of(family, directory, **{name: EXPERTS, "num_key_value_heads": 6, **overrides})


def _choosing(checkpoint: Checkpoint, pair: tuple[int, int]) -> Checkpoint:
    """``checkpoint`` whose router sends every token to one of two experts, whose scores are opposite; others are 0."""
    model = ir.Model(checkpoint.model.graph.clone(), ir_version=checkpoint.model.ir_version)
    routers = [value for name, value in model.graph.initializers.items() if ".router." in name]
    for value in routers:
        weight = np.zeros((checkpoint.config.hidden_size, EXPERTS), np.float32)
        weight[:, pair[0]] = np.random.default_rng(0).standard_normal(len(weight))
        weight[:, pair[1]] = -weight[:, pair[0]]
        value.const_value = ir.tensor(weight, name=value.name)
    assert len(routers) == checkpoint.config.num_hidden_layers
    return replace(checkpoint, model=model)


def _check(checkpoint: Checkpoint, directory: Path, tp_size: int, moe_ep_size: int) -> None:
    build_engine(checkpoint, directory / "one", **LIMITS)
    build_engine(checkpoint, directory / "many", tp_size=tp_size, moe_ep_size=moe_ep_size, **LIMITS)
    one, many = (
        two_steps(opened(directory / name), read_engine(directory / name).manifest.kv_cache.groups)
        for name in ("one", "many")
    )
    for expected, found in zip(one, many, strict=True):
        assert_close(found, expected)


@pytest.mark.each_value
@pytest.mark.parametrize(("tp_size", "moe_ep_size"), SIZES)
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_ranks_compute_what_one_computes(family: str, tp_size: int, moe_ep_size: int, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "hidden_size": 72} if tp_size == 4 else {}
    if family == "mimo_v2_flash":  # layers with windows have twice as many key/value heads
        heads |= {"num_attention_heads": 24 if tp_size == 4 else 12}
    _check(_mixture(family, tmp_path, **heads), tmp_path, tp_size, moe_ep_size)


@pytest.mark.parametrize(("tp_size", "moe_ep_size"), [(2, 1), (2, 2), (4, 2)])
def test_ranks_share_out_both_halves_of_experts_without_gates(tp_size: int, moe_ep_size: int, tmp_path: Path) -> None:
    """Halves have 24 features, which two ranks take in eights."""
    sizes = {"n_routed_experts": EXPERTS, "num_attention_heads": 4, "num_key_value_heads": 4, "mamba_num_heads": 8}
    sizes |= {"n_groups": 4, "moe_intermediate_size": 48}
    _check(checkpoint_of("nemotron_h", tmp_path, **sizes), tmp_path, tp_size, moe_ep_size)


@pytest.mark.parametrize("pair", [(0, 3), (8, 11), (2, 9)], ids=["first rank", "last rank", "two ranks"])
def test_experts_that_all_tokens_choose_may_be_anywhere(pair: tuple[int, int], tmp_path: Path) -> None:
    """Every token chooses one of two experts: ranks without these have nothing to compute."""
    checkpoint = _mixture("mixtral", tmp_path, num_experts_per_tok=1)
    _check(_choosing(checkpoint, pair), tmp_path, 3, 3)


def test_a_rank_has_whole_experts_of_one_range(tmp_path: Path) -> None:
    checkpoint = _mixture("qwen3_moe", tmp_path)
    manifest = build_engine(checkpoint, tmp_path / "engine", tp_size=2, moe_ep_size=2, **LIMITS)
    assert manifest.mapping.divided == {"tp_size": 2, "moe_ep_size": 2}
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    files = [tmp_path / "engine" / f"rank{rank}.engine" for rank in range(2)]
    assert read_engine(files[0]).plan == read_engine(files[1]).plan
    whole, first, second = map(load_file, (tmp_path / "one" / "rank0.engine", *files))
    names = [name for name in whole if ".experts." in name]
    assert len(names) == 6
    for name in names:
        np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), whole[name])


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("mixtral", {"moe_ep_size": 2}, r"moe_ep_size is 2, by which tp_size \(1\) cannot be divided"),
        ("mixtral", {"tp_size": 5, "moe_ep_size": 5}, "moe_ep_size is 5, which does not divide the 12 experts"),
        ("mixtral", {"tp_size": 17, "moe_ep_size": 17}, "tp_size is 17: expected an integer from 1 to 16"),
        ("llama", {"tp_size": 2, "moe_ep_size": 2}, "moe_ep_size is 2, and the model has no mixtures of experts"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(family: str, sizes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path) if family == "llama" else _mixture(family, tmp_path)
    with pytest.raises(BuildError, match=message):
        build_engine(checkpoint, tmp_path / "engine", **sizes, **LIMITS)


def test_plan_says_what_each_rank_takes(tmp_path: Path) -> None:
    checkpoint = _mixture("qwen3_moe", tmp_path)
    sizes = ({}, {"tp_size": 2}, {"tp_size": 2, "moe_ep_size": 2})
    one, features, experts = (plan_memory(checkpoint, num_threads=1, **size, **LIMITS).weights for size in sizes)
    # Ranks that split the features of experts pad them to a multiple of eight.
    assert experts < features < one
    limits = [f"--{name}={value}" for name, value in LIMITS.items()]
    command = ["plan", "--checkpoint_dir", str(tmp_path / "checkpoint"), *limits, "--moe_ep_size", "2", "--tp_size"]
    found = json.loads(CliRunner().invoke(cli, [*command, "2", "--json", "--device_memory", "1GB"]).stdout)
    assert (found["weights"], found["least_tp_size"]) == (experts, 2)


def test_llm_shares_experts_out(tmp_path: Path) -> None:
    checkpoint_of("mixtral", tmp_path, num_local_experts=EXPERTS)
    sizes = {"tensor_parallel_size": 2, "moe_expert_parallel_size": 2}
    limits = {"max_batch_size": 4, "max_seq_len": 64}
    with LLM(tmp_path / "model", **limits) as one, LLM(tmp_path / "model", **limits, **sizes) as many:
        assert many.session.manifest.mapping.divided == {"tp_size": 2, "moe_ep_size": 2}
        params = SamplingParams(max_tokens=9, temperature=0.0)
        found = [llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids for llm in (one, many)]
        engine = many.engine_dir
    assert found[0] == found[1]
    with pytest.raises(ArgumentError, match="moe_expert_parallel_size is 1, but this engine was built with 2:"):
        LLM(engine, moe_expert_parallel_size=1)
