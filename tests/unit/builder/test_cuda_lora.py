"""Programs for steps with adapters compute what networks with merged weights do; other programs are unchanged."""

from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from tests.tolerances import BYTE_TOLERANCES, ROUNDED_TOLERANCES, assert_close
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, cuda_plan, cuda_shape, lowered, quantized
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.cuda_low_rank import fill_slot, row_lists
from tests.unit.builder.networks import Shape
from tests.unit.builder.test_cuda_numerics import _step_inputs, sequences_of
from trtllm_lite.builder.graph import nodes_of
from trtllm_lite.builder.passes.lora import projections_of
from trtllm_lite.engine.plan import LaunchInstruction, Plan, Program
from trtllm_lite.plugins.launch import Command, Launch
from trtllm_lite.plugins.low_rank.reference import Pair
from trtllm_lite.quantize.schemes import FULL_PRECISION

MAX_RANK = 16
ADAPTED = ["llama", "float16", "qwen2", "qwen3", "mlp_bias", "phi3", "gemma2", "cohere", "olmo2", "plain"]
SLOTS = [3, 7]  # slots of the two adapters
STEPS = (([31, 1, 4], "lora_mixed"), ([1, 1, 1], "lora_decode_4"), ([1, 6, 2], "lora_mixed"))
CHOICES = ([0, -1, 1], [1, 0, -1], [-1, -1, 0])  # adapters of the sequences, one row per run


def _adapter(model: ir.Model, seed: int) -> dict[str, Pair]:
    """Random matrices for most projections, with ranks up to the highest."""
    random, found = np.random.default_rng(seed), {}
    for number, node in enumerate(nodes_of(model.graph, "MatMul")):
        one = projections_of(model).get(str(node.name))
        if one is None or number % 5 == seed % 5:
            continue
        (size, out), rank = (int(extent) for extent in node.inputs[1].shape), (1 + 5 * number) % MAX_RANK + 1
        a = random.normal(size=(rank, size), scale=size**-0.5)
        b = random.normal(size=(rank, out), scale=0.7 * rank**-0.5)
        found[one.name] = tuple(matrix.astype(ml_dtypes.bfloat16).astype(np.float32) for matrix in (a, b))
    return found


def _merged(model: ir.Model, adapter: Mapping[str, Pair]) -> ir.Model:
    """The network with the adapter's product merged into the weights of its projections."""
    model = model.clone()
    for node in list(nodes_of(model.graph, "MatMul")):
        if str(node.name) not in adapter:
            continue
        a, b = adapter[str(node.name)]
        delta = ir.Value(name=f"{node.name}.delta", const_value=ir.tensor(a.T @ b, name=f"{node.name}.delta"))
        model.graph.register_initializer(delta)
        add = ir.node("Add", [node.inputs[1], delta])
        add.outputs[0].name = f"{node.name}.merged"
        model.graph.insert_before(node, add)
        node.replace_input_with(1, add.outputs[0])
    return model


def _check(shape: Shape, qformat: str = FULL_PRECISION, target: str = "sm_90", tiled: bool = False) -> CudaInterpreter:
    card = CudaInterpreter(lowered(shape, target, tiled=tiled, qformat=qformat, max_lora_rank=MAX_RANK))
    model = quantized(shape, qformat)
    numbers = {name: number for number, name in enumerate(projections_of(model))}  # the order of LowRank's parts
    half = np.float16 if shape.dtype == ir.DataType.FLOAT16 else ml_dtypes.bfloat16
    adapters = [_adapter(model, seed) for seed in range(len(SLOTS))]
    for slot, adapter in zip(SLOTS, adapters, strict=True):
        pairs = {numbers[name]: pair for name, pair in adapter.items()}
        fill_slot(card.plan, card.adapters, slot, pairs, half)
    # A sequence keeps its adapter, so each row of choices is a separate run.
    table = BYTE_TOLERANCES if qformat in ("fp8_rowwise", "fp8") else ROUNDED_TOLERANCES
    networks = [model, *(_merged(model, adapter) for adapter in adapters)]
    for choice in CHOICES:
        states = [sequences_of(shape, card) for _ in networks]
        for lens, program in STEPS:
            feeds = [state.feeds(lens) for state in states]
            inputs = _step_inputs(feeds[0], len(lens)) | _lists(choice, lens, card.num_loras)
            actual = card.step(inputs, program)
            every = [s.step([one], lens, given)[0] for s, one, given in zip(states, networks, feeds, strict=True)]
            expected = np.stack([every[which + 1][row] for row, which in enumerate(choice)])
            assert_close(actual, expected, card.dtype, table=table)
            assert {"low_rank_shrink", "low_rank_expand"} <= set(card.ran)
    return card


