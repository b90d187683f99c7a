"""Checks of operators with a recurrent state, and of their norms, on a GPU or emulated."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Gpu, Machine
from tests.gpu.kernels import dtype_flag
from tests.gpu.launches import Prepared
from tests.gpu.memory import DTYPES, Memory
from tests.state_batch import NUM_GROUPS, Arrays, Operator, Sequences, check_states, run_steps
from tests.tolerances import GPU_STATE_TOLERANCES, STATE_TOLERANCES, Tolerance
from tests.tolerances import assert_close as assert_close_arrays
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.gated_rms_norm.cuda import lanes_of_group
from trtllm_lite.plugins.gated_rms_norm.reference import reference as gated_rms_norm
from trtllm_lite.plugins.grouped_rms_norm.reference import reference as grouped_rms_norm
from trtllm_lite.plugins.launch import Buffer, Device, Launch
from trtllm_lite.plugins.schema import all_schemas

_FEW_SMS = 3  # so that each block computes several heads
_OTHERS = 6  # columns on each side of a gate that its operator does not read, where nothing else is said


class StateKernel:
    """Runs what an operator with a recurrent state is lowered to, on numpy arrays."""

    def __init__(
        self,
        operator: Operator,
        dtype: torch.dtype,
        machine: Machine,
        *,
        decode: bool = False,
        deterministic: bool = False,
        max_decode_seqs: int = 1,
    ) -> None:
        """Take the kernels of a program; ``decode``: that of one token for each sequence."""
        self.operator, self.dtype, self.machine = operator, dtype, machine
        self.decode, self.deterministic, self.max_decode_seqs = decode, deterministic, max_decode_seqs

    def __call__(self, inputs: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        op = StateLowering(self, inputs, attributes)
        launches = op.launches()
        num_seqs, num_tokens = len(op.arrays["past_lens"]), len(op.arrays[op.rows_names[0]])
        columns = op.arrays["block_tables"].shape[1]
        symbols = {"num_seqs": num_seqs, "num_tokens": num_tokens, "max_blocks_per_seq": columns, "num_sms": _FEW_SMS}
        for launch in launches:
            Prepared(launch, op.memory.tensors, symbols, self.machine)()
        y, states = (op.memory.tensors[buffer].cpu() for buffer in (op.buffers["y"], op.buffers[op.state_name]))
        before = op.arrays[op.state_name]
        after = states.view(torch.uint8).numpy().view(before.dtype)[:, : -op.GAP]
        return y.float().numpy(), np.ascontiguousarray(after).reshape(before.shape)


class StateLowering:
    """The part of ``plugins/cuda/lowering.py`` that operators with a recurrent state ask for; buffers are tensors."""

    name = "op"
    GAP = 8  # elements between the states of a layer, where those of other layers may be

    def __init__(self, kernel: StateKernel, inputs: Arrays, attributes: Mapping[str, Any]) -> None:
        schema = all_schemas()[kernel.operator.name]
        self.decode, self.deterministic = kernel.decode, kernel.deterministic
        self.max_decode_seqs = kernel.max_decode_seqs
        self._attributes, self._dtype, self._folder = attributes, kernel.dtype, kernel.operator.folder
        self.device = Device("sm_90a", 99 * 1024)  # the least of GPUs that have these instructions
        self._device, self.memory, self.buffers = kernel.machine.device, Memory(), dict[str, Buffer]()
        self.arrays = {i.name: a for i, a in zip(schema.inputs, inputs, strict=True) if a is not None}
        self.rows_names = [argument.name for argument in schema.inputs[: len(kernel.operator.widths)]]
        (self.state_name,) = (argument.name for argument in schema.caches)
        self.max_tokens = max(len(self.arrays[self.rows_names[0]]), self.max_decode_seqs)

    def launches(self) -> list[Launch]:
        """What the operator is lowered to."""
        return importlib.import_module(f"trtllm_lite.plugins.{self._folder}.cuda").lower(self)

    def attribute(self, name: str) -> Any:
        return self._attributes[name]

    def extents(self, operand: str) -> tuple[int, ...]:
        return self.arrays[operand].shape

    def rows(self, operand: str) -> Buffer:
        if operand == "slots":
            return Buffer("slots", "int32", (NUM_GROUPS, "num_tokens"))
        return self._buffer(operand, self._dtype)

    def new(self, output: str) -> Buffer:
        heads, channels = self.arrays[self.state_name].shape[1:]
        width = heads * int(self._attributes["value_dim"]) if "value_dim" in self._attributes else channels
        tensor = torch.full((len(self.arrays[self.rows_names[0]]), width), POISON, dtype=self._dtype)
        self.buffers[output] = self.memory(output, tensor.to(self._device))
        return self.buffers[output]

    def matrix(self, operand: str) -> Buffer:
        return self._buffer(operand, self._dtype)

    def vector(self, operand: str) -> Buffer:
        return self._buffer(operand, torch.float32)

    def optional_vector(self, operand: str) -> Buffer | None:
        return self.vector(operand) if operand in self.arrays else None

    def step_input(self, operand: str) -> Buffer:
        return self._buffer(operand, torch.int32)

    @property
    def block_bytes(self) -> int:
        states = self.arrays[self.state_name]
        return states.itemsize * (int(np.prod(states.shape[1:])) + self.GAP)

    def cache(self, operand: str, *shape: int) -> Buffer:
        assert shape == self.extents(operand)[1:]
        states = self.arrays[operand].reshape(len(self.arrays[operand]), -1)
        gap = self.GAP * states.itemsize
        raw = np.pad(states.view(np.uint8), ((0, 0), (0, gap)), constant_values=0xFF)  # NaN
        blocks = torch.from_numpy(raw).view(DTYPES[states.dtype.name])
        self.buffers[operand] = self.memory(operand, blocks.to(self._device))
        return self.buffers[operand]

    def refuse(self, problem: str) -> NoReturn:
        raise BuildError(problem)

    def _buffer(self, operand: str, dtype: torch.dtype) -> Buffer:
        if operand not in self.buffers:
            array = self.arrays[operand]
            wide = torch.from_numpy(array.astype(np.int32 if array.dtype == np.int32 else np.float32))  # a copy
            self.buffers[operand] = self.memory(operand, wide.to(dtype).to(self._device))
        return self.buffers[operand]


def _tolerances(machine: Machine, dtype: torch.dtype) -> Mapping[str, Tolerance]:
    """Tolerances of states: the emulator adds exactly, but multiplies in parts of bfloat16 as a GPU does."""
    if isinstance(machine, Gpu):
        return GPU_STATE_TOLERANCES
    in_parts = {"float32": GPU_STATE_TOLERANCES["float32"]} if dtype == torch.bfloat16 else {}
    return {**STATE_TOLERANCES, **in_parts}


def rounded(operator: Operator, lengths: Sequence[int], dtype: torch.dtype) -> Sequences:
    """Sequences whose rows ``dtype`` holds exactly."""
    sequences = Sequences(operator, lengths)
    for rows in sequences.rows:
        rows[:] = [torch.from_numpy(part).to(dtype).float().numpy() for part in rows]
    return sequences


def check_state_steps(
    operator: Operator,
    lengths: Sequence[int],
    steps: Sequence[Sequence[tuple[int, int]]],
    dtype: torch.dtype,
    machine: Machine,
    *,
    decode: bool = False,
    max_decode_seqs: int = 1,
) -> None:
    """Check results and states of each step against the reference, which begins with the kernel's own states."""
    reference = importlib.import_module(f"trtllm_lite.plugins.{operator.folder}.reference").reference
    sequences = rounded(operator, lengths, dtype)
    kernel = StateKernel(operator, dtype, machine, decode=decode, max_decode_seqs=max_decode_seqs)
    coarsest = torch.bfloat16 if sequences.states.dtype.name == "bfloat16" else dtype
    for new_tokens in steps:
        y, states = reference(sequences.inputs(new_tokens), operator.attributes)
        found = np.concatenate(sequences.step(new_tokens, kernel))
        assert_close(torch.from_numpy(found), torch.from_numpy(y).double(), coarsest)
        check_states(operator, sequences.states, states, _tolerances(machine, dtype))


