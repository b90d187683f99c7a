"""Makes, from their schemas, the operators that programs add to those of the network."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.builder.cuda.ops import Op
from trtllm_lite.builder.graph import value_of
from trtllm_lite.common.vocabulary import STEP_INPUTS
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.plugins.schema import Argument, all_schemas

LAST_TOKENS = value_of("last_tokens", ir.DataType.INT32, ["num_slots"])
_STEP_INPUTS = {step_input.name: step_input for step_input in STEP_INPUTS}


def program_op(
    kind: str,
    ops: Sequence[Op],
    inputs: Mapping[str, ir.Value],
    attributes: Mapping[str, int],
    extents: Mapping[str, int],
) -> Op:
    """Return the operator ``kind`` of a program that has ``ops``, with new values as outputs.

    It reads ``inputs``, and its step inputs and state by the names in its schema. ``extents`` are the values of symbols
    of the schema that its constraints do not give.
    """
    schema = all_schemas()[kind]
    known = {**extents, **implied_extents(schema, {**attributes, **extents})}

    def new(argument: Argument) -> ir.Value:
        (dtype,) = argument.dtypes
        shape = [known.get(extent, extent) if isinstance(extent, str) else extent for extent in argument.shape]
        return value_of(argument.name, ONNX[dtype], shape)

    read = {argument.name: step_input(argument.step_input, ops) for argument in schema.inputs if argument.step_input}
    state = {argument.name: new(argument) for argument in schema.inputs if argument.state}
    made = {argument.name: new(argument) for argument in schema.outputs}
    return Op(kind, schema.folder, {**read, **state, **inputs}, made, attributes)


def last_tokens(ops: Sequence[Op]) -> ir.Value:
    """Return the state where Sample leaves the tokens of each slot; in a pipeline another stage may fill it."""
    return next((op.inputs["last_tokens"] for op in ops if op.kind == "Sample"), LAST_TOKENS)


def step_input(name: str, ops: Sequence[Op]) -> ir.Value:
    """Return the step input ``name``: the value that an operator reads already, or a new one."""
    given = (value for op in ops for value in op.inputs.values() if value.producer() is None)
    read = (value for value in given if value.name == name and not value.is_initializer())
    return next(read, value_of(name, ir.DataType.INT32, _STEP_INPUTS[name].shape))
