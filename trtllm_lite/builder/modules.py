"""Describes the module that a fused network becomes: its kind, and what flows in and out of its plan."""

from collections.abc import Iterable, Mapping, Sequence

from trtllm_lite.common.vocabulary import DRAFTING_HEAD, MODULE_USES, PLAIN_DTYPES, ROW_DTYPES
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.engine.modules import Module, Port
from trtllm_lite.engine.plan import PlanTensor


def module_of(
    kind: str,
    tensors: Sequence[PlanTensor],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    groups: Iterable[CacheGroup],
    tokens_per_row: int = 0,
) -> Module:
    """The module of this ``kind`` of a plan whose ``inputs`` and ``outputs`` are numbers of ``tensors``, by name.

    Outputs that are floating-point rows of a step are ports; sampled tokens and the runtime's own records are not. A
    paged cache that no layer owns keeps rows between modules: those that a drafting head reads, or its decoder makes.
    """
    groups = tuple(groups)
    owned = {cache.tensor for group in groups for cache in group.caches}
    kept = (tensor for tensor in tensors if tensor.kind == "cache" and tensor.name not in owned)
    shared = tuple(_port(tensor.name, tensor) for tensor in kept)
    results_first = sorted(outputs.items(), key=lambda output: output[0] != MODULE_USES[kind].output)
    made = {name: tensors[index] for name, index in results_first}
    return Module(
        name=kind,
        kind=kind,
        inputs=(
            *(_port(name, tensors[index]) for name, index in inputs.items()),
            *(_port(tensor.name, tensor) for tensor in tensors if _is_given_row(tensor)),
            *(shared if kind == DRAFTING_HEAD else ()),
        ),
        outputs=(
            *(_port(name, tensor) for name, tensor in made.items() if _has_rows(tensor)),
            *(shared if kind != DRAFTING_HEAD else ()),
        ),
        caches=tuple(group.name for group in groups),
        tokens_per_row=tokens_per_row,
    )


def _port(name: str, tensor: PlanTensor) -> Port:
    return Port(name, tensor.dtype, tensor.shape)


def _is_given_row(tensor: PlanTensor) -> bool:
    return tensor.kind == "input" and tensor.dtype in ROW_DTYPES


def _has_rows(tensor: PlanTensor) -> bool:
    return tensor.kind == "arena" and tensor.dtype in PLAIN_DTYPES and len(tensor.shape) == 2
