"""Outlines of programs: repeated layers are listed once, and each tensor's lifetime in the arena is given."""

import random
from itertools import pairwise

import pytest

from trtllm_lite.common.extents import symbol
from trtllm_lite.engine.arena_use import arena_spans
from trtllm_lite.engine.outline import outline
from trtllm_lite.engine.plan import (
    CallInstruction,
    CompiledKernel,
    CudaSettings,
    FloatArgument,
    IntArgument,
    LaunchInstruction,
    Plan,
    PlanTensor,
    Program,
    TensorArgument,
)
from trtllm_lite.errors import EngineError

NUM_LAYERS = 12


def _tensor(name: str, kind: str, offset: int = 0, extent: int | str = 16) -> PlanTensor:
    return PlanTensor(name, "uint8", (extent,), "row_major", kind, offset)


def gpu_plan() -> Plan:
    """A plan of layers with two launches each, between an embedding and an LM head; every second layer has a window."""
    tensors = [_tensor("table", "weight"), _tensor("x", "arena", 0), _tensor("logits", "arena", 64)]
    launches = [_launch(0, 1, 0)]
    for layer in range(NUM_LAYERS):
        y = _tensor(f"layers.{layer}.y", "arena", 16 + 16 * (layer % 2))
        tensors += [_tensor(f"layers.{layer}.weight", "weight"), y, _tensor(f"key_cache.{layer}", "cache")]
        weight = len(tensors) - 3
        window, scale = IntArgument(512 * (layer % 2)), FloatArgument(0.5 + layer)
        launches += [_launch(1, weight + 1, 1, weight), _launch(2, 1, weight + 1, weight + 2, window, scale)]
    kernels = tuple(CompiledKernel(name, {"sm_90a": name}, 128, 1024) for name in ("embed", "linear", "attend"))
    step = Program("decode_4", "sm_90a", True, 4, (*launches, _launch(0, 2, 1), _launch(0, 2, 1)))
    return Plan({"num_tokens": 4}, 96, 0, tuple(tensors), {"logits": 2}, kernels, (step,), CudaSettings((4,), 64, 0))


def _launch(kernel: int, *arguments: int | IntArgument | FloatArgument) -> LaunchInstruction:
    given = tuple(TensorArgument(item, 0) if isinstance(item, int) else item for item in arguments)
    return LaunchInstruction("launch", kernel, (symbol("num_tokens", 3, 128), 2, 1), given, False)


def test_layers_that_repeat_are_said_once() -> None:
    plan = gpu_plan()
    found = outline(plan, plan.programs[0])
    assert [(stretch.repeats, len(stretch.steps)) for stretch in found.stretches] == [(1, 1), (6, 4), (1, 2)]
    linear, attend = found.stretches[1].steps[:2]
    assert (linear.kind, linear.name, linear.weights) == ("launch", "linear", ("layers.*.weight",))
    assert attend.tensors == ("x", "layers.*.y", "key_cache.*")
    assert attend.settings == {"grid": "ceil(num_tokens * 3 / 128) x 2 x 1", "threads": 128, "shared_bytes": 1024}
    assert found.num_instructions == 2 * NUM_LAYERS + 3
    boxes = [(box.tensor, box.offset, box.first, box.last) for box in found.arena]
    assert boxes == [
        ("x", 0, 0, 6),
        ("layers.*.y", 16, 1, 2),
        ("layers.*.y", 32, 3, 4),
        ("logits", 64, 5, 6),
    ]


def test_a_setting_that_layers_have_otherwise_is_said_to_differ() -> None:
    tensors = tuple(_tensor(f"layers.{layer}.weight", "weight") for layer in range(3))
    scales = (0.5, 0.25, 0.5)
    calls = tuple(
        CallInstruction("call", "Linear", {"weight": layer}, {"scale": scale, "epsilon": 1e-6, "activation": "none"})
        for layer, scale in enumerate(scales)
    )
    plan = Plan({}, 0, 0, tensors, {}, (), (Program("step", "cpu", False, 4, calls),), None)
    (stretch,) = outline(plan, plan.programs[0]).stretches
    assert stretch.repeats == 3
    assert stretch.steps[0].settings == {"scale": "differs by layer", "epsilon": 1e-6, "activation": "none"}


@pytest.mark.parametrize("seed", range(20))
def test_spans_of_random_programs(seed: int) -> None:
    """Two uses of a tensor are in one span unless another tensor took its bytes in between."""
    chance = random.Random(seed)
    tensors = tuple(_tensor(str(n), "arena", chance.randrange(64), chance.randrange(1, 24)) for n in range(10))
    uses = [[chance.randrange(10)] for _ in range(40)]
    calls = tuple(CallInstruction("call", "Op", dict(enumerate(used)), {}) for used in uses)
    program = Program("step", "cpu", False, 4, calls)
    plan = Plan({}, 99, 0, tensors, {}, (), (program,), None)
    found = {(span.tensor, span.first, span.last) for span in arena_spans(plan, program)}
    expected = set()
    for number in {used for (used,) in uses}:
        times = [time for time, (used,) in enumerate(uses) if used == number]
        first = times[0]
        for time, following in pairwise([*times, None]):
            between = uses[time + 1 : following] if following is not None else None
            if between is None or any(_overlap(tensors[number], tensors[used]) for (used,) in between):
                expected.add((number, first, time))
                first = following
    assert found == expected


def _overlap(a: PlanTensor, b: PlanTensor) -> bool:
    return a.offset < b.offset + b.shape[0] and b.offset < a.offset + a.shape[0]


@pytest.mark.parametrize("extent", ["num_walruses", -1, 2**60])
def test_a_shape_that_cannot_be_is_an_error(extent: int | str) -> None:
    tensors = (_tensor("y", "arena", 0, extent),)
    program = Program("step", "cpu", False, 4, (CallInstruction("call", "Op", {"y": 0}, {}),))
    with pytest.raises(EngineError, match=r"'y' has .* the file is damaged"):
        outline(Plan({}, 99, 0, tensors, {}, (), (program,), None), program)
