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
from trtllm_lite.builder.cuda.products.sites import Choice, Site, implement
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT, Product
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.plugins.launch import Buffer, Device, Operand, Slice

# Products of one layer each; their weights together exceed any L2 cache, but for the smallest models.
_MAX_LAYERS = 8


@dataclass(frozen=True)
class Contest:
    """A comparison of what computes a kind of product, of more than ``above`` and at most ``max_rows`` rows.

    ``programs`` maps each contestant, of which cuBLASLt is the first, to its program. Every program computes the
    product of the same ``num_layers`` layers.
    """

    product: Product
    above: int
    max_rows: int
    num_layers: int
    programs: dict[str, str]


class _Given:
    """The buffers that all programs read and none writes, one for every role and shape.

    Elsewhere in the arena one layer's y may be where another's x is, so that values grow from run to run, or shrink to
    zero, and the time of a product depends on them where a card is at its power limit.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, tuple[int | str, ...]], Buffer] = {}

    def to(self, site: Site, max_rows: int) -> Site:
        """The site as one of at most ``max_rows`` rows that reads what is given, and has y alone to compute."""
        x, residual = self._buffer("x", site.x), site.residual and self._buffer("residual", site.residual)
        return replace(site, x=x, residual=residual, max_rows=min(max_rows, site.max_rows), tokens=None)

    def _buffer(self, role: str, operand: Operand) -> Buffer:
        buffer = operand.buffer if isinstance(operand, Slice) else operand
        return self.buffers.setdefault((role, buffer.shape), replace(buffer, name=f"given {role} {buffer.shape}"))


def lower_contests(
    graph: ir.Graph, dtype: str, limits: BuildLimits, device: Device, max_contestants: int
) -> tuple[Lowered, list[Contest]]:
    """A program that computes any step through cuBLASLt, and those of the contests. Raises BuildError.

    There is a contest for each kind of product and size of step that has tiled kernels; their best guesses compete. Of
    products of quantized weights, which cuBLASLt does not compute, there is none.
    """
    operands = operands_of(graph, dtype, limits)
    sites: dict[Product, list[Site]] = defaultdict(list)
    mixed = step_buckets(operands.symbols["num_tokens"])[-1]
    guess = chooser(mixed, device, None)

    def record(site: Site) -> Choice:
        if site.weight.scale is not None:
            return guess(site)
        sites[site.product].append(site)
        return Choice(None, "")

    ops = expand_weights(graph, dtype).ops
    programs = [LoweredProgram(device, mixed, lower(ops, operands, device, mixed, record))]
    contests: list[Contest] = []
    given = _Given()
    for number, (product, of_product) in enumerate(sites.items()):
        for above, size in zip((0, *STEP_BUCKETS), (*STEP_BUCKETS, LARGEST_STEP), strict=True):
            configs = of_product[0].tile_configs(size, device)[:max_contestants]
            if of_product[0].max_rows <= above or not configs:
                continue
            alike = [site for site in of_product if site.rows == of_product[0].rows]
            layers = [given.to(site, size) for site in alike[:_MAX_LAYERS]]
            names = {}
            for choice in (Choice(None, ""), *(Choice(config, "") for config in configs)):
                contestant = CUBLASLT if choice.config is None else str(choice.config)
                names[contestant] = f"product {number} of {size} by {contestant}"
                bucket = Bucket(names[contestant], layers[0].max_rows)
                commands = [command for site in layers for command in implement(site, choice, device)]
                programs.append(LoweredProgram(device, bucket, commands))
            contests.append(Contest(product, above, layers[0].max_rows, len(layers), names))
    layout = lay_out(operands, [program.commands for program in programs], given.buffers.values())
    return Lowered(operands, tuple(programs), layout), contests