def check_a_token_that_repeats(operator: Operator, length: int, dtype: torch.dtype, machine: Machine) -> None:
    """Check a sequence whose keys are all the same, which is where the updates of a chunk depend on each other most."""
    reference = importlib.import_module(f"trtllm_lite.plugins.{operator.folder}.reference").reference
    sequences, kernel = rounded(operator, [length], dtype), StateKernel(operator, dtype, machine)
    for rows in sequences.rows[0]:
        rows[:] = rows[:1]
    y, states = reference(sequences.inputs([(0, length)]), operator.attributes)
    (found,) = sequences.step([(0, length)], kernel)
    assert_close(torch.from_numpy(found), torch.from_numpy(y).double(), dtype)
    own, expected = (operator.parts(part[[sequences.state_block(0)]])["matrix"] for part in (sequences.states, states))
    assert_close_arrays(own, expected, "float32", "matrix", _tolerances(machine, dtype))


def check_divided(
    operator: Operator, steps: Sequence[Sequence[tuple[int, int]]], dtype: torch.dtype, machine: Machine
) -> None:
    """Check that sequences get the same bits in these steps and in one step of a deterministic engine.

    Steps are those of programs for few sequences, and for many.
    """
    lengths = [sum(dict(step).get(sequence, 0) for step in steps) for sequence in range(len(steps[0]))]

    def computed(of_steps: Sequence[Sequence[tuple[int, int]]], max_decode_seqs: int) -> list[np.ndarray]:
        kernel = StateKernel(operator, dtype, machine, deterministic=True, max_decode_seqs=max_decode_seqs)
        return run_steps(rounded(operator, lengths, dtype), of_steps, kernel)

    whole = computed([list(enumerate(lengths))], 1)
    for max_decode_seqs in (1, 1 << 10):
        for expected, found in zip(whole, computed(steps, max_decode_seqs), strict=True):
            assert np.array_equal(found, expected)


