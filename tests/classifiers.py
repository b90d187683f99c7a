"""Classifiers for tests: a small head over an encoder's rows of texts, appended to a checkpoint's network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from transformers import PreTrainedModel

from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.network.verifier import load_network


@dataclass(frozen=True)
class SmallHead:
    """scores = tanh(rows @ dense.T + dense_bias) @ classifier.T + classifier_bias."""

    dense: np.ndarray
    dense_bias: np.ndarray
    classifier: np.ndarray
    classifier_bias: np.ndarray

    @classmethod
    def random(cls, hidden_size: int, num_labels: int, seed: int = 0) -> "SmallHead":
        """A head of random weights, large enough that scores of texts differ."""
        generator = np.random.default_rng(seed)
        shapes = ((hidden_size, hidden_size), (hidden_size,), (num_labels, hidden_size), (num_labels,))
        return cls(*(generator.normal(0, 0.2, shape).astype(np.float32) for shape in shapes))

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """float64 [texts, num_labels] for rows of texts."""
        hidden = np.tanh(rows.astype(np.float64) @ self.dense.T + self.dense_bias)
        return hidden @ self.classifier.T + self.classifier_bias

    def append_to(self, checkpoint_dir: Path) -> None:
        """Make the network of an encoder's checkpoint that of a classifier."""
        model = load_network(checkpoint_dir)
        graph, (row,) = model.graph, model.graph.outputs
        row.name = "pooled"
        dense = self._linear(graph, "head.dense", row, self.dense, self.dense_bias)
        hidden = _op(graph, "Tanh", "head.tanh", dense)
        scores = self._linear(graph, "classifier", hidden, self.classifier, self.classifier_bias)
        scores.name, scores.type = "scores", ir.TensorType(ir.DataType.FLOAT)
        scores.shape = ir.Shape(("batch", len(self.classifier_bias)))
        graph.outputs[0] = scores
        ir.save(model, checkpoint_dir / NETWORK_FILE)

    @staticmethod
    def _linear(graph: ir.Graph, name: str, x: ir.Value, weight: np.ndarray, bias: np.ndarray) -> ir.Value:
        matrix, vector = (
            ir.Value(
                name=f"{name}.{kind}",
                type=ir.TensorType(ir.DataType.FLOAT),
                shape=ir.Shape(array.shape),
                const_value=ir.tensor(array, name=f"{name}.{kind}"),
            )
            for kind, array in (("weight", weight), ("bias", bias))
        )
        graph.register_initializer(matrix)
        graph.register_initializer(vector)
        transposed = _op(graph, "Transpose", f"{name}.transpose", matrix)
        return _op(graph, "Add", f"{name}.bias.add", _op(graph, "MatMul", name, x, transposed), vector)


def _op(graph: ir.Graph, op_type: str, name: str, *inputs: ir.Value) -> ir.Value:
    node = ir.node(op_type, inputs, {"perm": [1, 0]} if op_type == "Transpose" else {}, name=name)
    node.outputs[0].name = name
    graph.append(node)
    return node.outputs[0]


def expected_scores(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """The scores that transformers computes, one text at a time: float32 [texts, labels]."""
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([list(text)])).logits.numpy() for text in texts])
