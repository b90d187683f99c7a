"""Executes graphs that mix standard ONNX operators, run by onnx.reference, and ours, run by the plugins' references."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from trtllm_lite.plugins.schema import DOMAIN, Schema, network_schemas


def _operator(schema: Schema) -> type[OpRun]:
    """An onnx.reference operator that runs the plugin's numpy reference."""

    class Operator(OpRun):
        op_domain = DOMAIN

        def _run(self, *inputs: np.ndarray | None, **attributes: float) -> tuple[np.ndarray, ...]:
            reference = schema.part("reference").reference
            absent = [None] * (len(schema.inputs) - len(inputs))
            return reference([*inputs, *absent], attributes)[: len(self.output)]

    return type(schema.name, (Operator,), {})


class GatherElements(OpRun):
    """GatherElements for three dimensions and a negative axis, which that of onnx.reference does not support."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        return (np.take_along_axis(data, indices, axis),)


_evaluators: WeakKeyDictionary[ir.Model, ReferenceEvaluator] = WeakKeyDictionary()


def _evaluator(model: ir.Model) -> ReferenceEvaluator:
    """The evaluator of ``model``, which must not change after its first run: making one takes longer than a step."""
    if model not in _evaluators:
        operators = [_operator(schema) for schema in network_schemas().values()]
        _evaluators[model] = ReferenceEvaluator(ir.to_proto(model), new_ops=[*operators, GatherElements])
    return _evaluators[model]


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of ``model`` by name; ``feeds`` may hold more than the model takes."""
    evaluator = _evaluator(model)
    inputs = {name: feeds[name] for name in evaluator.input_names}
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))
