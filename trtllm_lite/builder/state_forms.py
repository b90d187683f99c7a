"""Proves that an engine's recurrent layers compute the same in each form in which sequences reach them.

A sequence's tokens may come in one step, token by token, to a state that was written out and read back (snapshots,
host memory), or after drafts that were taken back. Peers have shipped forms that differ, which no error tells.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.state_runs import StateOperator, Step, some_of, state_nodes
from trtllm_lite.engine.manifest import StateForms
from trtllm_lite.errors import BuildError

# Forms that add in another order differ by some 1e-6 of the largest result in float32 (tests/tolerances.py).
BOUND = 5e-6
_TOKENS = 200
_CUTS = (1, 15, 33, 2, 64, 16)  # of steps whose states are restored, before and behind multiples of 16 tokens
_STAYING = (1, 3, 1, 17)  # tokens of steps with drafts


def compare_forms(graph: ir.Graph) -> tuple[StateForms, ...]:
    """Compare the forms of each kind of operator that keeps a state, in some layers of the fused ``graph``.

    Raises BuildError if results differ by more than BOUND.
    """
    of_kinds: dict[str, list[ir.Node]] = {}
    for node in state_nodes(graph):
        of_kinds.setdefault(node.op_type, []).append(node)
    return tuple(_compare(kind, nodes) for kind, nodes in of_kinds.items())


def _compare(kind: str, nodes: Sequence[ir.Node]) -> StateForms:
    largest: dict[str, float] = {}
    operators = [StateOperator.of(node) for node in some_of(nodes)]
    for operator in operators:
        whole = operator.run([Step(_TOKENS)])
        for form, steps in _forms(operator.taken_back).items():
            difference = _difference(operator.run(steps), whole)
            if not difference <= BOUND:
                raise BuildError(
                    f"{operator.site}: the results of {kind} {form} are off from those in one step by "
                    f"{difference:.1e} of the largest, expected at most {BOUND:.0e}: its forms do not agree. This is a "
                    "defect of trtllm_lite or of the package that the operator is from: please report it"
                )
            largest[form] = max(largest.get(form, 0.0), difference)
    return StateForms(kind, tuple(operator.site for operator in operators), len(nodes), _TOKENS, largest)


def _forms(taken_back: int) -> dict[str, list[Step]]:
    return {
        "token by token": [Step(1)] * _TOKENS,
        "restored": [Step(count, restored=True) for count in _filled(_CUTS)],
        "taken back": [Step(count, wrong=taken_back) for count in _filled(_STAYING)],
    }


def _filled(counts: Sequence[int]) -> Iterator[int]:
    """``counts``, over and over, up to _TOKENS in all."""
    left = _TOKENS
    for count in cycle(counts):
        yield min(count, left)
        left -= count
        if left <= 0:
            return


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest magnitude; 0 for equal results."""
    difference, largest = np.abs(found - expected).max(), np.abs(expected).max()
    return float(f"{difference / largest:.1e}") if difference else 0.0
