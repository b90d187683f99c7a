"""Autotuning of products with experts: all candidates multiply the same rows, distributed evenly over experts."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.builder.cuda_engines import LIMITS, lowered_model, recipe
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.test_cuda_experts import network_of
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.cuda.layout import buffers_of
from trtllm_lite.builder.cuda.planning import Lowered, LoweredProgram
from trtllm_lite.builder.cuda.products.tactics import explain
from trtllm_lite.builder.cuda.products.tuning_tasks import TuningTask, lower_tuning_tasks
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.sharding import shard
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.plugins.launch import Launch
from trtllm_lite.quantize.network import quantize_network

(H200,) = parse_targets(["sm_90"])
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 400}


def _tasks(directory: Path, qformat: str, **limits: int) -> tuple[Lowered, list[TuningTask]]:
    """The tuning tasks for the expert products of a network's first rank."""
    model = network_of("qwen3_moe", directory, **EXPERTS)
    model = quantize_network(model, recipe(qformat), made_up(model))[0]
    bounds = BuildLimits(**{**LIMITS, "max_batch_size": 64, "max_num_tokens": 300, **limits})
    fused = fuse_into_plugins(model, AUTO_DTYPE, bounds).graph
    graph = fused if bounds.tp_size == 1 else shard(fused, bounds.tp_size, bounds.moe_ep_size)[0]
    lowered, tasks = lower_tuning_tasks(graph, DECODER, "bfloat16", bounds, H200, max_candidates=3)
    return lowered, [task for task in tasks if task.product.experts]


def _programs(lowered: Lowered, task: TuningTask) -> list[LoweredProgram]:
    by_name = {program.name: program for program in lowered.programs}
    return [by_name[name] for name in task.programs.values()]


def _launches(program: LoweredProgram) -> list[Launch]:
    return [command for command in program.commands if isinstance(command, Launch)]


@pytest.mark.parametrize(("qformat", "swap_ab"), [("full_prec", False), ("int4_wo", False), ("fp8_rowwise", True)])
def test_candidates_multiply_the_same_rows(qformat: str, swap_ab: bool, tmp_path: Path) -> None:
    lowered, tasks = _tasks(tmp_path, qformat)
    kinds = {(task.product.gated, task.product.out_features) for task in tasks}
    assert kinds == {(True, 64), (False, 64)}  # gate and up, and down
    assert [task.max_rows for task in tasks] == [64, 128, 256, 300] * 2
    for task in tasks:
        assert task.product.experts == "2 of 8 experts"
        assert task.num_layers == 2  # the last of three layers computes only rows of logits
        lists, widths, read = set(), [], []
        for program in _programs(lowered, task):
            first, again, *products = _launches(program)
            assert len(products) == task.num_layers
            assert first == again, "even_groups runs twice with the same arguments before the products"
            assert first.kernel.name == "even_groups"
            lists.add(dict(first.kernel.defines)["TL_GROUP_ROWS"])
            macros = [dict(product.kernel.defines) for product in products]
            lists |= {of_one["TL_X_BOX"] * of_one["TL_X_BOXES"] for of_one in macros}
            widths.append({dict(product.kernel.defines)["TL_TILE_COLUMNS"] for product in products})
            read.append({b for command in products for b in buffers_of(command) if b.name.startswith("given")})
            assert {b.dtype for b in read[-1]} == {"bfloat16", "int32"}
            assert len(read[-1]) == 2
            ways = {product.kernel.name.rpartition("linear_")[2] for product in products}
            assert ways == {"swap_ab" if swap_ab and task.max_rows <= 128 else "tiled"}
        assert len(lists) == 1
        assert all(buffers == read[0] for buffers in read)
        assert len(set(map(frozenset, widths))) == len(widths) == 3


def test_nobody_overwrites_the_list_of_groups(tmp_path: Path) -> None:
    """The interpreter runs a program of each task; the products must leave the list of groups as it was."""
    lowered, tasks = _tasks(tmp_path, "full_prec", max_num_tokens=100)
    card, rows = CudaInterpreter(lowered), 90
    for task in tasks:
        *_, program = _programs(lowered, task)
        inputs = {"cu_seqlens": np.array([0, min(rows, task.max_rows)], np.int32)}
        with np.errstate(invalid="ignore"):  # the given rows are arbitrary numbers
            card.run(inputs, program.name, {})
        assert card.ran[0] == "even_groups"
        (groups,) = {b for b in buffers_of(program.commands[0]) if b.dtype == "int32"}
        tensor = card.plan.tensors[lowered.layout.index[groups]]
        found = card.memory["arena"][tensor.offset :].view(np.int32)
        listed = found[4 : 4 + 4 * found[0]].reshape(-1, 4)
        assert listed[:, 0].tolist() == sorted(listed[:, 0])
        assert listed[0, 1] == 0
        np.testing.assert_array_equal(listed[1:, 1], listed[:-1, 2])
        assert listed[-1, 2] == 2 * min(rows, task.max_rows)


def test_a_rank_measures_its_own_experts(tmp_path: Path) -> None:
    lowered, tasks = _tasks(tmp_path, "full_prec", tp_size=4, moe_ep_size=2)
    assert {task.product.experts for task in tasks} == {"2 of 8 experts, 4 of them here"}
    for task in tasks:
        for program in _programs(lowered, task):
            first, _, *products = _launches(program)
            assert dict(first.kernel.defines)["TL_LOCAL_EXPERTS"] == 4
            assert {buffer.kind for product in products for buffer in buffers_of(product)} == {"arena", "weight"}


@pytest.mark.parametrize("qformat", ["full_prec", "fp8_rowwise"])
def test_programs_have_the_tiles_of_a_timing_cache(qformat: str, tmp_path: Path) -> None:
    model = network_of("qwen3_moe", tmp_path, **EXPERTS)
    model = quantize_network(model, recipe(qformat), made_up(model))[0]
    limits = {"max_batch_size": 64, "max_num_tokens": 300}
    found = {}
    for tiled in (False, True):
        lowered = lowered_model(model, "bfloat16", tiled=tiled, **limits)
        tactics = [tactic for tactic in explain(lowered, None) if tactic.site.startswith("grouped_")]
        sorted_rows = [tactic for tactic in tactics if "_tiled" in tactic.site or "_swap_ab" in tactic.site]
        reason = "fastest on Test GPU: " if tiled else "by heuristic: groups of "
        assert all(tactic.reason.startswith(reason) for tactic in sorted_rows), sorted_rows
        found[tiled] = {tactic.site: tactic.choice for tactic in sorted_rows}
    assert found[False] != found[True]
