"""Runs the operators of recurrent layers by themselves: on random tokens, with the weights and kernels of CPUs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trtllm_lite import _core
from trtllm_lite.builder.cache_groups import layers_of
from trtllm_lite.builder.graph import attribute, columns_read, dims, features_of, operands, results, weight_tensor
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.replay import ReplayState
from trtllm_lite.plugins.schema import Argument, all_schemas

_SEED = 8
_MOST_THREADS = 8  # of a call, which starts them anew
_UNWRITTEN = 0xFF  # in every byte of a state that was not written: NaN in each type


@dataclass(frozen=True)
class Step:
    """A step of a sequence: ``count`` tokens, and behind them ``wrong`` ones, which are taken back.

    If the state is ``restored``, its bytes are read and written to another block before the step.
    """

    count: int
    wrong: int = 0
    restored: bool = False


@dataclass(frozen=True, eq=False)
class StateOperator:
    """An operator at ``site`` that keeps a state of the shape ``state``: its weights, and the widths of its rows.

    Operators are equal that give equal results.
    """

    op_type: str
    site: str
    weights: Mapping[str, np.ndarray]
    widths: Mapping[str, int]
    results_width: int
    state: tuple[int, ...]
    state_dtype: str
    attributes: Mapping[str, int | float | str]

    @classmethod
    def of(cls, node: ir.Node) -> "StateOperator":
        """Read the weights of ``node``, an operator whose schema has a cache of states."""
        schema, given = all_schemas()[node.op_type], operands(node)
        (cache,) = schema.caches
        kept, (y,) = given[cache.name], (results(node)[one.name] for one in schema.outputs if one.alias is None)
        rest = {one.name: given[one.name] for one in schema.inputs if one.is_row and one.name in given}
        tensors = {name: weight_tensor(value) for name, value in rest.items()}
        rows = [one for one in schema.inputs if one.name in rest and tensors[one.name] is None]
        begins = {one.first: 0 for one in rows if one.columns}  # rows of its own have no other columns
        assert kept.dtype is not None
        return cls(
            op_type=node.op_type,
            site=str(node.name),
            weights={name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None},
            widths={one.name: stop - first for one in rows for first, stop in [columns_read(node, one)]},
            results_width=features_of(y),
            state=tuple(extent for extent in (dims(kept) or ())[1:] if isinstance(extent, int)),
            state_dtype=DTYPE_NAMES[kept.dtype],
            attributes={one.name: attribute(node, one.name) for one in schema.attributes} | {"cache_group": 0} | begins,
        )

    @property
    def taken_back(self) -> int:
        """The most tokens of a step that may be taken back after it."""
        return int(self.attributes["taken_back"])

    def stored_as(self, dtype: str) -> "StateOperator":
        """The operator with states of another type, if these have a matrix."""
        layout = ReplayState.of(self.attributes, dtype)
        return replace(self, state=(self.state[0], layout.size), state_dtype=dtype)

    def run(self, steps: Sequence[Step], isa: str = "auto") -> np.ndarray:
        """The results [tokens, features] of a sequence's tokens, which are the same for equally many tokens.

        ``isa``: the instruction set of the kernels, or the best of this machine.
        """
        rows = self._rows(0, sum(step.count for step in steps))
        drafts = self._rows(1, max(step.wrong for step in steps))
        states = np.empty((2, *self.state), np.dtype(self.state_dtype))
        states.view(np.uint8)[...] = _UNWRITTEN
        block, done, found = 0, 0, []
        for step in steps:
            if step.restored and done:
                kept = states[block].tobytes()
                states.view(np.uint8)[block] = _UNWRITTEN
                block = 1 - block
                states[block] = np.frombuffer(kept, states.dtype).reshape(self.state)
            new = {
                name: np.concatenate([of_tokens[done : done + step.count], drafts[name][: step.wrong]])
                for name, of_tokens in rows.items()
            }
            found.append(self._call(new, states, block, done, isa)[: step.count])
            done += step.count
        return np.concatenate(found)

    def _rows(self, number: int, count: int) -> dict[str, np.ndarray]:
        bits = np.random.PCG64([_SEED, number])
        return {name: _random(bits, count, width) for name, width in self.widths.items()}

    def _call(self, rows: Mapping[str, np.ndarray], states: np.ndarray, block: int, past: int, isa: str) -> np.ndarray:
        """The results of a step; the state of ``block`` in ``states`` is changed."""
        schema, count = all_schemas()[self.op_type], len(next(iter(rows.values())))
        steps = {"cu_seqlens": [0, count], "past_lens": [past], "block_tables": [[block]]}
        arrays = {**rows, **self.weights, **{name: np.array(values, np.int32) for name, values in steps.items()}}
        y = np.full((count, self.results_width), np.nan, np.float32)

        def operand(argument: Argument) -> np.ndarray | None:
            return states if argument.cache == STATE else arrays.get(argument.step_input or argument.name)

        inputs = [operand(argument) for argument in schema.inputs]
        outputs = [y if argument.alias is None else states for argument in schema.outputs]
        dtypes = ["" if array is None else array.dtype.name for array in inputs]
        _core.run_kernel(
            self.op_type,
            _raw(inputs),
            _raw(outputs),
            dict(self.attributes),
            dtypes=dtypes,
            isa=isa,
            num_threads=min(_core.resolve_num_threads(), _MOST_THREADS),
        )
        return y

    @cached_property
    def _content(self) -> str:
        facts = (self.op_type, self.widths, self.state, self.state_dtype, self.attributes)
        digest = hashlib.sha256(repr(facts).encode())
        for name, weight in self.weights.items():
            digest.update(f"{name} {weight.dtype} {weight.shape}".encode() + weight.tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateOperator) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


def _random(bits: np.random.PCG64, count: int, width: int) -> np.ndarray:
    """Numbers with a variance of 1, the same with all versions of numpy."""
    fractions = (bits.random_raw(count * width) >> 40).astype(np.float32) / np.float32(1 << 24)
    return ((fractions - np.float32(0.5)) * np.float32(12**0.5)).reshape(count, width)


def _raw(arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """``arrays`` as ``run_kernel`` takes them: bfloat16 as integers of the same bits."""
    return [
        array.view(np.uint16) if array is not None and array.dtype == ml_dtypes.bfloat16 else array for array in arrays
    ]


def state_nodes(graph: ir.Graph) -> list[ir.Node]:
    """The operators of ``graph`` that keep a state."""
    return [
        node
        for nodes in layers_of(graph)
        for node in nodes
        if all(cache.cache == STATE for cache in all_schemas()[node.op_type].caches)
    ]


def some_of(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The first of ``nodes``, the one in the middle, and the last."""
    return [nodes[number] for number in sorted({0, len(nodes) // 2, len(nodes) - 1})]
