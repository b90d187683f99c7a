"""Makes the engine that measures which kernel computes a product fastest: it has a program for each contestant."""

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

# Products of one layer each; their weights together exceed any L2 cache, but for the smallest models.
_MAX_LAYERS = 8


@dataclass(frozen=True)
class Contest:
    """A comparison of what computes a kind of product, of more than ``above`` and at most ``max_rows`` rows.

    ``programs`` maps each contestant to its program, first that of cuBLASLt, or else of the best guess. Every program
    computes the product of the same ``num_layers`` layers.
    """

    product: Product
    above: int
    max_rows: int
    num_layers: int
    programs: dict[str, str]


class _Given:
    """The buffers that products of all programs read and none writes, one for every role, type and shape.

    Elsewhere in the arena one layer's y may be where another's x is, so that values grow from run to run, or shrink to
    zero, and the time of a product depends on them where a card is at its power limit.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, role: str, operand: Operand) -> Buffer:
        """The buffer of a role whose contents are like those of ``operand``."""
        buffer = operand.buffer if isinstance(operand, Slice) else operand
        name = f"given {role} {buffer.dtype} {buffer.shape}"
        return self.buffers.setdefault(name, replace(buffer, name=name))


def lower_contests(
    graph: ir.Graph, dtype: str, limits: BuildLimits, device: Device, max_contestants: int
) -> tuple[Lowered, list[Contest]]:
    """A program that computes any step without measurements, and those of the contests. Raises BuildError.

    There is a contest for each kind of product and size of step that has several ways to compute it: cuBLASLt, but for
    products of quantized weights or of experts, and the best guesses among tiled kernels, ``max_contestants`` of them
    at most. Rows choose experts evenly.
    """
    operands = operands_of(graph, dtype, limits)
    sites: dict[Product, list[Site]] = defaultdict(list)
    mixed = step_buckets(operands.symbols["num_tokens"])[-1]
    guess = chooser(mixed, device, None)

    def record(site: Site) -> Choice:
        sites[site.product].append(site.here)
        return guess(site)

    ops = expand_weights(graph, dtype).ops
    programs = [LoweredProgram(device, mixed, lower(ops, operands, device, mixed, record))]
    contests: list[Contest] = []
    given = _Given()
    for number, (product, of_product) in enumerate(sites.items()):
        for above, size in zip((0, *STEP_BUCKETS), (*STEP_BUCKETS, LARGEST_STEP), strict=True):
            first = of_product[0]
            if first.max_rows <= above:
                continue
            alike = [site for site in of_product if site.rows == first.rows]
            layers = [site.given(given.buffer, size) for site in alike[:_MAX_LAYERS]]
            contestants = list(layers[0].contestants(size, device).items())[: max_contestants + first.in_library]
            if len(contestants) < 2:
                continue
            names = {}
            for name, config in contestants:
                names[name] = f"product {number} of {size} by {name}"
                commands = [command for site in layers for command in site.implement(Choice(config, ""), device)]
                commands = [*layers[0].prepare(), *commands]
                programs.append(LoweredProgram(device, Bucket(names[name], layers[0].max_rows), commands))
            contests.append(Contest(product, above, layers[0].max_rows, len(layers), names))
    layout = lay_out(operands, [program.commands for program in programs], given.buffers.values())
    return Lowered(operands, tuple(programs), layout), contests
