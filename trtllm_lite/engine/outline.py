"""Outlines programs of an engine for people: steps in order, repeated layers listed once, and the arena."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.common.extents import Extent
from trtllm_lite.engine.arena_use import arena_spans, touched
from trtllm_lite.engine.plan import (
    CallInstruction,
    Instruction,
    IntArgument,
    LaunchInstruction,
    MatmulInstruction,
    NetworkInstruction,
    Plan,
    Program,
)
from trtllm_lite.engine.repeated import Run, joined, pattern, runs, unfolded


@dataclass(frozen=True)
class Step:
    """One instruction: the operator, kernel or library product that it runs, and its tensors.

    Names of tensors have a star for the number of a layer; in the arena of a GPU's plan, tensors of the same type,
    shape and place share the name of the first. ``settings`` are attributes and arguments; a setting that is not the
    same in all layers is ``differs by layer``.
    """

    kind: str
    name: str
    weights: tuple[str, ...]
    tensors: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Stretch:
    """Steps that run ``repeats`` times in a row."""

    repeats: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class ArenaBox:
    """A tensor that holds ``num_bytes`` of the arena from ``offset`` on, from step ``first`` to step ``last``.

    Steps are numbered over all stretches, from 0; the steps of a repeated stretch are numbered once.
    """

    tensor: str
    dtype: str
    shape: tuple[int | str, ...]
    offset: int
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Outline:
    """A program. The bytes of ``arena`` are for the bounds of the plan's symbols, not for ``max_tokens``."""

    name: str
    arch: str
    decode_only: bool
    max_tokens: int
    num_instructions: int
    stretches: tuple[Stretch, ...]
    arena: tuple[ArenaBox, ...]


def outline(plan: Plan, program: Program) -> Outline:
    """The outline of one program of ``plan``."""
    steps = [_step(plan, instruction) for instruction in program.instructions]
    keys = [_key(plan, *pair) for pair in zip(program.instructions, steps, strict=True)]
    found = joined(run if _is_layer(run, steps) else unfolded(run) for run in runs(keys))
    return Outline(
        name=program.name,
        arch=program.arch,
        decode_only=program.decode_only,
        max_tokens=program.max_tokens,
        num_instructions=len(steps),
        stretches=tuple(Stretch(run.repeats, tuple(_merged(steps, run))) for run in found),
        arena=tuple(_boxes(plan, program, found)),
    )


def _is_layer(run: Run, steps: Sequence[Step]) -> bool:
    """Whether ``run`` is a layer: it has weights. Two gathers in a row, for example, are not a layer."""
    return any(step.weights for step in steps[run.start : run.start + run.period])


def _step(plan: Plan, instruction: Instruction) -> Step:
    tensors = [plan.tensors[index] for index in touched(instruction)]
    return Step(
        kind=instruction.kind,
        name=plan.name_of(instruction),
        weights=tuple(pattern(tensor.name) for tensor in tensors if tensor.kind == "weight"),
        tensors=tuple(pattern(tensor.name) for tensor in tensors if tensor.kind != "weight"),
        settings=_settings(plan, instruction),
    )


def _settings(plan: Plan, instruction: Instruction) -> dict[str, Any]:
    if isinstance(instruction, CallInstruction):
        return dict(instruction.attributes)
    if isinstance(instruction, LaunchInstruction):
        kernel = plan.kernels[instruction.kernel]
        grid = " x ".join(_number(extent) for extent in instruction.grid)
        return {"grid": grid, "threads": kernel.threads, "shared_bytes": kernel.shared_bytes}
    if isinstance(instruction, MatmulInstruction):
        size = f"{instruction.out_features} x {instruction.in_features}"
        residual = {"residual": "added"} if instruction.residual is not None else {}
        return {"size": size, "dtype": instruction.dtype, "out_dtype": instruction.out_dtype} | residual
    if isinstance(instruction, NetworkInstruction):
        return {"network": instruction.network, "profile": instruction.profile}
    parts = {"features": instruction.x_features, "of all ranks": instruction.y_features}
    return parts | {"dtype": instruction.dtype}


def _number(extent: int | Extent) -> str:
    """An extent as a formula of its symbols."""
    if isinstance(extent, int):
        return str(extent)
    parts = [str(extent.const)] if extent.const or not extent.terms else []
    for name, multiplier, divisor in extent.terms:
        product = name if multiplier == 1 else f"{name} * {multiplier}"
        parts.append(product if divisor == 1 else f"ceil({product} / {divisor})")
    return " + ".join(parts)


def _key(plan: Plan, instruction: Instruction, step: Step) -> tuple[Any, ...]:
    """The facts that two steps share if they are the same step of two layers.

    Floats, such as the scales of a layer's cache, are left out, and so are tensors of the arena, because the first
    layer reads the output of the embedding.
    """
    settings = {name: value for name, value in step.settings.items() if not isinstance(value, float)}
    whole = settings | _whole_arguments(instruction)
    lasting = (plan.tensors[index] for index in touched(instruction) if plan.tensors[index].kind != "arena")
    names = tuple(pattern(tensor.name) for tensor in lasting)
    return (step.kind, step.name, getattr(instruction, "kernel", None), names, tuple(whole.items()))


def _whole_arguments(instruction: Instruction) -> dict[str, Any]:
    """Integer arguments of a kernel, such as the window of its layer."""
    if not isinstance(instruction, LaunchInstruction):
        return {}
    values = (argument.value for argument in instruction.args if isinstance(argument, IntArgument))
    return {f"argument {number}": value for number, value in enumerate(values)}


def _merged(steps: Sequence[Step], run: Run) -> Iterator[Step]:
    """The steps of the first repeat; settings that differ in another repeat are marked."""
    for number in range(run.start, run.start + run.period):
        settings = dict(steps[number].settings)
        for other in steps[number : number + run.period * run.repeats : run.period]:
            settings |= {name: "differs by layer" for name, value in other.settings.items() if settings[name] != value}
        yield replace(steps[number], settings=settings)


def _boxes(plan: Plan, program: Program, found: Sequence[Run]) -> Iterator[ArenaBox]:
    shown = [run.start + number for run in found for number in range(run.period)]  # numbers of instructions, ascending
    for span in arena_spans(plan, program):
        first, behind = bisect_left(shown, span.first), bisect_right(shown, span.last)
        if first < behind:
            tensor = plan.tensors[span.tensor]
            size = plan.max_bytes(tensor)
            yield ArenaBox(pattern(tensor.name), tensor.dtype, tensor.shape, tensor.offset, size, first, behind - 1)
