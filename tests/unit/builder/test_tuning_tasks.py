"""Autotuning: the shared operands of a product's candidates keep the values that they were filled with."""

from collections import defaultdict
from itertools import pairwise
from math import prod

import pytest

from tests.unit.builder.cuda_engines import LIMITS, cuda_shape
from tests.unit.builder.networks import network
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.cuda.layout import buffers_of
from trtllm_lite.builder.cuda.planning import Lowered, LoweredProgram
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT
from trtllm_lite.builder.cuda.products.tuning_tasks import TuningTask, lower_tuning_tasks
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins, run_passes
from trtllm_lite.builder.sharding import shard
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.plugins.launch import Buffer, Launch, Matmul, Operand, Slice
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.schemes import FULL_PRECISION

(H200,) = parse_targets(["sm_90"])
Place = tuple[int, int]  # first byte in the arena, and one past the last


@pytest.fixture(scope="module")
def tasks() -> tuple[Lowered, list[TuningTask]]:
    """The tuning tasks for a network of two layers and steps of two sizes."""
    model, _ = run_passes(network(cuda_shape(hidden=128, inter=192)))
    limits = BuildLimits(**{**LIMITS, "max_num_tokens": 100})
    return lower_tuning_tasks(model.graph, DECODER, "bfloat16", limits, H200, max_candidates=3)


def _place(lowered: Lowered, buffer: Buffer) -> Place:
    tensor = lowered.layout.tensors[lowered.layout.index[buffer]]
    return tensor.offset, tensor.offset + tensor.max_bytes(lowered.operands.symbols)


def _arena(program: LoweredProgram) -> list[Buffer]:
    found = (buffer for command in program.commands for buffer in buffers_of(command))
    return [buffer for buffer in dict.fromkeys(found) if buffer.kind == "arena"]


def test_no_candidate_overwrites_what_any_of_them_reads(tasks: tuple[Lowered, list[TuningTask]]) -> None:
    lowered, found = tasks
    names = {name for task in found for name in task.programs.values()}
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


def test_candidates_of_a_product_read_the_same(tasks: tuple[Lowered, list[TuningTask]]) -> None:
    lowered, found = tasks
    by_name = {program.name: program for program in lowered.programs}
    for task in found:
        first, *others = ([b for b in _arena(by_name[name]) if "given" in b.name] for name in task.programs.values())
        assert len(first) == 1 + task.product.residual
        assert others
        assert all(set(other) == set(first) for other in others)


@pytest.mark.parametrize(
    ("qformat", "weight", "rows", "row_scales", "blocks"),
    [
        ("fp8", "float8_e4m3fn", "float8_e4m3fn", False, ""),
        ("fp8_rowwise", "float8_e4m3fn", "float8_e4m3fn", True, ""),
        ("int8_sq", "int8", "int8", True, ""),
        ("int8_wo", "int8", "bfloat16", False, ""),
        ("int4_wo", "int4", "bfloat16", False, "blocks of 64 with float16 scales"),
    ],
)
def test_tiled_kernels_compete_for_quantized_weights(
    qformat: str, weight: str, rows: str, row_scales: bool, blocks: str
) -> None:
    lowered, found = _quantized_tasks(qformat)
    of_bytes = {task.product for task in found if task.product.dtype != "bfloat16"}
    assert len(of_bytes) == 4  # products of attention and of the MLP
    for product in of_bytes:
        form = (product.dtype, product.x_dtype, product.row_scales, product.blocks)
        assert form == (weight, rows, row_scales, blocks)
    by_name = {program.name: program for program in lowered.programs}
    for task in found:
        commands = [command for name in task.programs.values() for command in by_name[name].commands]
        products = [command for command in commands if isinstance(command, Matmul)]
        assert bool(products) == (task.product not in of_bytes) == (CUBLASLT in task.programs)
        assert {_buffer(product.weight).dtype for product in products} <= {"bfloat16"}
        assert 1 < len(task.programs) <= 4


