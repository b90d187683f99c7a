"""Engines of several stages, on CPUs with threads for each stage, compute what an engine of one stage computes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.e2e.test_tensor_parallel import EVEN, LIMITS, checkpoint_of, two_steps
from tests.models import (
    FOR_RANKS,
    HYBRID_FAMILIES,
    LATENT_FAMILIES,
    MOE_FAMILIES,
    NETWORK_FAMILIES,
    save_tiny_model,
)
from tests.tolerances import assert_close
from tests.unit.quantize.made_up import made_up
from trtllm_lite import LLM, KvCacheConfig, SamplingParams, SchedulerConfig, _core, _testing
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine.verification import check_engine
from trtllm_lite.errors import ArgumentError, BuildError, EngineError, LimitError
from trtllm_lite.quantize.network import Recipe, quantize_network

NOTHING = np.zeros(0, np.uint8)


def engines_of(directory: Path) -> list[Any]:
    return [_core.Engine(str(directory / name)) for name in read_engine(directory).manifest.engine_files]


def steps_of(directory: Path) -> list[np.ndarray]:
    groups = read_engine(directory).manifest.kv_cache.groups
    return two_steps(_core.open_executor(engines_of(directory)), groups)


@pytest.mark.parametrize("family", [*NETWORK_FAMILIES, *LATENT_FAMILIES, *MOE_FAMILIES, *HYBRID_FAMILIES])
def test_stages_compute_what_one_computes(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", pp_size=3 if family == "gemma3" else 2, **LIMITS)
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "cohere", *HYBRID_FAMILIES])
def test_ranks_share_out_the_layers_of_each_stage(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path, **FOR_RANKS.get(family, {}))
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", pp_size=2, tp_size=2, **LIMITS)
    plans = [engine.plan for engine in engines_of(tmp_path / "many")]
    assert [plans.index(plan) for plan in plans] == [0, 0, 2, 2]
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("qformat", ["int4_awq", "int8_sq"])
def test_quantized_weights_are_divided_among_stages(qformat: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    model, _ = quantize_network(checkpoint.model, Recipe(qformat, group_size=16), made_up(checkpoint.model))
    quantized = replace(checkpoint, model=model)
    build_engine(quantized, tmp_path / "one", **LIMITS)
    build_engine(quantized, tmp_path / "many", pp_size=2, **LIMITS)
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_stages_have_the_weights_and_caches_of_their_layers(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, tie_word_embeddings=True)
    build_engine(checkpoint, tmp_path / "engine", pp_size=3, **LIMITS)
    stages = [
        read_engine(tmp_path / "engine" / name) for name in read_engine(tmp_path / "engine").manifest.engine_files
    ]
    weights = [{tensor.name for tensor in stage.plan.tensors if tensor.kind == "weight"} for stage in stages]
    tied = "model.embed_tokens.weight"
    assert [tied in names for names in weights] == [True, False, True]
    groups = [stage.manifest.kv_cache.groups for stage in stages]
    assert [group.layers for (group,) in groups] == [(0,), (1,), (2,)]
    assert [set(stage.plan.inputs) for stage in stages[1:]] == [set(stage.plan.outputs) for stage in stages[:-1]]
    assert check_engine(tmp_path / "engine").manifest.mapping.pp_size == 3
    np.testing.assert_array_equal(steps_of(tmp_path / "engine")[0].shape, (3, 397))


def test_stages_generate_the_same_text(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    prompts = [[5, 6, 7, 8] * 4, [9, 10], list(range(30)), [3], [8, 7] * 5]
    sampling = [SamplingParams(max_tokens=20, temperature=0.0, logprobs=1), SamplingParams(max_tokens=9, seed=3)]
    found = []
    for pp_size in (1, 2, 3):
        directory = tmp_path / str(pp_size)
        build_engine(checkpoint, directory, pp_size=pp_size, max_draft_len=3, **LIMITS)
        for speculation in (None, {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}):
            with LLM(directory, speculative_config=speculation, pipeline_parallel_size=pp_size) as llm:
                outputs = [llm.generate(prompts, params, use_tqdm=False) for params in sampling]
            found.append([output.outputs[0].token_ids for of_kind in outputs for output in of_kind])
    assert all(tokens == found[0] for tokens in found)


def test_beams_move_the_blocks_of_all_stages(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    found = []
    for pp_size in (1, 2):
        build_engine(checkpoint, tmp_path / str(pp_size), pp_size=pp_size, **LIMITS)
        with LLM(tmp_path / str(pp_size)) as llm:
            beams = SamplingParams(use_beam_search=True, n=3, best_of=3, max_tokens=24, end_id=-1)
            found.append([beam.token_ids for beam in llm.generate([[5, 6, 7]], beams, use_tqdm=False)[0].outputs])
    assert found[0] == found[1]


def test_requests_that_are_swapped_out_come_back_in_all_stages(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    found = []
    for pp_size in (1, 2):
        build_engine(checkpoint, tmp_path / str(pp_size), pp_size=pp_size, **LIMITS)
        cache = KvCacheConfig(max_tokens=112, host_cache_size=1 << 20, enable_block_reuse=False)
        scheduler = SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
        with LLM(tmp_path / str(pp_size), kv_cache_config=cache, scheduler_config=scheduler) as llm:
            params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
            outputs = llm.generate([[row, 5, 6, 7] for row in range(8)], params, use_tqdm=False)
            assert llm.get_stats().num_swap_preemptions > 0
        found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_stages_run_apart_from_each_other(tmp_path: Path) -> None:
    """As if they were separate processes, stages exchange only bytes, and each copies its own blocks."""
    build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", pp_size=2, **LIMITS)
    first, last = (_core.open_stage([engine], num_threads=1) for engine in engines_of(tmp_path / "engine"))
    whole = _core.open_executor(engines_of(tmp_path / "engine"))
    tokens, lens, none = np.arange(20, dtype=np.int32), np.array([20], np.int32), np.zeros(1, np.int32)
    step = (tokens, lens, none, np.array([[0, 1]], np.int32), np.array([4, 19], np.int32))
    sent = _core.step_stage(first, *step, NOTHING)
    assert (sent.dtype, sent.size) == (np.uint8, 20 * 60 * 4)
    expected = _core.step(whole, *step)
    np.testing.assert_array_equal(_core.step_stage(last, *step, sent), expected)
    with pytest.raises(LimitError, match=r"received: expected 4800 bytes, .* found 0"):
        _core.step_stage(last, *step, NOTHING)
    for stage in (first, last, whole):
        stage.copy_block(1, 3)
        stage.load_block(2, stage.save_block(0))
        with pytest.raises(LimitError, match="block: expected 0 to"):
            stage.copy_block(0, 1 << 20)
    assert first.block_bytes + last.block_bytes == whole.block_bytes
    more = (tokens[:1], np.ones(1, np.int32), lens, np.array([[2, 3]], np.int32), np.zeros(1, np.int32))
    apart = _core.step_stage(last, *more, _core.step_stage(first, *more, NOTHING))
    np.testing.assert_array_equal(apart, _core.step(whole, *more))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pp_size": 17}, "pp_size is 17: expected an integer from 1 to 16"),
        ({"pp_size": 4}, r"at most 3 stages with attention, behind layers\.0\.mlp_norm, layers\.1\.attention_norm"),
        ({"pp_size": 2, "max_lora_rank": 8}, "pp_size is 2: adapters"),
        ({"pp_size": 2, "target": "sm_120", "backend": "tensorrt"}, "pp_size is 2: engines of the backend tensorrt"),
    ],
)
def test_what_cannot_be_cut_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", **given, **LIMITS)
    assert not (tmp_path / "engine").exists()


def test_all_stages_are_loaded_together(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    build_engine(checkpoint, tmp_path / "engine", pp_size=2, **LIMITS)
    build_engine(checkpoint, tmp_path / "other", pp_size=2, **{**LIMITS, "max_seq_len": 48})
    with pytest.raises(ArgumentError, match="pipeline_parallel_size is 3, but this engine was built with 2:"):
        LLM(tmp_path / "engine", pipeline_parallel_size=3)
    first, last = engines_of(tmp_path / "engine")
    with pytest.raises(EngineError, match="expected the engines of all 2 ranks, found 1"):
        _core.open_executor([first])
    with pytest.raises(EngineError, match="expected the engine of rank 0 of 2, found rank 1"):
        _core.open_executor([last, first])
    with pytest.raises(EngineError, match="stage 1 does not take what the previous stage sends"):
        _core.open_executor([first, engines_of(tmp_path / "other")[1]])
    (tmp_path / "engine" / "rank1.engine").unlink()
    with pytest.raises(EngineError, match=r"has rank0\.engine, but no rank1\.engine"):
        LLM(tmp_path / "engine")


def test_a_stage_that_stalls_is_named_and_ends_all_requests(tmp_path: Path) -> None:
    build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", pp_size=2, tp_size=2, **LIMITS)
    executor = _testing.stalling_pipeline(engines_of(tmp_path / "engine"), rank=1, collective=1, timeout=1.0)
    limits = {name: LIMITS[name] for name in ("max_batch_size", "max_input_len", "max_seq_len")}
    loop = _core.EventLoop(executor, max_num_tokens=64, **limits)
    params = _core.sampling.SamplingParams()
    params.max_tokens = 8
    waiting = {loop.submit(np.arange(5, dtype=np.int32), params) for _ in range(9)}
    messages = []
    while waiting:
        _, ends = loop.poll(60.0)
        waiting -= {end.request_id for end in ends}
        messages += [end.message for end in ends if end.reason == _core.FinishReason.ERROR]
    loop.shut_down()
    assert len(messages) == 9
    assert any("stage 1 of 2: rank 1 of 2 did not come to collective 1" in message for message in messages)


@pytest.mark.usefixtures("no_machine_code")
def test_engines_of_stages_for_gpus_are_built_without_one(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", pp_size=2, tp_size=2, target="sm_90", **LIMITS)
    ranks = [read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in range(4)]
    first, last = ranks[0].plan, ranks[2].plan
    assert (ranks[1].plan, ranks[3].plan) == (first, last)
    states = [
        {tensor.name: tensor.offset for tensor in plan.tensors if tensor.kind == "state"} for plan in (first, last)
    ]
    read_by_others = ("last_tokens", "ranks", "rank_flags")
    assert [states[0][name] for name in read_by_others] == [states[1][name] for name in read_by_others]
    assert "sampling_slots" not in states[0]
    sent = {name: first.tensors[index] for name, index in first.outputs.items() if name != "ranks"}
    received = {name: last.tensors[index] for name, index in last.inputs.items()}
    assert [(tensor.dtype, tensor.shape) for tensor in sent.values()] == [("bfloat16", ("num_tokens", 64))]
    assert {name: tensor.shape for name, tensor in received.items()} == {name: sent[name].shape for name in sent}
    names = [{plan.name_of(i) for program in plan.programs for i in program.instructions} for plan in (first, last)]
    assert ["embedding" in of_stage for of_stage in names] == [True, False]
    assert [any("sample" in name for name in of_stage) for of_stage in names] == [False, True]


def test_plans_say_what_a_stage_takes_and_receives(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    one, two = (plan_memory(checkpoint, pp_size=pp_size, num_threads=1, **LIMITS) for pp_size in (1, 2))
    assert (one.link_bytes, two.link_bytes) == ({}, {"received": EVEN["hidden_size"] * 4})
    assert len(one.stage_bytes) == 1
    assert two.total == max(two.stage_bytes) < one.total
    limits = [word for name, value in LIMITS.items() for word in (f"--{name}", str(value))]
    command = [
        "plan",
        "--checkpoint_dir",
        str(tmp_path / "checkpoint"),
        "--num_threads",
        "1",
        "--pp_size",
        "2",
        *limits,
    ]
    found = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert (tuple(found["stage_bytes"]), found["link_bytes"]) == (two.stage_bytes, two.link_bytes)
    text = CliRunner().invoke(cli, command).stdout
    assert "of the largest of 2 stages" in text
    assert "memory of a rank by stage" in text
