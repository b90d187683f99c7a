"""Makes the engine for autotuning products: it has a program for each candidate kernel."""

from collections import defaultdict
from dataclasses import dataclass, replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.expansion import expand_weights
from trtllm_lite.builder.cuda.layout import lay_out
from trtllm_lite.builder.cuda.limits import LARGEST_STEP, STEP_BUCKETS, Bucket, step_buckets
from trtllm_lite.builder.cuda.lowering import lower
from trtllm_lite.builder.cuda.planning import Lowered, LoweredProgram, operands_of
from trtllm_lite.builder.cuda.products.choices import chooser
from trtllm_lite.builder.cuda.products.sites import Choice, Site
from trtllm_lite.builder.cuda.products.timing_cache import Product
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.plugins.launch import Buffer, Device, Operand, Slice

# Each program has products of several layers; together their weights exceed any L2 cache, but for the smallest models.
_MAX_LAYERS = 8


@dataclass(frozen=True)
class TuningTask:
    """An autotuning case: candidates for one kind of product with more than ``above``, up to ``max_rows`` rows.

    ``programs`` maps each candidate to its program; first comes cuBLASLt, or else the expected best. Every program
    computes the product of the same ``num_layers`` layers.
    """

    product: Product
    above: int
    max_rows: int
    num_layers: int
    programs: dict[str, str]


class _Given:
    """Input buffers that the products of all programs read and none writes, one for every role, type and shape.

    If they shared the arena, one layer's y could be another's x, and values would grow or shrink from run to run; at a
    card's power limit the time of a product depends on its values.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, role: str, operand: Operand) -> Buffer:
        """Return the buffer of a role whose contents are like those of ``operand``."""
        buffer = operand.buffer if isinstance(operand, Slice) else operand
        name = f"given {role} {buffer.dtype} {buffer.shape}"
        return self.buffers.setdefault(name, replace(buffer, name=name))


def lower_tuning_tasks(
    graph: ir.Graph, kind: str, dtype: str, limits: BuildLimits, device: Device, max_candidates: int
) -> tuple[Lowered, list[TuningTask]]:
    """Lower a program for steps of any size, with kernels chosen by heuristics, and the autotuning programs.

    ``kind`` is that of the graph's module. Raises BuildError.

    Each kind of product and step size with several candidates is measured: cuBLASLt (except for quantized weights and
    experts) and up to ``max_candidates`` tiled kernels, expected best first. Rows are spread evenly over experts.
    """
    operands = operands_of(graph, dtype, limits)
    sites: dict[Product, list[Site]] = defaultdict(list)
    # Steps of many rows would dequantize weights once; their products are those of 16-bit weights.
    any_rows = replace(step_buckets(operands.symbols["num_tokens"])[-1], above=0)
    heuristic = chooser(any_rows, device, None)

    def record(site: Site) -> Choice:
        sites[site.product].append(site.here)
        return heuristic(site)

    ops = expand_weights(graph, dtype).ops
    programs = [LoweredProgram(device, any_rows, lower(ops, operands, device, any_rows, record))]
    tasks: list[TuningTask] = []
    given = _Given()
    for number, (product, of_product) in enumerate(sites.items()):
        for above, size in zip((0, *STEP_BUCKETS), (*STEP_BUCKETS, LARGEST_STEP), strict=True):
            first = of_product[0]
            if first.max_rows <= above:
                continue
            alike = [site for site in of_product if site.rows == first.rows]
            layers = [site.given(given.buffer, size) for site in alike[:_MAX_LAYERS]]
            candidates = list(layers[0].candidates(size, device).items())[: max_candidates + first.in_library]
            if len(candidates) < 2:
                continue
            names = {}
            for name, config in candidates:
                names[name] = f"product {number} of {size} by {name}"
                commands = [command for site in layers for command in site.implement(Choice(config, ""), device)]
                commands = [*layers[0].prepare(), *commands]
                programs.append(LoweredProgram(device, Bucket(names[name], layers[0].max_rows), commands))
            tasks.append(TuningTask(product, above, layers[0].max_rows, len(layers), names))
    layout = lay_out(operands, [program.commands for program in programs], given.buffers.values())
    return Lowered(operands, tuple(programs), layout, kind), tasks
