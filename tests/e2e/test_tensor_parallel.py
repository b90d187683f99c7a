"""Engines of several ranks, on CPUs with a thread for each rank, compute what an engine of one rank computes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from tests.models import (
    FOR_RANKS,
    HYBRID_FAMILIES,
    LATENT_FAMILIES,
    MOE_FAMILIES,
    NETWORK_FAMILIES,
    VOCAB_SIZE,
    save_tiny_model,
)
from tests.tolerances import BYTE_TOLERANCES, TOLERANCES, assert_close
from tests.unit.quantize.made_up import made_up
from trtllm_lite import LLM, SamplingParams, _core, _testing
from trtllm_lite.builder import build_engine, least_tp_size, plan_memory
from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.format import ENGINE_FILES
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.engine.plan import CollectiveInstruction
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine.verification import check_engine
from trtllm_lite.errors import ArgumentError, BuildError, DeviceError, EngineError
from trtllm_lite.network.tensors import extents, lazy
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.schemes import SCHEMES

EVEN = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_input_len": 32, "max_seq_len": 64, "tokens_per_block": 16}


def checkpoint_of(family: str, directory: Path, **shape: Any) -> Checkpoint:
    """A tiny model in float32, whose activations no instruction set rounds."""
    save_tiny_model(family, directory / "model", **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", "float32")
    return open_checkpoint(directory / "checkpoint")


def opened(directory: Path, **options: Any) -> Any:
    count = read_engine(directory).manifest.mapping.tp_size
    ranks = [_core.Engine(str(directory / f"rank{rank}.engine")) for rank in range(count)]
    return _core.open_executor(ranks, **options)


def two_steps(executor: Any, groups: Sequence[CacheGroup] = ()) -> list[np.ndarray]:
    """The logits of a step with three prompts, and of a step that continues them; no ``groups``: there is one."""
    generator = np.random.default_rng(0)
    lens, found = np.array([7, 19, 1], np.int32), []
    tables = np.zeros((3 * max(len(groups), 1), 3), np.int32)
    next_block = 0
    for row, group in enumerate([*groups] * 3 or [None] * 3):
        if group is not None and group.kind == STATE:  # a run of blocks, which the first entry stands for
            tables[row], next_block = next_block, next_block + group.blocks
        else:
            tables[row], next_block = np.arange(next_block, next_block + 3), next_block + 3
    for past, new in ((np.zeros(3, np.int32), lens), (lens, np.array([1, 3, 20], np.int32))):
        tokens = generator.integers(0, VOCAB_SIZE, new.sum()).astype(np.int32)
        last = (np.cumsum(new) - 1).astype(np.int32)
        found.append(_core.step(executor, tokens, new, past, tables, last))
    return found


@pytest.fixture(scope="module", params=[*NETWORK_FAMILIES, *LATENT_FAMILIES, *MOE_FAMILIES, *HYBRID_FAMILIES])
def of_one_rank(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Checkpoint, list[np.ndarray]]:
    """A checkpoint of each family, and the results of a one-rank engine in two steps."""
    directory = tmp_path_factory.mktemp(request.param)
    checkpoint = checkpoint_of(request.param, directory, **FOR_RANKS.get(request.param, {}))
    manifest = build_engine(checkpoint, directory / "engine", **LIMITS)
    return checkpoint, two_steps(opened(directory / "engine"), manifest.kv_cache.groups)


@pytest.mark.each_value
@pytest.mark.parametrize("tp_size", [2, 6])
def test_ranks_compute_what_one_computes(
    of_one_rank: tuple[Checkpoint, list[np.ndarray]], tp_size: int, tmp_path: Path
) -> None:
    checkpoint, expected = of_one_rank
    groups = build_engine(checkpoint, tmp_path / "engine", tp_size=tp_size, **LIMITS).kv_cache.groups
    for one, many in zip(expected, two_steps(opened(tmp_path / "engine"), groups), strict=True):
        assert_close(many, one)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model whose sizes are multiples of the group size."""
    return checkpoint_of("llama", tmp_path_factory.mktemp("even"), **EVEN)