def check_gated_rms_norm(
    rows: int,
    groups: int,
    size: int,
    dtype: torch.dtype,
    machine: Machine,
    activation: str = "silu",
    others: int = _OTHERS,
) -> None:
    """Check random rows, of which some are much larger than others."""
    device, features = machine.device, groups * size
    x = (torch.randn(rows, features, device=device) * torch.logspace(-2, 2, rows, device=device)[:, None]).to(dtype)
    gate, weight = torch.randn(rows, features, device=device).to(dtype), torch.randn(size, device=device)
    y = torch.full_like(x, POISON)
    defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_GROUP": size, "TL_THREADS": 256}
    defines |= {"TL_FP16": dtype_flag(dtype), "TL_SIGMOID": int(activation == "sigmoid")}
    defines["TL_GATE_PITCH"] = pitch = features + 2 * others
    lanes = lanes_of_group(size, pitch, others)
    kernel = machine.kernel("gated_rms_norm/cuda.cuh", "gated_rms_norm", 256, 0, defines | lanes)
    kernel(y, x, _among_others(gate, others), weight, 1e-6, grid=(rows, -(-groups * lanes["TL_LANES"] // 256), 1))
    arrays = [tensor.double().cpu().numpy() for tensor in (x, gate, weight)]
    (expected,) = gated_rms_norm(arrays, {"epsilon": 1e-6, "activation": activation, "gate_first": 0})
    assert_close(y.cpu(), torch.from_numpy(expected).double())


def check_grouped_rms_norm(
    rows: int, groups: int, size: int, order: str, dtype: torch.dtype, machine: Machine, threads: int
) -> None:
    """Check random rows, of which some are much larger than others."""
    device, features = machine.device, groups * size
    x = (torch.randn(rows, features, device=device) * torch.logspace(-2, 2, rows, device=device)[:, None]).to(dtype)
    gate, weight = torch.randn(rows, features, device=device).to(dtype), torch.randn(groups, size, device=device)
    y = torch.full_like(x, POISON)
    defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_GROUPS": groups, "TL_THREADS": threads}
    defines |= {"TL_GATE_FIRST": int(order == "gate_first"), "TL_FP16": dtype_flag(dtype)}
    defines["TL_GATE_PITCH"] = features + 2 * _OTHERS
    kernel = machine.kernel("grouped_rms_norm/cuda.cuh", "grouped_rms_norm", threads, 0, defines)
    kernel(y, x, _among_others(gate), weight, 1e-6, grid=(rows, groups, 1))
    arrays = [tensor.double().cpu().numpy() for tensor in (x, gate, weight)]
    (expected,) = grouped_rms_norm(arrays, {"order": order, "epsilon": 1e-6, "gate_first": 0})
    assert_close(y.cpu(), torch.from_numpy(expected).double())


def _among_others(rows: torch.Tensor, others: int = _OTHERS) -> torch.Tensor:
    """The memory of wider rows with columns of NaN on both sides of ``rows``, from the first of these on."""
    wide = torch.nn.functional.pad(rows, (others, others), value=float("nan"))
    return wide.flatten()[others:]
