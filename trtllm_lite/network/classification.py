"""Builds the heads of classifiers: from the row of a text to a score of each label."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.context import NetworkContext
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.norms import Norm

TANH = Activation("Tanh", "tanh")


@dataclass(frozen=True)
class ClassificationHead:
    """classifier(norm(activation(dense(row)))); ``norm`` is None for heads without one.

    ``labels`` are the names of the scores. ``problem_type`` is transformers' word for what the scores mean:
    regression, single_label_classification or multi_label_classification, or "" if the model does not say.
    """

    dense: Linear
    activation: Activation
    norm: Norm | None
    classifier: Linear
    labels: tuple[str, ...]
    problem_type: str = ""

    def __call__(self, context: NetworkContext, row: ir.Value) -> ir.Value:
        """Map rows of texts [batch, hidden] to scores, float32 [batch, labels]."""
        graph = context.graph
        with graph.scope("classification"):  # unlike the names of any source
            hidden = self.activation(context, self.dense(graph, row, "dense"))
            if self.norm is not None:
                hidden = self.norm(graph, hidden, "norm")
            return self.classifier(graph, hidden, "classifier")