@pytest.mark.parametrize("qformat", sorted(SCHEMES))
def test_quantized_weights_are_shared_out_with_their_scales(qformat: str, even: Checkpoint, tmp_path: Path) -> None:
    model, _ = quantize_network(even.model, Recipe(qformat, group_size=16), made_up(even.model))
    quantized = replace(even, model=model)
    build_engine(quantized, tmp_path / "one", **LIMITS)
    manifest = build_engine(quantized, tmp_path / "many", tp_size=2, **LIMITS)
    # If each row of activations has its own scale, each rank rounds its part of a row with its own scale.
    rounds_rows = any(fusion.pass_name == "quantize_rows" and fusion.fused for fusion in manifest.fusions)
    table = BYTE_TOLERANCES if rounds_rows else TOLERANCES
    for expected, found in zip(two_steps(opened(tmp_path / "one")), two_steps(opened(tmp_path / "many")), strict=True):
        assert_close(found, expected, "bfloat16", table=table)


def test_ranks_generate_the_same_text(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    prompts = [[5, 6, 7, 8] * 4, [9, 10], list(range(30))]
    sampling = [SamplingParams(max_tokens=20, temperature=0.0, logprobs=1), SamplingParams(max_tokens=9, seed=3)]
    found = []
    for tp_size in (1, 2):
        directory = tmp_path / str(tp_size)
        build_engine(checkpoint, directory, tp_size=tp_size, max_draft_len=3, **LIMITS)
        for speculation in (None, {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}):
            with LLM(directory, speculative_config=speculation, tensor_parallel_size=tp_size) as llm:
                outputs = [llm.generate(prompts, params, use_tqdm=False) for params in sampling]
            found.append([output.outputs[0].token_ids for of_kind in outputs for output in of_kind])
    assert all(tokens == found[0] for tokens in found)


def test_ranks_have_one_plan_and_equal_bytes_of_what_is_not_shared_out(tmp_path: Path) -> None:
    build_engine(checkpoint_of("qwen2", tmp_path), tmp_path / "engine", tp_size=2, **LIMITS)
    first, second = (read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in range(2))
    assert first.plan == second.plan
    assert replace(second.manifest, mapping=first.manifest.mapping) == first.manifest
    heads, _ = first.manifest.kv_cache.groups[0].caches[0].shape
    assert (heads, first.manifest.mapping.rank, second.manifest.mapping.rank) == (1, 0, 1)
    same = {name for name in first.checksums if first.checksums[name] == second.checksums[name]}
    assert {name for name in same if "norm" in name} == {name for name in first.checksums if "norm" in name}
    assert not {name for name in same if "proj.weight" in name or "embed" in name or "lm_head" in name}


def test_an_engine_of_fewer_ranks_takes_the_place_of_one_of_more(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    for tp_size in (6, 2, 1):
        build_engine(checkpoint, tmp_path / "engine", tp_size=tp_size, **LIMITS)
        assert len(list((tmp_path / "engine").glob("rank*.engine"))) == tp_size
        assert check_engine(tmp_path / "engine").manifest.mapping.tp_size == tp_size
        with LLM(tmp_path / "engine") as llm:
            llm.save(tmp_path / "copy")
        assert [path.name for path in sorted((tmp_path / "copy").glob("rank*"))] == list(ENGINE_FILES[:tp_size])


def test_each_weight_is_evaluated_once(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    counts: dict[str, int] = {}
    for value in checkpoint.model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.LazyTensor) and len(tensor.shape) == 2:
            value.const_value = _counted(tensor, str(value.name), counts)
    build_engine(checkpoint, tmp_path / "engine", tp_size=4, **LIMITS)
    assert counts
    assert set(counts.values()) == {1}


def _counted(tensor: ir.LazyTensor, name: str, counts: dict[str, int]) -> ir.LazyTensor:
    def load() -> np.ndarray:
        counts[name] = counts.get(name, 0) + 1
        return tensor.numpy()

    return lazy(load, tensor.dtype, extents(tensor))


@pytest.mark.parametrize(
    ("shape", "tp_size", "message"),
    [
        (
            {},
            4,
            r"tp_size is 4, and layers\.0\.attention\.attention cannot .*: its 6 query heads cannot be split "
            "evenly; pass a --tp_size of 1 or 2 or 6",
        ),
        ({}, 3, "its 2 key/value heads cannot be split or repeated evenly; pass a --tp_size of 1 or 2 or 6"),
        ({}, 17, "tp_size is 17: expected an integer from 1 to 16"),
    ],
)
def test_what_cannot_be_shared_out_is_named(shape: dict[str, int], tp_size: int, message: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **shape)
    with pytest.raises(BuildError, match=message):
        build_engine(checkpoint, tmp_path / "engine", tp_size=tp_size, **LIMITS)
    assert not (tmp_path / "engine").exists()


def test_blocks_of_scales_must_not_be_cut(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    with pytest.raises(BuildError, match=r"down_proj cannot .* 0 to 31, and the weight has scales for blocks of 64"):
        build_engine(checkpoint, tmp_path / "engine", qformat="int4_wo", group_size=64, tp_size=4, **LIMITS)


def test_adapters_are_for_engines_of_one_device(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="tp_size is 2: adapters"):
        build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", tp_size=2, max_lora_rank=8, **LIMITS)


def test_engines_of_tensorrt_are_for_one_gpu(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path)
    with pytest.raises(BuildError, match="tp_size is 2: engines of the backend tensorrt are for one GPU"):
        build_engine(checkpoint, tmp_path / "engine", tp_size=2, target="sm_120", backend="tensorrt", **LIMITS)


def test_engines_for_gpus_are_built_without_one(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    limits = {**LIMITS, "max_batch_size": 8, "max_seq_len": 128, "max_num_tokens": 1024}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", tp_size=2, target="sm_90", **limits)
    first, second = (read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in range(2))
    assert first.plan == second.plan
    named = {program.name: list(map(first.plan.name_of, program.instructions)) for program in first.plan.programs}
    assert [named["decode_1"].count(name) for name in ("all_reduce_push", "rows_are_there", "rms_norm")] == [7, 1, 0]
    assert [named["mixed"].count(name) for name in ("all_reduce_pull", "rows_are_there", "rms_norm")] == [7, 1, 1]
    with pytest.raises(EngineError, match="expected the engines of all 2 ranks, found 1"):
        _core.open_executor([_core.Engine(str(first.path))])


def test_engines_whose_ranks_meet_in_nccl_need_no_memory_of_others(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    how = {"tp_size": 2, "target": "sm_90", "allreduce_strategy": "NCCL"}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **how, **LIMITS)
    first, second = (read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in range(2))
    plan = first.plan
    assert plan == second.plan
    assert first.manifest.divided == {"tp_size": 2, "allreduce_strategy": "NCCL"}
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "engine"), "--json"]).stdout
    assert json.loads(shown)["limits"]["allreduce_strategy"] == "NCCL"
    for program in plan.programs:
        names = list(map(plan.name_of, program.instructions))
        assert [names.count(name) for name in ("all_reduce", "all_gather_rows", "side_by_side")] == [7, 1, 1]
        assert names[names.index("all_gather_rows") + 1] == "side_by_side"
        assert not set(names) & {"all_reduce_push", "all_reduce_pull", "all_gather"}
    states = {tensor.name for tensor in plan.tensors if tensor.kind == "state"}
    assert states >= {"ranks", "last_tokens"}
    assert not [name for name in states if name.startswith(("rank_flags", "rank_inbox", "rank_turns"))]
    assert plan.tensors[plan.outputs["last_tokens"]].name == "last_tokens"
    gathered = next(i for i in plan.programs[-1].instructions if plan.name_of(i) == "all_gather_rows")
    assert isinstance(gathered, CollectiveInstruction)
    x, y = (plan.tensors[operand.tensor] for operand in (gathered.x, gathered.y))
    assert (x.dtype, x.shape, y.shape) == ("float32", ("num_logits", 256), ("num_logits", 512))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tp_size": 2}, "NCCL is for GPUs with the native backend"),
        ({"target": "sm_90"}, "one rank has no others to exchange data with: pass --tp_size"),
        ({"target": "sm_90", "tp_size": 2, "pp_size": 2}, "stages on one machine reach each other's memory"),
        ({"target": "sm_90", "tp_size": 2, "deterministic": True}, "NCCL promises no order of additions"),
    ],
    ids=str,
)
def test_ranks_that_do_not_meet_in_nccl_are_refused(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    with pytest.raises(BuildError, match=f"allreduce_strategy is NCCL: {message}"):
        plan_memory(tmp_path / "checkpoint", allreduce_strategy="NCCL", **how, **LIMITS)


def test_all_ranks_are_loaded_together(tmp_path: Path) -> None:
    build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", tp_size=2, **LIMITS)
    with pytest.raises(ArgumentError, match="tensor_parallel_size is 4, but this engine was built with 2:"):
        LLM(tmp_path / "engine", tensor_parallel_size=4)
    first, second = (_core.Engine(str(tmp_path / "engine" / f"rank{rank}.engine")) for rank in range(2))
    with pytest.raises(EngineError, match="expected the engines of all 2 ranks, found 1"):
        _core.open_executor([first])
    with pytest.raises(EngineError, match="expected an engine of 1 ranks, found rank 0 of 2"):
        _core.CpuExecutor(first)
    with pytest.raises(EngineError, match="expected the engine of rank 0 of 2, found rank 1"):
        _core.open_executor([second, first])
    (tmp_path / "engine" / "rank1.engine").unlink()
    with pytest.raises(EngineError, match=r"has rank0\.engine, but no rank1\.engine"):
        LLM(tmp_path / "engine")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stalls_is_named_and_ends_the_step(rank: int, tmp_path: Path) -> None:
    build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", tp_size=2, **LIMITS)
    ranks = [_core.Engine(str(tmp_path / "engine" / f"rank{number}.engine")) for number in range(2)]
    executor = _testing.stalling_group(ranks, rank=rank, collective=2, timeout=1.0)
    where = r"collective 2 \(all_reduce of layers\.0\.mlp\.down_proj\.linear\) of step 1"
    with pytest.raises(DeviceError, match=rf"rank {rank} of 2 did not come to {where} within 1 s"):
        two_steps(executor)
    with pytest.raises(DeviceError, match="did not come back from an earlier step: load the engine again"):
        two_steps(executor)


def test_plans_say_what_a_rank_takes_and_reads(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    one, two = (plan_memory(checkpoint, tp_size=tp_size, num_threads=1, **LIMITS) for tp_size in (1, 2))
    assert two.kv_cache * 2 == one.kv_cache
    layers, hidden, vocab_part = 3, EVEN["hidden_size"], 256
    assert one.link_bytes == {}
    assert two.link_bytes == {"all_reduce": (1 + 2 * layers) * hidden * 4, "all_gather": vocab_part * 4}
    build_engine(checkpoint, tmp_path / "engine", tp_size=2, **LIMITS)
    assert opened(tmp_path / "engine", num_threads=2).memory["weights"] == 2 * two.weights
    for room, expected in ((one.total, 1), (one.total - 1, 2), (two.total, 2), (1000, None)):
        assert least_tp_size(checkpoint, room, num_threads=1, **LIMITS) == expected


def test_the_command_plan_says_so_too(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama", tmp_path, **EVEN)
    two = plan_memory(checkpoint, tp_size=2, num_threads=1, **LIMITS)
    limits = [word for name, value in LIMITS.items() for word in (f"--{name}", str(value))]
    command = ["plan", "--checkpoint_dir", str(tmp_path / "checkpoint"), "--num_threads", "1", *limits]
    command += ["--tp_size", "2", "--device_memory"]
    result = CliRunner().invoke(cli, [*command, str(two.total), "--json"])
    found = json.loads(result.stdout)
    assert (found["least_tp_size"], found["link_bytes"], found["total"]) == (2, two.link_bytes, two.total)
    by_nccl = ["--tp_size", "2", "--target", "sm_90", "--allreduce_strategy", "NCCL", *limits]
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint16", "bfloat16")
    checkpoint16 = ["--checkpoint_dir", str(tmp_path / "checkpoint16")]
    text = CliRunner().invoke(cli, ["plan", *checkpoint16, *by_nccl]).stdout
    assert "what a rank receives from the others by NCCL for a token" in text
    text = CliRunner().invoke(cli, [*command, "1 kB"]).stdout
    assert "predicted memory of each of 2 ranks" in text
    assert text.endswith("1,000 B a device: no --tp_size is enough\n")
    assert CliRunner().invoke(cli, [*command, "many"]).exit_code == 2


def test_a_rank_that_stalls_ends_all_requests_with_its_name(tmp_path: Path) -> None:
    build_engine(checkpoint_of("llama", tmp_path), tmp_path / "engine", tp_size=2, **LIMITS)
    ranks = [_core.Engine(str(tmp_path / "engine" / name)) for name in ENGINE_FILES[:2]]
    executor = _testing.stalling_group(ranks, rank=1, collective=4, timeout=1.0)
    limits = {name: LIMITS[name] for name in ("max_batch_size", "max_input_len", "max_seq_len")}
    loop = _core.EventLoop(executor, max_num_tokens=64, **limits)
    params = _core.sampling.SamplingParams()
    params.max_tokens = 8
    waiting = {loop.submit(np.arange(5, dtype=np.int32), params) for _ in range(9)}
    while waiting:
        _, ends = loop.poll(60.0)
        for end in ends:
            waiting.remove(end.request_id)
            assert end.reason == _core.FinishReason.ERROR
            named = "rank 1 of 2 did not come to collective 4" in end.message
            assert named or "did not come back from an earlier step" in end.message
    loop.shut_down()
