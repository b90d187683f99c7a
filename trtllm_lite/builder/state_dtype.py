"""Chooses the type in which recurrent layers store matrices, and measures what that changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.cache_groups import groups_of_rank
from trtllm_lite.builder.graph import attribute, dims, operands, results
from trtllm_lite.builder.job import Fused
from trtllm_lite.builder.state_runs import StateOperator, Step, some_of, state_nodes
from trtllm_lite.common.vocabulary import AUTO, FLOAT32, PLAIN_DTYPES, STATE_BUDGET, STATE_DTYPES
from trtllm_lite.engine.manifest import StateRounding
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.plugins.replay import ReplayState
from trtllm_lite.plugins.schema import all_schemas

_NARROW = tuple(dtype for dtype in PLAIN_DTYPES if dtype != FLOAT32)
_TOKENS, _MEASURED = 1024, 256  # tokens of a sequence, and the last ones, whose results are compared
# One instruction set, so that an engine is the same on every machine that builds it.
_ISA = "portable"


def round_states(graph: ir.Graph, wanted: str, *, has_weights: bool = True) -> StateRounding | None:
    """Return the type of matrices of the fused ``graph`` for the type that is ``wanted``, and how results change by it.

    ``auto`` is the one of 16 bits that changes them least, if that is within STATE_BUDGET, or else float32. Without
    weights nothing is measured. Returns None for a network without recurrent layers. Raises BuildError.
    """
    if wanted not in STATE_DTYPES:
        raise BuildError(f"state_dtype is {shown(wanted)}: expected one of {', '.join(STATE_DTYPES)}")
    nodes = _nodes_with_matrix(graph)
    if not nodes and wanted != FLOAT32:
        raise BuildError(f"state_dtype is {wanted}, and no layer has a matrix as its state: leave state_dtype out")
    if wanted == AUTO and not has_weights:
        raise BuildError(
            f"state_dtype is {AUTO}, which is measured with weights, and there are none: pass one of "
            f"{', '.join(PLAIN_DTYPES)}"
        )
    if not nodes:
        return None
    measured = () if wanted == FLOAT32 or not has_weights else _NARROW if wanted == AUTO else (wanted,)
    operators = [StateOperator.of(node) for node in some_of(nodes)] if measured else []
    of_each = [_changes(operator, measured) for operator in operators]
    changes = {dtype: max(found) for dtype, *found in zip(measured, *of_each, strict=True)}
    sites, num_tokens = tuple(operator.site for operator in operators), _TOKENS if measured else 0
    return StateRounding(_cheapest(changes) if wanted == AUTO else wanted, changes, sites, num_tokens)


def _cheapest(changes: Mapping[str, float]) -> str:
    """The type of 16 bits that changes results least, if that is within STATE_BUDGET, or else float32."""
    best = min(changes, key=changes.__getitem__)
    return best if changes[best] <= STATE_BUDGET else FLOAT32


@lru_cache(maxsize=64)
def _changes(operator: StateOperator, dtypes: Sequence[str]) -> tuple[float, ...]:
    """How far results of a sequence's last tokens are from those with float32 states, in the head that is worst.

    Of each of ``dtypes`` it is the norm of the difference over the norm of the results, to two digits.
    """

    def results_of(dtype: str) -> np.ndarray:
        found = operator.stored_as(dtype).run([Step(_TOKENS)], _ISA)[-_MEASURED:]
        return found.reshape(_MEASURED, operator.state[0], -1).astype(np.float64)

    exact = results_of(FLOAT32)
    sizes = np.linalg.norm(exact, axis=(0, 2))
    of_heads = (np.linalg.norm(results_of(dtype) - exact, axis=(0, 2))[sizes > 0] for dtype in dtypes)
    return tuple(float(f"{(found / sizes[sizes > 0]).max(initial=0.0):.1e}") for found in of_heads)


def with_states(fused: Fused, dtype: str) -> Fused:
    """Return ``fused``, whose graph is changed, with states whose matrices are of ``dtype``."""
    for node in _nodes_with_matrix(fused.graph):
        layout, schema = _layout(node, dtype), all_schemas()[node.op_type]
        (cache,) = schema.caches
        updated = [results(node)[one.name] for one in schema.outputs if one.alias == cache.name]
        for value in (operands(node)[cache.name], *updated):
            *others, _ = dims(value) or ()
            value.shape, value.dtype = ir.Shape([*others, layout.size]), ONNX[dtype]
    return replace(fused, cache_groups=groups_of_rank(fused.cache_groups, fused.graph))


def _nodes_with_matrix(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in state_nodes(graph) if "replay_tokens" in node.attributes]


def _layout(node: ir.Node, dtype: str) -> ReplayState:
    return ReplayState.of({name: attribute(node, name) for name in node.attributes}, dtype)
