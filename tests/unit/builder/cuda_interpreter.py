"""Executes a GPU plan without a GPU: the kernels in numpy, over memory laid out as the plan says."""

import ml_dtypes
import numpy as np

from tests.unit.builder import (  # noqa: F401 (register)
    cuda_attention,
    cuda_encoder,
    cuda_experts,
    cuda_latent,
    cuda_low_rank,
    cuda_states,
)
from tests.unit.builder.cuda_kernels import KERNELS, NUM_SMS, Pointer, at
from trtllm_lite.builder.cuda.planning import Lowered, make_plan
from trtllm_lite.common.vocabulary import FEATURES
from trtllm_lite.engine.plan import (
    FloatArgument,
    Instruction,
    IntArgument,
    LaunchInstruction,
    MatmulInstruction,
    Plan,
    Program,
    TensorArgument,
    TensorMapArgument,
)

_POISON = 0xFF  # NaN in every float type
_TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "int32": np.int32}


class CudaInterpreter:
    """A card that has loaded the engine of ``lowered``; caches hold garbage until they are written."""

    def __init__(self, lowered: Lowered) -> None:
        kernels = lowered.kernels()
        self.plan = make_plan(lowered, {specialised: str(number) for specialised, number in kernels.items()})
        self.macros = [dict(kernel.defines) for kernel, _ in kernels]
        self.dtype, symbols = lowered.operands.dtype, self.plan.symbols
        self.most_of_decode_rows = 1 + lowered.operands.limits.max_draft_len
        self.memory = {
            "arena": np.full(self.plan.arena_bytes, _POISON, np.uint8),
            "state": np.zeros(self.plan.state_bytes, np.uint8),
            "weight": _weights(lowered),
        }
        self.blocks = np.full(symbols.get("num_blocks", 0) * lowered.operands.block.num_bytes, 0x44, np.uint8)
        self.features = np.full(_bytes_of_features(self.plan), 0x44, np.uint8)
        self.num_loras = symbols.get("num_loras", 0)
        self.adapters = np.full(self.num_loras * 256 * symbols.get("adapter_stride", 0), _POISON, np.uint8)
        self.inputs: dict[str, np.ndarray] = {}
        self.symbols: dict[str, int] = {}
        self.ran: list[str] = []

    def step(self, inputs: dict[str, np.ndarray], program: str) -> np.ndarray:
        """Run one program; returns the logits. ``inputs`` has step inputs by name; missing ones are zeros."""
        self.run(inputs, program, {})
        return self.output("logits")

    def run(self, inputs: dict[str, np.ndarray], program: str, received: dict[str, np.ndarray]) -> None:
        """Run one program of a stage that has received rows from other stages, given by name."""
        self.ran, self.symbols = [], self._symbols(inputs)
        self.inputs = {
            tensor.name: np.ascontiguousarray(inputs[tensor.name]).reshape(-1).view(np.uint8)
            if tensor.name in inputs
            else np.zeros(tensor.max_bytes(self.plan.symbols), np.uint8)
            for tensor in self.plan.tensors
            if tensor.kind == "input"
        }
        self.memory["arena"][...] = _POISON
        for name, rows in received.items():
            tensor = self.plan.tensors[self.plan.inputs[name]]
            at(self.memory["arena"][tensor.offset :], _TYPES[tensor.dtype], *rows.shape)[...] = rows
        for instruction in self._program(program).instructions:
            self._run(instruction)

    def tokens(self) -> np.ndarray:
        """The tokens that the last step sampled."""
        return self.output("tokens")

    def output(self, name: str) -> np.ndarray:
        """An output of the plan, as the last step left it."""
        tensor = self.plan.tensors[self.plan.outputs[name]]
        shape = [self.symbols[extent] if isinstance(extent, str) else extent for extent in tensor.shape]
        return at(self.memory[tensor.kind][tensor.offset :], _TYPES[tensor.dtype], *shape).copy()

    def _program(self, name: str) -> Program:
        return next(program for program in self.plan.programs if program.name == name)

    def _symbols(self, inputs: dict[str, np.ndarray]) -> dict[str, int]:
        lens = np.diff(inputs["cu_seqlens"])
        decode = int(np.cumprod(lens <= self.most_of_decode_rows).sum())  # number of leading rows of few tokens
        of_cache = ("num_blocks", "max_blocks_per_seq")  # symbols that encoders have no values for
        return {
            "num_tokens": int(lens.sum()),
            "num_seqs": len(lens),
            "num_seqs_plus_1": len(lens) + 1,
            "num_decode_seqs": decode,
            "num_prefill_seqs": len(lens) - decode,
            "num_prefill_tokens": int(lens[decode:].sum()),
            "num_logits": len(inputs.get("logits_indices", ())),
            **{name: self.plan.symbols[name] for name in of_cache if name in self.plan.symbols},
            "num_sms": NUM_SMS,
            "num_loras": self.num_loras,
            "adapter_stride": self.plan.symbols.get("adapter_stride", 0),
        }

    def _run(self, instruction: Instruction) -> None:
        if isinstance(instruction, MatmulInstruction):
            self.ran.append("matmul")
            self._matmul(instruction)
            return
        grid = tuple(self._number(extent) for extent in instruction.grid)
        if 0 in grid:
            return
        name = self.plan.kernels[instruction.kernel].name
        self.ran.append(name)
        arguments = [self._argument(argument) for argument in instruction.args]
        KERNELS[name](self.macros[instruction.kernel], grid, *arguments)

    def _matmul(self, call: MatmulInstruction) -> None:
        rows, dtype = self._number(call.rows), _TYPES[call.dtype]
        x = at(self._pointer(call.x), dtype, rows, call.in_features).astype(np.float64)
        weight = at(self._pointer(call.weight), dtype, call.out_features, call.in_features).astype(np.float64)
        result = x @ weight.T
        if call.bias is not None:
            result += at(self._pointer(call.bias), _TYPES[call.out_dtype], call.out_features).astype(np.float64)
        if call.residual is not None:
            result += at(self._pointer(call.residual), dtype, rows, call.out_features).astype(np.float64)
        at(self._pointer(call.y), _TYPES[call.out_dtype], rows, call.out_features)[...] = result

    def _number(self, number: object) -> int:
        if isinstance(number, int):
            return number
        return number.const + sum(-(-self.symbols[name] * times // by) for name, times, by in number.terms)

    def _argument(self, argument: object) -> Pointer | int | float | None:
        match argument:
            case TensorArgument():
                return self._pointer(argument)
            case TensorMapArgument(boxed):
                return self._pointer(TensorArgument(boxed.tensor, boxed.offset))
            case IntArgument(value):
                return self._number(value)
            case FloatArgument(value):
                return value
        return None

    def _pointer(self, argument: TensorArgument) -> Pointer:
        tensor = self.plan.tensors[argument.tensor]
        if tensor.kind == "cache":
            memory = self.features if tensor.name == FEATURES else self.blocks[tensor.offset :]
        elif tensor.kind == "adapter":
            memory = self.adapters[tensor.offset :]
        else:
            memory = self.inputs[tensor.name] if tensor.kind == "input" else self.memory[tensor.kind][tensor.offset :]
        return memory[self._number(argument.offset) :]


def _bytes_of_features(plan: Plan) -> int:
    kept = (tensor for tensor in plan.tensors if tensor.kind == "cache" and tensor.name == FEATURES)
    return sum(tensor.max_bytes(plan.symbols) for tensor in kept)


def launches(program: Program) -> list[LaunchInstruction]:
    """The kernel launches of a program."""
    return [instruction for instruction in program.instructions if isinstance(instruction, LaunchInstruction)]


def _weights(lowered: Lowered) -> np.ndarray:
    """The data section of the engine file up to the end of the weights."""
    ends, layout = [], lowered.layout
    for buffer, weight in lowered.operands.weights.items():
        offset = layout.tensors[layout.index[buffer]].offset
        ends.append((offset, np.frombuffer(weight.load(), np.uint8)))
    section = np.full(max(offset + len(data) for offset, data in ends), _POISON, np.uint8)
    for offset, data in ends:
        section[offset : offset + len(data)] = data
    return section
