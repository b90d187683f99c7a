"""Describes in words the chosen kernels and the reasons."""

from trtllm_lite.builder.cuda.planning import Lowered, LoweredProgram
from trtllm_lite.builder.cuda.products.timing_cache import Product, ProductTiming, TimingCache
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.plugins.launch import Launch, Matmul


def explain(lowered: Lowered, timings: TimingCache | None) -> tuple[Tactic, ...]:
    """Return an entry for every kernel that has several forms, and for every kind of product, by first use."""
    found: dict[Tactic, None] = {}
    for program in lowered.programs:
        for command in program.commands:
            if isinstance(command, Matmul):
                found[_product(program, command, timings)] = None
            elif isinstance(command, Launch) and command.kernel.reason:
                found[_kernel(program, command)] = None
    return tuple(found)


def _kernel(program: LoweredProgram, launch: Launch) -> Tactic:
    kernel = launch.kernel
    macros = {name.removeprefix("TL_").lower(): value for name, value in kernel.defines}
    extents = f" {macros['out']} x {macros['in']}" if {"out", "in"} <= macros.keys() else ""
    choice = ", ".join(f"{name} {value}" for name, value in macros.items())
    return Tactic(f"{kernel.name}{extents} of {program.name} ({program.device.arch})", choice, kernel.reason)


def _product(program: LoweredProgram, matmul: Matmul, timings: TimingCache | None) -> Tactic:
    product, arch, max_rows = Product.of(matmul), program.device.arch, program.bucket.max_tokens
    site = f"product {product} of {program.name} ({arch})"
    why = f"; {matmul.reason}" if matmul.reason else ""
    if timings is None or arch != timings.arch or not timings.timings(product):
        return Tactic(site, "cuBLASLt's heuristic at load", f"it was not measured{why}")
    algorithms = timings.algorithms(product, arch, max_rows)
    if not algorithms:
        return Tactic(site, "cuBLASLt's heuristic at load", f"nothing was faster on {timings.device}{why}")
    measured = "; ".join(map(_timing, timings.timings(product)[: len(algorithms)]))
    return Tactic(site, "an algorithm for each number of rows", f"measured on {timings.device}: {measured}{why}")


def _timing(timing: ProductTiming) -> str:
    gain = f" (heuristic {timing.heuristic_microseconds} us)" if timing.gains else ""
    return f"{timing.rows} rows {timing.microseconds} us{gain}"
