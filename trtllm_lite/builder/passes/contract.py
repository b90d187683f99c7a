"""The contract of a pass, a rewriting of a graph that states what it needs, guarantees and decided.

The pipeline as a whole is a pure function: it copies the network once, and its passes rewrite the copy.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import remove_dead


class PassError(Exception):
    """A pass was given, or made, a graph that breaks its contract: a defect of the builder, not of the user's model."""


@dataclass(frozen=True)
class Decision:
    """One candidate for a fusion. ``site`` is a path in the model; ``reason`` explains the decision."""

    site: str
    fused: bool
    reason: str = ""


Condition = Callable[[ir.Graph], Iterable[str]]


def always(graph: ir.Graph) -> Iterable[str]:  # noqa: ARG001 (the signature of a condition)
    """The condition that every graph fulfils."""
    return ()


@dataclass(frozen=True)
class GraphPass:
    """``rewrite`` changes the graph it is given, and yields its decisions meanwhile.

    ``requires`` and ``ensures`` yield a sentence for every violation of the pre- and postcondition.
    """

    name: str
    rewrite: Callable[[ir.Graph], Iterable[Decision]]
    requires: Condition = always
    ensures: Condition = always

    def __call__(self, graph: ir.Graph) -> list[Decision]:
        """Rewrite ``graph`` and remove its dead nodes. Raises PassError; the graph is unusable then."""
        self._check("precondition", self.requires(graph))
        decisions = list(self.rewrite(graph))
        remove_dead(graph)
        self._check("postcondition", self.ensures(graph))
        return decisions

    def _check(self, which: str, violations: Iterable[str]) -> None:
        listed = list(violations)
        if listed:
            raise PassError(f"{which} of {self.name} violated: {'; '.join(listed)}")