@pytest.mark.parametrize("qformat", ["int4_wo", "int8_wo"])
def test_products_are_of_weights_as_stored(qformat: str) -> None:
    """In engines for steps of many rows, too, which dequantize weights before a product."""
    _, found = _quantized_tasks(qformat, max_batch_size=64, max_num_tokens=2048)
    layers: dict[str, dict[str, int]] = defaultdict(dict)
    for task in found:
        extents = f"{task.product.out_features} x {task.product.in_features}"
        assert layers[task.product.dtype].setdefault(extents, task.num_layers) == task.num_layers
    of_last_layer = dict.fromkeys(("128 x 256", "384 x 128", "128 x 384"), 1)
    assert layers == {qformat.removesuffix("_wo"): {"512 x 128": 2, **of_last_layer}, "bfloat16": {"128 x 128": 1}}


@pytest.mark.parametrize("qformat", ["fp8_rowwise", "int8_sq"])
def test_candidates_read_rows_of_bytes_and_their_scales(qformat: str) -> None:
    lowered, found = _quantized_tasks(qformat)
    by_name = {program.name: program for program in lowered.programs}
    given = {b: _place(lowered, b) for program in lowered.programs for b in _arena(program) if "given" in b.name}
    for first, second in pairwise(sorted(given.values())):
        assert first[1] <= second[0]
    for task in (task for task in found if task.product.row_scales):
        for name in task.programs.values():
            read = sorted(buffer.dtype for buffer in _arena(by_name[name]) if buffer in given)
            residuals = ["bfloat16"] * task.product.residual
            assert read == sorted([task.product.x_dtype, "float32", *residuals])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("qformat", [FULL_PRECISION, "fp8_rowwise"])
def test_candidates_of_a_rank_need_no_other_rank(qformat: str, dtype: str) -> None:
    """Products of large steps store rows on other ranks, which do not exist where candidates are measured."""
    lowered, found = _quantized_tasks(qformat, dtype, tp_size=2, max_batch_size=64, max_num_tokens=2048)
    assert {task.product.out_dtype for task in found} == {dtype, "float32"}  # logits are float32
    names = {name for task in found for name in task.programs.values()}
    first, *programs = lowered.programs
    assert {program.name for program in programs} == names
    assert {1, 2} == {macros["TL_ROWS_ON"] for macros in _macros(first) if "TL_ROWS_ON" in macros}
    for program in programs:
        assert {macros["TL_ROWS_ON"] for macros in _macros(program) if "TL_ROWS_ON" in macros} <= {0}
        assert {buffer.kind for command in program.commands for buffer in buffers_of(command)} <= {"arena", "weight"}
        for product in (command for command in program.commands if isinstance(command, Matmul)):
            *parts, _ = _extents(_buffer(product.weight))
            assert product.out_features == prod(parts)


def _quantized_tasks(qformat: str, dtype: str = "bfloat16", **limits: int) -> tuple[Lowered, list[TuningTask]]:
    """The tuning tasks of the first rank of a quantized network."""
    shape = cuda_shape(hidden=128, inter=384, head_dim=64, vocab=128, tied=False, dtype=ONNX[dtype])
    source = network(shape)
    model, _ = quantize_network(source, Recipe(qformat, group_size=64), made_up(source))
    bounds = BuildLimits(**{**LIMITS, **limits})
    fused = fuse_into_plugins(model, AUTO_DTYPE, bounds).graph
    graph = fused if bounds.tp_size == 1 else shard(fused, bounds.tp_size)[0]
    return lower_tuning_tasks(graph, DECODER, dtype, bounds, H200, max_candidates=3)


def _macros(program: LoweredProgram) -> list[dict[str, int | str]]:
    return [dict(command.kernel.defines) for command in program.commands if isinstance(command, Launch)]


def _extents(weight: Buffer) -> list[int]:
    return [extent for extent in weight.shape if isinstance(extent, int)]


def _buffer(operand: Operand) -> Buffer:
    return operand.buffer if isinstance(operand, Slice) else operand
