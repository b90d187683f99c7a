"""Contests: what all contestants of a product read stays as it was made up."""

import pytest

from tests.unit.builder.cuda_engines import LIMITS, cuda_shape
from tests.unit.builder.networks import network
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder.cuda.layout import buffers_of
from trtllm_lite.builder.cuda.planning import Lowered, LoweredProgram
from trtllm_lite.builder.cuda.products.contests import Contest, lower_contests
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.plugins.launch import Buffer, Matmul, Operand, Slice
from trtllm_lite.quantize.network import Recipe, quantize_network

(H200,) = parse_targets(["sm_90"])
Place = tuple[int, int]  # first byte of the arena, and one past the last


@pytest.fixture(scope="module")
def contests() -> tuple[Lowered, list[Contest]]:
    """Those of a network of two layers, for steps of two sizes."""
    model, _ = run_passes(network(cuda_shape(hidden=128, inter=192)))
    limits = BuildLimits(**{**LIMITS, "max_num_tokens": 100})
    return lower_contests(model.graph, "bfloat16", limits, H200, max_contestants=3)


def _place(lowered: Lowered, buffer: Buffer) -> Place:
    tensor = lowered.layout.tensors[lowered.layout.index[buffer]]
    return tensor.offset, tensor.offset + tensor.max_bytes(lowered.operands.symbols)


def _arena(program: LoweredProgram) -> list[Buffer]:
    found = (buffer for command in program.commands for buffer in buffers_of(command))
    return [buffer for buffer in dict.fromkeys(found) if buffer.kind == "arena"]


def test_no_contestant_overwrites_what_any_of_them_reads(contests: tuple[Lowered, list[Contest]]) -> None:
    lowered, found = contests
    names = {name for contest in found for name in contest.programs.values()}
    programs = [program for program in lowered.programs if program.name in names]
    assert len(programs) == len(names) > 8
    products = [command for program in programs for command in program.commands if isinstance(command, Matmul)]
    assert any(product.residual is not None for product in products)
    read = {operand for product in products for operand in (product.x, product.residual) if isinstance(operand, Buffer)}
    places = [_place(lowered, buffer) for buffer in read]
    for program in programs:
        buffers = _arena(program)
        assert read & set(buffers)
        for begin, end in (_place(lowered, buffer) for buffer in buffers if buffer not in read):
            assert all(end <= first or last <= begin for first, last in places)


def test_contestants_of_a_product_read_the_same(contests: tuple[Lowered, list[Contest]]) -> None:
    lowered, found = contests
    by_name = {program.name: program for program in lowered.programs}
    for contest in found:
        first, *others = ([b for b in _arena(by_name[name]) if "given" in b.name] for name in contest.programs.values())
        assert len(first) == 1 + contest.product.residual
        assert others
        assert all(set(other) == set(first) for other in others)


@pytest.mark.parametrize("qformat", ["fp8_rowwise", "int8_wo", "int4_wo"])
def test_the_library_multiplies_no_quantized_weights(qformat: str) -> None:
    source = network(cuda_shape(hidden=128, inter=192))
    quantized, _ = quantize_network(source, Recipe(qformat, group_size=64), made_up(source))
    model, _ = run_passes(quantized)
    lowered, _ = lower_contests(model.graph, "bfloat16", BuildLimits(**LIMITS), H200, max_contestants=3)
    products = [command for program in lowered.programs for command in program.commands if isinstance(command, Matmul)]
    assert {_buffer(product.weight).dtype for product in products} <= {"bfloat16"}


def _buffer(operand: Operand) -> Buffer:
    return operand.buffer if isinstance(operand, Slice) else operand
