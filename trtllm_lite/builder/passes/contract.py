"""What a pass is: a pure function from model to model that states what it needs, guarantees and decided."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import remove_dead


class PassError(Exception):
    """A pass was given, or made, a graph that breaks its contract: a defect of the builder, not of the user's model."""


@dataclass(frozen=True)
class Decision:
    """One candidate for a fusion. ``site`` is a path in the model; ``reason`` says why it was not fused."""

    site: str
    fused: bool
    reason: str = ""


Condition = Callable[[ir.Graph], Iterable[str]]


def always(graph: ir.Graph) -> Iterable[str]:  # noqa: ARG001 (the signature of a condition)
    """The condition that every graph fulfils."""
    return ()


@dataclass(frozen=True)
class GraphPass:
    """``rewrite`` changes the private copy it is given and returns its decisions.

    ``requires`` and ``ensures`` yield a sentence for every violation of the pre- and postcondition.
    """

    name: str
    rewrite: Callable[[ir.Graph], list[Decision]]
    requires: Condition = always
    ensures: Condition = always

    def __call__(self, model: ir.Model) -> tuple[ir.Model, list[Decision]]:
        """The rewritten model, without dead nodes; ``model`` is left as it is. Raises PassError."""
        self._check("precondition", self.requires(model.graph))
        result = model.clone()
        decisions = self.rewrite(result.graph)
        remove_dead(result.graph)
        self._check("postcondition", self.ensures(result.graph))
        return result, decisions

    def _check(self, which: str, violations: Iterable[str]) -> None:
        listed = list(violations)
        if listed:
            raise PassError(f"{which} of {self.name} violated: {'; '.join(listed)}")
