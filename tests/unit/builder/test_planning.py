"""The engine file, executed from its bytes, computes what the standard network computes."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.builder.networks import VARIANTS, Shape, network
from tests.unit.builder.plan_interpreter import PlanInterpreter, calls
from tests.unit.builder.scenario import Sequences
from trtllm_lite.builder import BuildLimits, build_engine
from trtllm_lite.builder.cpu.planning import make_plan
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.engine.plan import Plan
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import all_schemas

BLOCK = LIMITS["tokens_per_block"]


def _plan(variant: str | Shape = "llama", **limits: int) -> Plan:
    return make_plan(run_passes(network(variant))[0].graph, DECODER, BuildLimits(**{**LIMITS, **limits})).plan


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_engine_computes_the_networks_logits(variant: str, tmp_path: Path) -> None:
    manifest = build_engine(save_checkpoint(tmp_path / "checkpoint", variant), tmp_path / "engine", **LIMITS)
    groups = len(manifest.kv_cache.groups)
    interpreter = PlanInterpreter(tmp_path / "engine", num_blocks=9 * groups)
    tables = {"tokens_per_block": BLOCK, "num_blocks": 9 * groups, "num_groups": groups}
    state = Sequences(VARIANTS[variant], num_seqs=3, **tables)
    for lens in ([7, 1, 4], [1, 1, 1], [1, 6, 2]):
        feeds = state.feeds(lens)
        packed = {value: feeds[f"{value}.packed"] for value in ("position_ids", "past_lens")}
        actual = interpreter.step(feeds | packed)
        (expected,) = state.step([network(variant)], lens, feeds)
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_weights_are_in_order_of_use_and_tied_ones_are_stored_once() -> None:
    names = [tensor.name for tensor in _plan().tensors if tensor.kind == "weight"]
    assert names[:3] == ["model.embed_tokens.weight", "inv_freq", "model.layers.0.input_layernorm.weight"]
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names


@pytest.mark.parametrize(("tied", "layout"), [(True, "panel64"), (False, "row_major")])
def test_the_layout_of_a_weight_suits_all_its_readers(tied: bool, layout: str) -> None:
    tensors = {tensor.name: tensor for tensor in _plan(Shape(tied=tied)).tensors}
    assert tensors["model.embed_tokens.weight"].layout == layout
    assert tensors["layers.0.attention.qkv_proj.weight"].layout == "panel64"
    assert tensors["layers.0.mlp.gate_up_proj.weight"].layout == "gated_panel64"


def test_caches_are_updated_in_place() -> None:
    plan = _plan()
    for call in calls(plan):
        assert not {"key_cache_out", "value_cache_out"} & call.operands.keys()


def test_symbols_are_bounded_by_the_limits() -> None:
    assert _plan(max_num_tokens=20).symbols == {
        "num_tokens": 20,
        "num_seqs": 3,
        "num_seqs_plus_1": 4,
        "num_decode_seqs": 3,
        "num_prefill_seqs": 3,
        "num_prefill_tokens": 20,
        "num_tables": 3,
        "num_logits": 3,
        "max_blocks_per_seq": 3,
        "num_blocks": 9,
        "num_slots": 11,
    }


def test_logits_of_every_token_need_room() -> None:
    plan = _plan(Shape(vocab=400), max_num_tokens=48, gather_context_logits=True)
    assert plan.symbols["num_logits"] == 48
    assert plan.tensors[plan.outputs["logits"]].max_bytes(plan.symbols) == 48 * 400 * 4
    assert plan.arena_bytes > _plan(Shape(vocab=400), max_num_tokens=48).arena_bytes


def test_what_is_live_together_does_not_overlap() -> None:
    """Overlaps are looked for in the finished plan, independently of how lifetimes were computed."""
    plan = _plan("qwen3")
    written: dict[int, int] = {}
    ranges = {
        index: range(tensor.offset, tensor.offset + tensor.max_bytes(plan.symbols))
        for index, tensor in enumerate(plan.tensors)
        if tensor.kind == "arena"
    }
    last_use = {index: step for step, call in enumerate(calls(plan)) for index in call.operands.values()}
    last_use[plan.outputs["logits"]] = len(calls(plan))
    for step, call in enumerate(calls(plan)):
        outputs = [call.operands.get(argument.name) for argument in all_schemas()[call.op].outputs]
        written |= {index: step for index in outputs if index in ranges}
        live = [index for index, first in written.items() if first <= step <= last_use[index]]
        for position, a in enumerate(live):
            assert ranges[a].stop <= plan.arena_bytes
            assert plan.tensors[a].offset % 64 == 0
            for b in live[position + 1 :]:
                assert ranges[a].stop <= ranges[b].start or ranges[b].stop <= ranges[a].start


def test_sizes_that_the_kernels_do_not_support_are_errors() -> None:
    with pytest.raises(
        BuildError, match=r"PagedAttention at layers\.0\.attention needs head_dim <= 512 \(head_dim is 514"
    ):
        _plan(Shape(head_dim=514, heads=1, kv_heads=1))


def test_a_weight_shared_by_operators_with_different_layouts_is_an_error() -> None:
    fused, _ = run_passes(network())
    gated = next(node for node in fused.graph if node.op_type == "GatedLinear")
    linear = next(node for node in fused.graph if node.op_type == "Linear")
    linear.replace_input_with(1, gated.inputs[1])
    with pytest.raises(BuildError, match=r"is shared by layers\.0\.attention\.qkv_proj, layers\.0\.mlp\.gate_up_proj"):
        make_plan(fused.graph, DECODER, BuildLimits(**LIMITS))
