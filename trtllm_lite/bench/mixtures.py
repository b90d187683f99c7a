"""Computes how many experts a step's rows choose, and so the step reads, and how these are spread over ranks."""

from dataclasses import dataclass
from math import prod

from trtllm_lite.engine.plan import (
    CallInstruction,
    CollectiveInstruction,
    Instruction,
    LaunchInstruction,
    MatmulInstruction,
    NetworkInstruction,
    Plan,
    TensorArgument,
    TensorMapArgument,
)
from trtllm_lite.engine.reader import EngineFile
from trtllm_lite.runtime.session.experts import Routing


@dataclass(frozen=True)
class Mixture:
    """A layer's experts: each row has ``top_k`` of ``num_experts``; a rank has ``inner`` features of each.

    All rows have the ``shared`` experts among these, and choose the others. An expert's matrices have so many
    ``elements`` on a rank.
    """

    num_experts: int
    top_k: int
    inner: int
    shared: int = 0
    elements: int = 0

    def share_read(self, rows: float) -> float:
        """The share of the experts that ``rows`` rows are expected to have, if all are chosen equally likely."""
        chosen = self.num_experts - self.shared
        left_out = (1.0 - (self.top_k - self.shared) / chosen) ** rows
        return 1.0 - left_out * chosen / self.num_experts


def is_grouped(plan: Plan, instruction: Instruction) -> bool:
    """Whether the matrices of an instruction, and their scales and biases, are those of experts."""
    match instruction:
        case CallInstruction(op=op):
            return op in ("GroupedGatedLinear", "GroupedLinear")
        case LaunchInstruction(kernel=kernel):
            return plan.kernels[kernel].name.startswith(("grouped_gated_linear", "grouped_linear"))
    return False


def operands_of(plan: Plan, instruction: Instruction) -> list[int]:
    """The tensors that an instruction reads or writes as a whole."""
    match instruction:
        case CallInstruction(op=op, operands=operands):
            return [] if op == "Embedding" else list(operands.values())
        case MatmulInstruction(weight=weight):
            return [weight.tensor]
        case CollectiveInstruction(x=x, y=y):
            return [x.tensor, y.tensor]
        case LaunchInstruction(kernel=kernel) if plan.kernels[kernel].name == "embedding":
            return []
        case LaunchInstruction(args=arguments):
            pointers = [argument.tensor for argument in arguments if isinstance(argument, TensorArgument)]
            maps = [argument.tensor_map.tensor for argument in arguments if isinstance(argument, TensorMapArgument)]
            return pointers + maps
        case NetworkInstruction():
            return []


def mixtures(engine: EngineFile) -> list[Mixture]:
    """The mixture of each layer that has experts, from the shapes of its gated product: y is [rows, top_k, inner]."""
    plan, ranks = engine.plan, engine.manifest.mapping.moe_ep_size
    found: list[Mixture] = []
    for instruction in plan.programs[0].instructions:
        match instruction:
            case CallInstruction(op="GroupedGatedLinear", operands=operands):
                y, weight = plan.tensors[operands["y"]], plan.tensors[operands["weight"]]
            case LaunchInstruction(kernel=kernel, args=arguments) if plan.kernels[kernel].name.startswith(
                "grouped_gated_linear"
            ):
                read = [one.tensor for one in arguments if isinstance(one, TensorArgument)]
                read += [one.tensor_map.tensor for one in arguments if isinstance(one, TensorMapArgument)]
                tensors = [plan.tensors[index] for index in read]
                y = next(one for one in tensors if one.kind != "weight" and len(one.shape) == 3)
                weight = next(one for one in tensors if one.kind == "weight" and len(one.shape) > 1)
            case _:
                continue
        num_experts, (top_k, inner) = weight.shape[0], y.shape[-2:]
        assert isinstance(num_experts, int)
        assert isinstance(top_k, int)
        assert isinstance(inner, int)
        # An expert has gate and up, or one matrix as its two halves, and then a matrix back.
        *first, in_features = (extent for extent in weight.shape[1:] if isinstance(extent, int))
        elements = in_features * (prod(first) + inner)
        found.append(Mixture(num_experts * ranks, top_k, inner, plan.shared_experts[len(found)], elements))
    return found


def routing_figures(routing: Routing | None, moe_ep_size: int) -> dict[str, float]:
    """Figures of the measured routing, and, if each rank has some of the experts, of how evenly rows choose ranks."""
    if routing is None:
        return {}
    if moe_ep_size == 1:
        return {"experts_read": routing.experts_read}
    return {
        "experts_read": routing.experts_read,
        "rank_rows": routing.rank_rows,
        "busiest_rank_rows": routing.busiest_rows,
        "rank_imbalance": routing.imbalance,
    }