def _lists(choice: list[int], lens: list[int], num_slots: int) -> dict[str, np.ndarray]:
    """The adapters' step inputs, for tokens and for rows of logits (one per sequence)."""
    slots = [SLOTS[which] if which >= 0 else -1 for which in choice]
    tokens, token_ends = row_lists(np.repeat(slots, lens).tolist(), num_slots)
    logits, logit_ends = row_lists(slots, num_slots)
    lists = {"adapter_tokens": tokens, "adapter_token_ends": token_ends}
    return lists | {"adapter_logits": logits, "adapter_logit_ends": logit_ends}


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("variant", ADAPTED)
def test_each_row_has_the_weights_of_its_adapter(variant: str, tiled: bool) -> None:
    _check(CUDA_VARIANTS[variant], tiled=tiled)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo", "fp8_wo"])
def test_weights_may_be_quantized(qformat: str, target: str) -> None:
    _check(replace(CUDA_VARIANTS["llama"], inter=128), qformat, target)


@pytest.mark.parametrize("qformat", ["fp8_rowwise", "fp8"])
def test_activations_may_be_rounded(qformat: str) -> None:
    assert "quantize_rows" in _check(CUDA_VARIANTS["llama"], qformat).ran


def _ran(plan: Plan, program: Program) -> list[str]:
    return [
        plan.kernels[instruction.kernel].name if isinstance(instruction, LaunchInstruction) else instruction.kind
        for instruction in program.instructions
    ]


def _work(command: Command) -> tuple[object, ...]:
    """The part of a command that does not depend on the addresses of its operands."""
    if isinstance(command, Launch):
        return command.kernel, command.grid
    return command.rows, command.out_features, command.in_features, command.residual is None, command.bias is None


@pytest.mark.parametrize("variant", CUDA_VARIANTS)
def test_steps_without_adapters_run_what_an_engine_without_them_runs(variant: str) -> None:
    with_room, without = lowered(CUDA_VARIANTS[variant], max_lora_rank=8), lowered(CUDA_VARIANTS[variant])
    plain = [program for program in with_room.programs if not program.bucket.adapters]
    assert [program.name for program in plain] == [program.name for program in without.programs]
    for ours, theirs in zip(plain, without.programs, strict=True):
        assert [_work(command) for command in ours.commands] == [_work(command) for command in theirs.commands]


def test_a_layer_with_adapters_has_two_launches_more_for_each_product() -> None:
    plan = cuda_plan(max_lora_rank=8)
    program = next(program for program in plan.programs if program.name == "lora_decode_2")
    low_rank = ["low_rank_shrink", "low_rank_expand"]
    layer = ["rms_norm", *low_rank, "linear", "rope_cache", "paged_attention_decode", *low_rank, "linear"]
    layer += ["rms_norm", *low_rank, "gated_linear", *low_rank, "linear"]
    expected = ["cache_slots", "embedding", "rotary_table", *layer, *layer, "linear", "sample"]
    assert _ran(plan, program) == expected
    assert program.adapters
    assert program.decode_only


def test_the_plan_says_where_adapters_lie() -> None:
    plan = cuda_plan(cuda_shape(), max_lora_rank=24)
    assert plan.cuda is not None
    shapes = [
        [plan.tensors[index].shape for index in (product.a, product.b, product.ranks)] + [product.widths]
        for product in plan.cuda.adapted[:4]
    ]
    assert shapes == [
        [("num_loras", 72, 64), ("num_loras", 128, 24), ("num_loras", 3), (64, 32, 32)],
        [("num_loras", 24, 64), ("num_loras", 64, 24), ("num_loras", 1), (64,)],
        [("num_loras", 48, 64), ("num_loras", 192, 24), ("num_loras", 2), (96, 96)],
        [("num_loras", 24, 96), ("num_loras", 64, 24), ("num_loras", 1), (64,)],
    ]
    assert not cuda_plan().cuda.adapted
